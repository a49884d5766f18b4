"""A trained model in a notebook: open a run, read a text, ask every head.

    glass = open_run("runs/NAME")
    reading = glass.read("def __init__(self", without=["head 5.2"])

What it returns is what the scripts and pages show, from the same functions. Tensors are float32 on the CPU.

Shapes: L layers, H heads, T tokens, D model width, K head width, V vocabulary.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.tokenizers import END_OF_TEXT, Tokenizer
from model.checkpoint import build_gpt, read_checkpoint
from model.exchange.huggingface import check_vocabulary, from_huggingface, local_folder, masks_documents
from model.generation import stream
from model.gpt import GPT
from model.inspection.experiments import Found, try_all
from model.inspection.parts import Change, Vectors, changes, losses_without_each, part_means, parts_of
from model.inspection.reading import Reading, place_in, read
from model.inspection.recording import Recording, take_snapshot
from model.inspection.texts import Kind, Texts, repeated_tokens
from model.mistakes import Missing, Mistake, parsing
from model.pages.page import run_page
from model.runs.run import ATTENTION, RUNS, Run

log = logging.getLogger(__name__)
PERIOD = 32  # distinct tokens of the repeated probe, in a context that has room for twice as many
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
HEIGHT = 760  # pixels of a page in a notebook

Text = str | Tensor | Sequence[int]  # or its token ids (T,)


def open_run(
    source: str | Path | None = None,
    *,
    step: int | None = None,
    device: str | torch.device = "cpu",
) -> Glass:
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
        gpt = from_huggingface(folder)
        tokenizer = Tokenizer.from_folder(folder)
        check_vocabulary(gpt, tokenizer)
        return Glass(gpt.to(device), tokenizer, str(source), document_masking=masks_documents(folder))
    path = None if source is None else Path(source)
    run = Run.open(path)
    checkpoint = run.checkpoint if step is None else run.at(step)
    about = read_checkpoint(checkpoint)
    gpt = build_gpt(checkpoint, about).to(device).eval()
    with parsing(checkpoint):
        tokenizer = Tokenizer.from_dict(about["tokenizer"])
        check_vocabulary(gpt, tokenizer)
    folder = run.folder if run.is_run else None
    step = about["global_step"]
    document_masking = bool(about.get("document_masking"))
    return Glass(gpt, tokenizer, str(checkpoint), checkpoint, folder, step, document_masking)


def is_huggingface(source: str | Path | None) -> bool:
    """Whether this is the folder of a Hugging Face model, or may be the name of one on the Hub."""
    if source is None:
        return False
    if Path(source).exists():
        return Path(source, "config.json").is_file()
    if not isinstance(source, str) or source.startswith(f"{RUNS}/"):
        return False
    return HUB_NAME.fullmatch(source) is not None


@dataclass(eq=False, repr=False)
class Glass:
    """A trained model and its tokenizer. As the last line of a cell it shows the page of the model, to type into.

    gpt: a torch.nn.Module, in evaluation mode. tokenizer: a `data.tokenizers.Tokenizer`, with encode(text) and
    decode(ids). source: the file or name that it was read from. checkpoint: its file, None for a model of Hugging Face.
    run: the folder of the run, None if it is of none. step: the number of updates it was trained for, None if unknown.
    document_masking: whether it was trained to attend within a document, as far as its files tell.
    """

    gpt: GPT
    tokenizer: Tokenizer
    source: str
    checkpoint: Path | None = None
    run: Path | None = None
    step: int | None = None
    document_masking: bool = False

    def __str__(self) -> str:
        """For people: such as "runs/NAME/checkpoints/best.ckpt, step 800, on cpu"."""
        step = "" if self.step is None else f"step {self.step}, "
        return f"{self.source}, {step}on {self.device}"

    def __repr__(self) -> str:
        return f"Glass({self})"

    @property
    def device(self) -> torch.device:
        return self.gpt.token_embedding.weight.device

    @property
    def name(self) -> str:
        """The run's, or the file's or model's."""
        if self.run:
            return self.run.resolve().name
        return Path(self.source).stem

    @property
    def steps(self) -> list[int]:
        """The steps whose checkpoints the run has kept besides the best and the last, in ascending order."""
        return Run(self.run).kept_steps if self.run else []

    def at(self, step: int) -> Glass:
        """The model after this many updates, one of `steps`, the best's or the last's. A `Mistake` for others."""
        return open_run(self.checkpoint or self.source, step=step, device=self.device)

    @cached_property
    def recorded(self) -> Recording:
        """What was measured while it trained, on a fixed text and on repeated random tokens ("text" and "repeated").

        recorded.steps; recorded.maps(step)["text"], (L, H, T, T); recorded.probes["text"].labels[0], T
        texts; and recorded.at(step).scores["induction"], (L, H) from 0 to 1, a mean over many windows, or another of
        `model.inspection.heads.SCORES`. Maps and scores are arrays of numpy.

        Raises a `Mistake` if nothing was.
        """
        if self.run is None:
            raise Missing(f"{self.source} is no run: nothing was recorded while it was trained")
        return Recording.open(self.run / ATTENTION, self.name)

    def recorded_or_none(self) -> Recording | None:
        """`recorded`, or None where nothing was. Of a damaged one it warns: it is not needed to read a text."""
        try:
            return self.recorded
        except Missing:
            return None
        except Mistake as error:
            log.warning("What was recorded in training is left out: %s", error)
            return None

    def read(
        self,
        text: Text | Sequence[Text],
        *,
        without: str | Iterable[str] = (),
    ) -> Reading | list[Reading]:
        """Reads a text, token ids (T,), or each of a list of texts. Any later change of the model is not in a reading.

        Of a text that is longer than the model's context, the last tokens are read, with a warning. No token is put
        before the text.

        Args:
            without: parts that give the same at every token, their mean over the recorded windows (over this text if
                there are none): "head 5.2", "feed-forward 3", "token embedding", "value embeddings 1", as on the page.

        Raises a `Mistake` for an empty text, ids outside the vocabulary, or a part that the model does not have.
        """
        names = [without] if isinstance(without, str) else list(without)
        if is_several(text):
            return [self.read(one, without=names) for one in text]  # type: ignore[misc, arg-type]
        tokens = self.encode(text)  # type: ignore[arg-type]
        means = self.means(tokens) if names else {}
        replacing = {self._part(name): means[name] for name in names}
        return self._reading(tokens, replacing, None, *(f"without {name}" for name in names))

    def _part(self, name: str) -> str:
        """The name of a part. Raises a `Mistake` for one that the model does not have."""
        known = parts_of(self.gpt)
        if name not in known:
            raise Mistake(f"the model has no part {name!r}: it has {', '.join(known)}")
        return name

    def encode(self, text: Text) -> Tensor:
        """Token ids (T,) of what is read of a text: its last tokens where the model's context does not hold all, as
        when the model writes, and with a warning. Pages and scripts read the same."""
        try:
            ids = torch.as_tensor(self.tokenizer.encode(text) if isinstance(text, str) else text)
            (length,) = ids.shape
            tokens = self.gpt.known_ids(ids)
        except (ValueError, TypeError, RuntimeError) as error:  # torch has its own words for what is no tensor
            raise Mistake(f"{text!r:.80} is no text of at least one token, nor its ids (T,): {error}") from None
        context = self.gpt.config.context_length
        if length > context:
            log.warning("The text has %s tokens; the last %s, the model's context, are read.", length, context)
        return tokens[-context:]

    def texts(self, tokens: Tensor, kind: Kind = "text") -> Texts:
        """Token ids (T,) or (N, T) as this model reads them: within documents if it was trained so."""
        about = {
            "end_of_text": self.tokenizer.end_of_text if self.document_masking else None,
            "attention_window": self.gpt.config.window,
        }
        return Texts.of(tokens.cpu(), self.tokenizer.label, kind=kind, **about)

    def ablate(self, texts: Text | Sequence[Text] | None = None) -> dict[str, Change]:
        """How much the loss rises without each part in turn, by the part's name, the largest rise first.

        A rise is in nats per token, with its standard error over the texts: one that is less than twice its error may
        be chance.
        Parts are heads, feed-forwards and tables, named as `read` takes them; a part gives its mean instead.

        texts: one, as `read` takes it, or a list of them; None are the recorded windows of text. A single one has no
        error.

        Raises a `Mistake` for a text of a single token, which leaves nothing to predict.
        """
        if texts is None:
            measured = [self.recorded.windows["text"]]
        else:
            several = texts if is_several(texts) else [texts]
            measured = [self.texts(self.encode(text)) for text in several]  # type: ignore[arg-type]
        losses = []
        for one in measured:
            if one.length < 2:
                raise Mistake("a loss needs texts of at least two tokens each")
            losses.append(losses_without_each(self.gpt, one, self.means(one.tokens[0])))
        together = {name: torch.cat([one[name] for one in losses]) for name in losses[0]}
        return dict(sorted(changes(together).items(), key=lambda one: -one[1].rise))

    def patch(
        self,
        text: Text,
        other: Text,
        *,
        head: Sequence[int],
        position: int,
        source: int | None = None,
    ) -> Reading:
        """Reads a text in which a head gives at one token what it gives at a token of another text.

        Activation patching (Meng et al. 2022, https://arxiv.org/abs/2202.05262). For other parts, `gpt` takes hooks.

        Args:
            head: (layer, number). position: the token of `text`, from 0; negative ones count from the end. source: that
                of `other`, None for the same number, so that -1 is the last of each text.

        Raises a `Mistake` for a head or a token that is not there.
        """
        tokens = self.encode(text)
        other_tokens = self.encode(other)
        layer, number = head
        name = self._part(f"head {layer}.{number}")
        at = place_in("position", position, len(tokens))
        other_at = place_in("source", position if source is None else source, len(other_tokens))
        given = self._reading(other_tokens).heads[layer, number, other_at]
        return self._reading(tokens, {name: given}, at, f"{name} patched at token {at} (in this text only)")

    def _reading(
        self,
        tokens: Tensor,
        replacing: Vectors | None = None,
        position: int | None = None,
        *edits: str,
    ) -> Reading:
        """What the model makes of tokens (T,), with parts replaced as `read` of model/inspection/reading.py does it.

        edits: what its title says of that.
        """
        found = read(
            self.gpt,
            self.texts(tokens),
            replacing=replacing,
            position=position,
            label=self.tokenizer.label,
        )
        step = () if self.step is None else (f"step {self.step}",)
        title = ", ".join((self.name, *step, *edits))

        def page(reading: Reading) -> str:
            return in_frame(lambda: run_page(title, recording_of([(self, reading)])))

        return replace(found, title=title, page=page)

    def stream(
        self,
        prompt: str,
        max_new_tokens: int,
        *,
        num_texts: int = 1,
        seed: int | None = None,
        **options: Any,
    ) -> Iterator[Tensor]:
        """Continues a prompt in several texts, and yields each new token (num_texts,) of theirs as soon as it is drawn.

        An empty prompt begins a document. The same seed draws the same; without one, torch's own generator draws. Other
        options as in `model.generation.stream`, such as temperature.
        """
        tokens = self.tokenizer.encode(prompt) or [self.tokenizer.end_of_text]
        prompts = torch.tensor([tokens], device=self.device).repeat(num_texts, 1)
        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        options = {"generator": generator, "stop_token": self.tokenizer.end_of_text, **options}
        return stream(self.gpt, prompts, max_new_tokens, **options)

    def write(self, prompt: str = "", max_new_tokens: int = 50, *, seed: int | None = None, **options: Any) -> str:
        """Continues a prompt and returns the new text: a single one, with the other options of `stream`."""
        written = torch.cat([*self.stream(prompt, max_new_tokens, num_texts=1, seed=seed, **options)])
        return self.tokenizer.decode(written.tolist()).split(END_OF_TEXT)[0]

    def means(self, tokens: Tensor) -> dict[str, Tensor]:
        """What each part gives on average over the recorded windows of text, or `tokens` (T,) if none are recorded."""
        recorded = self.recorded_or_none()
        return part_means(self.gpt, recorded.windows["text"] if recorded else self.texts(tokens))

    def repeated_probe(self) -> Texts:
        """Random tokens, repeated: those recorded in the run if there are any, else new ones."""
        if recorded := self.recorded_or_none():
            return recorded.probes["repeated"]
        period = min(PERIOD, (self.gpt.config.context_length - 1) // 2)
        drawn = repeated_tokens(range(self.tokenizer.vocab_size), period, first=self.tokenizer.end_of_text)
        return self.texts(torch.tensor(drawn), "repeated")

    def page(self) -> str:
        """The HTML of a page that holds the model itself, and reads what a person types.

        Raises a `Mistake` if no text was recorded, which the page opens with.
        """
        return run_page(self.name, self.recorded, models=[(self.step or 0, self.gpt)], tokenizer=self.tokenizer)

    def experiments(self) -> Found:
        """The experiments that hold for the model, strongest first, and by title why the others do not.

        Raises a `Mistake` if no text was recorded to try them on.
        """
        windows = self.recorded.windows["text"]
        return try_all(self.gpt, self.tokenizer, windows, part_means(self.gpt, windows))

    def _repr_html_(self) -> str:
        return in_frame(self.page)


def recording_of(read_by: Sequence[tuple[Glass, Reading]]) -> Recording:
    """A recording of one text, with a snapshot of each model that read it, in the order of their steps.

    What a model loses without a part is what training recorded at that step, on many texts and not on this one.

    Raises a `Mistake` if the weights of a model have changed since it read the text.
    """
    first, text = read_by[0]
    probes = {"text": first.texts(text.ids), "repeated": first.repeated_probe()}
    recorded = first.recorded_or_none()
    recording = Recording(probes, recorded.windows if recorded else {}, name=first.name, is_prompt=True)
    for glass, reading in read_by:
        if not reading.is_of(glass.gpt):
            raise Mistake("the model is no longer as it was when this text was read: read it again to see its page")
        taken = take_snapshot(glass.gpt, glass.step or 0, recording, glass.tokenizer.label, text=reading)
        if recorded and taken.step in recorded.steps and not reading.replacing:
            kept = recorded.at(taken.step)
            taken = replace(taken, loss=kept.loss, ablation=kept.ablation)
        recording.append(taken)
    return recording


def is_several(text: Text | Sequence[Text]) -> bool:
    """Whether this is a list of texts, and not one text: its string, or its ids (T,), which a list may hold too."""
    return isinstance(text, list | tuple) and any(isinstance(one, str) or np.ndim(one) > 0 for one in text)


def in_frame(page: Callable[[], str]) -> str:
    """HTML that shows a page in a notebook's cell, apart from the other cells and offline, or why there is none."""
    try:
        source = html.escape(page())
    except Mistake as error:
        return f"<p>{html.escape(str(error))}</p>"
    style = f'width="100%" height="{HEIGHT}" frameborder="0" sandbox="allow-scripts allow-downloads"'
    return f'<iframe srcdoc="{source}" {style}></iframe>'
