"""A trained model in a notebook: open a run, read a text, ask every head.

    glass = open_run("runs/NAME")
    reading = glass.read("def __init__(self", without=["head 5.2"])

What it returns is what the scripts and pages show, from the same functions. Tensors are float32 on the CPU.

Shapes: L layers, H heads, T tokens, D model width, K head width, V vocabulary.
"""

from __future__ import annotations

import html
import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data.tokenizers import END_OF_TEXT, Tokenizer
from model.checkpoint import build_gpt, read_checkpoint
from model.checks import Mistake
from model.exchange.huggingface import check_tokenizer, from_huggingface, local_folder, masks_documents
from model.generation import generate
from model.gpt import GPT
from model.inspection.ablation import Change, Means, changes, losses_without_each, part_means, replaced
from model.inspection.attribution import attribution
from model.inspection.experiments import Found, try_all
from model.inspection.lens import predictions, stages
from model.inspection.probes import Probe, draw_repeated_probe
from model.inspection.recorder import one_sequence, read_maps, take_snapshot
from model.inspection.recording import Checks, Recording
from model.inspection.survey import windows_of
from model.inspection.trace import Trace, trace
from model.pages.page import run_page
from model.runs.folder import ATTENTION, RUNS, find_checkpoint, find_kept, kept_steps, run_of

log = logging.getLogger(__name__)
PERIOD = 32  # distinct tokens of the repeated probe, in a context that has room for twice as many
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
HEIGHT = 760  # pixels of a page in a notebook

Text = str | Tensor | Sequence[int]  # or its token ids (T,)


def open_run(source: str | Path | None = None, *, step: int | None = None, device: str | torch.device = "cpu") -> Glass:
    """Opens a run's folder (its best checkpoint), a checkpoint, or a model of Hugging Face in GPT-2's format.

    Args:
        source: None is the newest run under runs/. A str without a file or folder of that name is a model on the Hub.
        step: one whose checkpoint the run has, instead of the best.
        device: "cpu", "cuda" or "mps".

    Raises a `Mistake` if there is no such run, model or step, the Hub cannot be reached, or a file is damaged or holds
    no model that a GPT can express.
    """
    if is_huggingface(source):
        if step is not None:
            raise Mistake(f"{source} is no run: it has no checkpoint of step {step}")
        folder = local_folder(source)
        gpt, tokenizer = from_huggingface(folder), Tokenizer.from_folder(folder)
        check_tokenizer(gpt, tokenizer)
        return Glass(gpt.to(device), tokenizer, str(source), document_masking=masks_documents(folder))
    path = None if source is None else Path(source)
    checkpoint = find_checkpoint(path) if step is None else find_kept(path, [step])[0]
    about = read_checkpoint(checkpoint)
    gpt = build_gpt(checkpoint, about).to(device).eval()
    try:
        tokenizer = Tokenizer.from_dict(about["tokenizer"])
        check_tokenizer(gpt, tokenizer)
    except Mistake as error:
        raise Mistake(f"{checkpoint}: {error}") from error
    return Glass(gpt, tokenizer, str(checkpoint), checkpoint, about["global_step"], bool(about.get("document_masking")))


def is_huggingface(source: str | Path | None) -> bool:
    """Whether this is the folder of a Hugging Face model, or may be the name of one on the Hub."""
    if source is None or Path(source).exists():
        return source is not None and (Path(source) / "config.json").is_file()
    return isinstance(source, str) and HUB_NAME.fullmatch(source) is not None and not source.startswith(f"{RUNS}/")


@dataclass(eq=False, repr=False)
class Glass:
    """A trained model and its tokenizer. As the last line of a cell it shows the page of the model, to type into.

    gpt: a torch.nn.Module, in evaluation mode. tokenizer: a `data.tokenizers.Tokenizer`, with encode(text) and
    decode(ids). source: the file or name that it was read from. checkpoint: its file, None for a model of Hugging Face.
    step: the number of updates it was trained for, None if unknown. document_masking: whether it was trained to attend
    within a document, as far as its files tell.
    """

    gpt: GPT
    tokenizer: Tokenizer
    source: str
    checkpoint: Path | None = None
    step: int | None = None
    document_masking: bool = False

    def __str__(self) -> str:
        """For people: such as "runs/NAME/checkpoints/best.ckpt, step 800, on cpu"."""
        return f"{self.source}, {'' if self.step is None else f'step {self.step}, '}on {self.device}"

    def __repr__(self) -> str:
        return f"Glass({self})"

    @property
    def device(self) -> torch.device:
        return self.gpt.token_embedding.weight.device

    @property
    def run(self) -> Path | None:
        """The folder of the run, None if it is not of one."""
        return None if self.checkpoint is None else run_of(self.checkpoint)

    @property
    def name(self) -> str:
        """The run's, or the file's or model's."""
        return self.run.resolve().name if self.run else Path(self.source).stem

    @property
    def steps(self) -> list[int]:
        """The steps whose checkpoints the run has kept besides the best and the last, in ascending order."""
        return kept_steps(self.run) if self.run else []

    def at(self, step: int) -> Glass:
        """The model after this many updates, one of `steps`, the best's or the last's. A `Mistake` for others."""
        return open_run(self.checkpoint or self.source, step=step, device=self.device)

    @cached_property
    def recorded(self) -> Recording:
        """What was measured while it trained, on a fixed text and on repeated random tokens ("text" and "repeated").

        recorded.steps; recorded.maps(step)["text"], (L, H, T, T) in float16; recorded.probes["text"].labels, T texts;
        and recorded.at(step).scores["induction"], (L, H) from 0 to 1, a mean over many windows, or another of
        `model.inspection.heads.SCORES`. Maps and scores are arrays of numpy.

        Raises a `Mistake` if nothing was.
        """
        if self.run is None:
            raise Mistake(f"{self.source} is no run: nothing was recorded while it was trained")
        return Recording.open(self.run / ATTENTION, self.name)

    def read(self, text: str | Tensor | Sequence, *, without: str | Iterable[str] = ()) -> Reading | list[Reading]:
        """Reads a text, token ids (T,), or each of a list of texts.

        Of a text that is longer than the model's context, the beginning is read, with a warning. No token is put before
        the text.

        Args:
            without: parts that give the same at every token, their mean over the recorded windows (over this text if
                there are none): "head 5.2", "feed-forward 3", "token embedding", "value embeddings 1", as on the page.

        Raises a `Mistake` for an empty text, ids outside the vocabulary, or a part that the model does not have.
        """
        names = [without] if isinstance(without, str) else list(without)
        if isinstance(text, list) and text and isinstance(text[0], str):
            return [self.read(one, without=names) for one in text]  # type: ignore[misc]
        tokens = self.encode(text)
        means = self.means(tokens) if names else {}
        if unknown := [name for name in names if name not in means]:
            raise Mistake(f"the model has no part {unknown[0]!r}: it has {', '.join(means)}")
        replacing = {name: means[name] for name in names}
        return Reading(self, tokens, replacing, [f"without {name}" for name in names])

    def encode(self, text: Text) -> Tensor:
        """Token ids (T,) of what `read` reads, on the model's device."""
        try:
            ids = one_sequence(self.tokenizer.encode(text) if isinstance(text, str) else text)
            (tokens,) = self.gpt.known_ids(ids)
        except (ValueError, TypeError, RuntimeError) as error:  # torch has its own words for what is no tensor
            raise Mistake(f"{text!r:.80} is no text of at least one token, nor its ids (T,): {error}") from None
        context = self.gpt.config.context_length
        if len(tokens) > context:
            log.warning("The text has %s tokens; the first %s, the model's context, are read.", len(tokens), context)
        return tokens[:context]

    def ablate(self, texts: Text | Sequence[Text] | None = None) -> dict[str, Change]:
        """How much the loss rises without each part in turn, by the part's name, the largest rise first.

        A rise is in nats per token, with its standard error over the texts: one that is not `is_clear` may be chance.
        Parts are heads, feed-forwards and tables, named as `read` takes them; a part gives its mean instead.

        texts: None are the recorded windows of text. Of a longer text the beginning is read. A single one has no error.

        Raises a `Mistake` if there are none, or one is of a single token, which leaves nothing to predict.
        """
        several: Any = [texts] if isinstance(texts, str | Tensor) else texts
        if several is None:
            read = [self.recorded.windows["text"].tokens.to(self.device)]
        else:
            read = [self.encode(text)[None] for text in several]
        if not read or any(tokens.shape[1] < 2 for tokens in read):
            raise Mistake("a loss needs texts of at least two tokens each")
        losses = [losses_without_each(self.gpt, tokens, self.means(tokens[0])) for tokens in read]
        rises = changes({name: torch.cat([of_texts[name] for of_texts in losses]) for name in losses[0]})
        return dict(sorted(rises.items(), key=lambda one: -one[1].rise))

    def patch(
        self, text: Text, other: Text, *, head: tuple[int, int] | str, position: int, source: int | None = None
    ) -> Reading:
        """Reads a text in which a head gives at one token what it gives at a token of another text.

        Activation patching (Meng et al. 2022, https://arxiv.org/abs/2202.05262). For other parts, `gpt` takes hooks.

        Args:
            head: (layer, number), or as `read` takes it. position: the token of `text`, from 0; negative ones count
                from the end. source: that of `other`, None for the same number, so that -1 is the last of each text.

        Raises a `Mistake` for a head or a token that is not there.
        """
        tokens, other_tokens = self.encode(text), self.encode(other)
        source = position if source is None else source
        layers, heads = self.gpt.config.num_layers, self.gpt.config.num_heads
        known = {f"head {layer}.{number}": (layer, number) for layer in range(layers) for number in range(heads)}
        name = next((name for name, place in known.items() if head in (name, place)), None)
        if name is None:
            raise Mistake(f"head {head!r} is not (layer, number) of layers 0..{layers - 1} and heads 0..{heads - 1}")
        for place, length in ((position, len(tokens)), (source, len(other_tokens))):
            if not -length <= place < length:
                raise Mistake(f"there is no token {place} in a text of {length} tokens")
        (layer, number), position = known[name], position % len(tokens)
        given = trace(self.gpt, other_tokens).heads[layer, source, number]
        edits = [f"{name} patched at token {position} (in this text only)"]
        return Reading(self, tokens, {name: given}, edits, position)

    def write(self, prompt: str = "", max_new_tokens: int = 50, *, seed: int | None = None, **options: Any) -> str:
        """Continues a prompt and returns the new text; options as in `model.generation.stream`, such as temperature.

        An empty prompt begins a document. The same seed writes the same text.
        """
        tokens = self.tokenizer.encode(prompt) or [self.tokenizer.end_of_text]
        generator = torch.Generator(self.device)
        generator.seed() if seed is None else generator.manual_seed(seed)
        options = {"stop_token": self.tokenizer.end_of_text, "generator": generator} | options
        read = torch.tensor([tokens], device=self.device)
        written = generate(self.gpt, read, max_new_tokens, **options)[0, len(tokens) :]
        return self.tokenizer.decode(written.tolist()).split(END_OF_TEXT)[0]

    @cached_property
    def recording(self) -> Recording | None:
        """As `recorded`, but None where nothing was that this model can read."""
        try:
            recording = self.recorded
        except Mistake:  # a missing or damaged recording is not needed to read a text
            return None
        texts = [recording.windows["text"].texts[0], *recording.probes.values()]
        fits = max(len(text.tokens) for text in texts) <= self.gpt.config.context_length
        return recording if fits and recording.tokenizer == self.tokenizer.fingerprint else None

    def means(self, tokens: Tensor) -> Means:
        """What each part gives on average over the recorded windows of text, or `tokens` (T,) if none are recorded."""
        return part_means(self.gpt, self.recording.windows["text"].sample if self.recording else tokens[None])

    def repeated_probe(self) -> Probe:
        """Random tokens, repeated: those recorded in the run if there are any, else new ones."""
        if self.recording is not None:
            return self.recording.probes["repeated"]
        period, first = min(PERIOD, (self.gpt.config.context_length - 1) // 2), self.tokenizer.end_of_text
        return draw_repeated_probe(range(self.tokenizer.vocab_size), period, self.tokenizer.label, first=first)

    def page(self) -> str:
        """The HTML of a page that holds the model itself, and reads what a person types.

        Raises a `Mistake` if no text was recorded, which the page opens with.
        """
        if self.recording is None:
            raise Mistake(f"{self.source} has no text on record to try it on: read one, and show the reading")
        return run_page(self.name, self.recording, models=[(self.step or 0, self.gpt)], tokenizer=self.tokenizer)

    def experiments(self) -> Found:
        """The experiments that hold for the model, strongest first, and by title why the others do not.

        Raises a `Mistake` if no text was recorded to try them on.
        """
        if self.recording is None:
            raise Mistake(f"{self.source} has no text on record to try experiments on")
        windows = self.recording.windows["text"]
        return try_all(self.gpt, self.tokenizer, windows.texts, part_means(self.gpt, windows.sample))

    def _repr_html_(self) -> str:
        return in_frame(self.page)


class Reading:
    """What a model computed for one text, on the CPU in float32; computed when it is first asked for.

    As the last line of a cell it shows the page of the text.

    glass: the model. ids: (T,). tokens: T texts. edits: what is not as in the model, such as "without head 5.2".
    """

    def __init__(
        self, glass: Glass, tokens: Tensor, replacing: Means, edits: list[str], position: int | None = None
    ) -> None:
        self.glass, self.ids, self.edits = glass, tokens.cpu(), edits
        self.tokens = [glass.tokenizer.label(token) for token in tokens.tolist()]
        self.replacing, self.position = replacing, position

    def edited(self, gpt: GPT, measured: str = "text") -> AbstractContextManager:
        """A context in which the model, or a copy, has the edits. A patch is of this text, not of others."""
        if self.position is not None and measured != "text":
            return nullcontext()
        return replaced(gpt, self.replacing, self.position)

    def __repr__(self) -> str:
        return f"Reading({self.title}, {len(self.tokens)} tokens)"

    @property
    def title(self) -> str:
        """Such as "default, step 1000, without head 5.2": the page's heading."""
        step = [] if self.glass.step is None else [f"step {self.glass.step}"]
        return ", ".join([self.glass.name, *step, *self.edits])

    @cached_property
    def trace(self) -> Trace:
        """All that the model computed, see `model.inspection.trace.Trace`."""
        with self.edited(self.glass.gpt):
            return trace(self.glass.gpt, self.ids.to(self.glass.device))

    @cached_property
    def _maps(self) -> tuple[Tensor, Checks]:
        with self.edited(self.glass.gpt):
            return read_maps(self.glass.gpt, self.ids)

    @property
    def maps(self) -> Tensor:
        """(L, H, T, T): how much each query takes of each key's value; maps[5, 2] is head 5.2.

        TransformerLens calls it pattern.
        """
        return self._maps[0]

    @property
    def checks(self) -> Checks:
        """Whether the maps can be trusted: their fidelity and causality."""
        return self._maps[1]

    @cached_property
    def logits(self) -> Tensor:
        """(T, V)"""
        with torch.no_grad():
            return self.glass.gpt.unembed(self.trace.features).float().cpu()

    def top(self, at: int = -1, count: int = 5) -> list[tuple[str, float]]:
        """The likeliest next tokens after token `at`, as texts with their probabilities, the likeliest first."""
        probabilities, ids = self.logits[at].softmax(-1).topk(min(count, self.logits.shape[-1]))
        labels = map(self.glass.tokenizer.label, ids.tolist())
        return list(zip(labels, probabilities.tolist(), strict=True))

    @property
    def surprise(self) -> Tensor:
        """(T - 1,): what each next token costs, in bits."""
        return F.cross_entropy(self.logits[:-1], self.ids[1:], reduction="none") / math.log(2)

    @property
    def loss(self) -> float:
        """Nats per predicted token; NaN for a single token."""
        return self.surprise.mean().item() * math.log(2)

    @cached_property
    def lens(self) -> dict:
        """What the model would predict after each of `residual`'s 2L + 1 rows (the logit lens), as a dict:

        part: names of the rows, such as "attention 3". token: 2L + 1 lists of T ids, the likeliest. probability:
        (2L + 1, T), of the true next token; NaN after the last. divergence: (2L + 1, T), of this prediction from the
        final one, in bits. See `model.inspection.lens`.
        """
        return {"part": stages(self.glass.gpt)} | predictions(self.glass.gpt, self.trace)["lens"]

    def attribution(self, at: int = -1, of: int | None = None) -> dict[str, float]:
        """What each part adds to the logit of a token, by the part's name; their sum is the logit before the soft-cap.

        Args:
            at: the token that is read last, from 0 or from the end.
            of: id of the predicted token; None for the true next one, after the last token for the likeliest.
        """
        if of is not None and not 0 <= of < self.logits.shape[-1]:
            raise Mistake(f"there is no token id {of}: they lie in 0..{self.logits.shape[-1] - 1}")
        targets = torch.cat((self.ids[1:], self.logits[-1:].argmax(-1)))
        targets[at] = targets[at] if of is None else of
        parts, _ = attribution(self.glass.gpt, self.trace, targets)
        return {name: part[at].item() for name, part in parts.items()}

    @property
    def residual(self) -> Tensor:
        """(2L + 1, T, D): the residual stream after the embeddings, attention 0, feed-forward 0, attention 1, ...

        Before the final norm: the logits are `gpt.unembed(gpt.final_norm(residual[-1]))`.
        """
        return self.trace.residual.float().cpu()

    @property
    def heads(self) -> Tensor:
        """(L, H, T, K): what each head gives to its layer's output matrix; TransformerLens calls it z."""
        return self.trace.heads.transpose(1, 2).float().cpu()

    @property
    def q(self) -> Tensor:
        """(L, H, T, K): the queries, as `attend` gets them: with rotary positions, after they are turned."""
        return self.trace.queries.float().cpu()

    @property
    def k(self) -> Tensor:
        """(L, H, T, K): the keys, likewise; those of a group of heads are repeated for each of them."""
        return self.trace.keys.float().cpu()

    @property
    def v(self) -> Tensor:
        """(L, H, T, K): the values, repeated as the keys are."""
        return self.trace.values.float().cpu()

    def _repr_html_(self) -> str:
        return in_frame(lambda: run_page(self.title, recording_of([self])))


def recording_of(readings: Sequence[Reading]) -> Recording:
    """What a page or a picture shows of a text that one model read at one step or several, in their order.

    What the model loses without a part is told as it was recorded at that step, on many texts and not on this one.
    """
    first = readings[0].glass
    text = Probe(readings[0].ids.tolist(), readings[0].tokens)
    probes = {"text": text, "repeated": first.repeated_probe()}
    windows = first.recording.windows if first.recording else windows_of(probes, first.gpt.config.window)
    recording = Recording(probes, windows, name=first.name, is_prompt=True)
    for reading in readings:
        glass, step = reading.glass, reading.glass.step or 0
        taken = take_snapshot(glass.gpt, step, recording, glass.tokenizer.label, edited=reading.edited)
        for recorded in glass.recording.snapshots if glass.recording and not reading.edits else ():
            if recorded.step == step:
                taken = replace(taken, loss=recorded.loss, ablation=recorded.ablation)
        recording.append(taken)
    return recording


def in_frame(page: Callable[[], str]) -> str:
    """HTML that shows a page in a notebook's cell, apart from the other cells and offline, or why there is none."""
    try:
        source = html.escape(page())
    except Mistake as error:
        return f"<p>{html.escape(str(error))}</p>"
    style = f'width="100%" height="{HEIGHT}" frameborder="0" sandbox="allow-scripts allow-downloads"'
    return f'<iframe srcdoc="{source}" {style}></iframe>'
