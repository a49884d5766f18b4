"""A trained model in a notebook: open a run, read a text, ask every head.

    glass = open_run("runs/NAME")
    reading = glass.read("def __init__(self", without=["head 5.2"])

Its answers come from the functions that the scripts and pages use too. Tensors are float32 on the CPU.

Shapes: L layers, H heads, T tokens, D model width, K head width, V vocabulary.
"""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from data.tokenizers import Tokenizer
from model.exchange.huggingface import check_vocabulary, from_huggingface, local_folder, masks_documents
from model.generation import stream
from model.gpt import GPT
from model.inspection.experiments import Effect, try_all
from model.inspection.parts import NO_EDIT, Change, Edit, losses_without_each, part_means, parts_of, rises
from model.inspection.reading import Reading, position_in, read
from model.inspection.recording import Recording, take_snapshot
from model.inspection.texts import Kind, Texts, repeated_tokens
from model.kernels import check_device
from model.mistakes import Missing, Mistake, check, check_range, parsing
from model.pages.page import run_page
from model.runs.code import OtherCode, open_known
from model.runs.run import ATTENTION, RUNS, Run

log = logging.getLogger(__name__)
PERIOD = 32  # distinct tokens in the repeated probe, or fewer if the context does not hold them twice
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
HEIGHT = 760  # of a page in a notebook, in pixels

Text = str | Tensor | Sequence[int]  # a text, or its token ids (T,)


def open_run(
    path: str | Path | None = None,
    *,
    step: int | None = None,
    device: str | torch.device = "cpu",
    other_code: OtherCode = "warn",
    tokenizer: str | None = None,
) -> Glass:
    """Opens the best checkpoint of a run's folder, a checkpoint, or a Hugging Face model in GPT-2's format.

    Args:
        path: the path of one of these, or the name of a model on the Hugging Face Hub. None is the newest run under
            runs/.
        step: open the checkpoint of this step instead of the best one.
        device: "cpu", "cuda" or "mps"; "auto" is a GPU or other accelerator if there is one, else the CPU.
        other_code: what to do if this code computes something else than the code that trained the checkpoint, see
            model/proof.py. What you replace after opening a model is not noticed.
        tokenizer: the published encoding of a Hugging Face model whose folder has no tokenizer, such as "gpt2".

    Warns if some weights are not numbers. Raises a `Mistake` if there is no such run, model, step or device, the Hub
    cannot be reached, a file is damaged, or the model has something that our GPT lacks.
    """
    check(isinstance(path, str | Path | None), "path", "a path or the name of a model", path)
    check(other_code in get_args(OtherCode), "other_code", f"one of {get_args(OtherCode)}", other_code)
    check_range("step", step, 0, whole=True)
    if device == "auto":
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    check_device("device", device)
    if is_huggingface(path):
        if step is not None:
            raise Mistake(f"{path} is a Hugging Face model, which has no checkpoint of step {step}: leave out the step")
        folder = local_folder(path)
        gpt = from_huggingface(folder)
        encoding = Tokenizer.from_folder(folder, tokenizer)
        check_vocabulary(gpt, encoding)
        glass = Glass(gpt.to(device), encoding, path, document_masking=masks_documents(folder))
    else:
        run = Run.open(path if path is None else Path(path))
        checkpoint = run.checkpoint if step is None else run.at(step)
        gpt, description = open_known(checkpoint, device, other_code)
        with parsing(checkpoint):
            encoding = Tokenizer.from_dict(description["tokenizer"])
            check_vocabulary(gpt, encoding)
        glass = Glass(
            gpt,
            encoding,
            checkpoint,
            folder=run.folder if run.is_run else None,
            step=description["global_step"],
            document_masking=bool(description.get("document_masking")),
        )
    if not gpt.is_finite():
        log.warning("%s holds a model that has diverged: some of its weights are not numbers.", glass.path)
    return glass


def is_huggingface(path: str | Path | None) -> bool:
    """Returns whether this is the folder of a Hugging Face model, or may be the name of one on the Hub."""
    if path is not None and Path(path).exists():
        return Path(path, "config.json").is_file()
    if not isinstance(path, str) or path.startswith(f"{RUNS}/") or path.endswith(".ckpt"):
        return False
    return HUB_NAME.fullmatch(path) is not None


@dataclass(eq=False, repr=False)
class Glass:
    """A trained model and its tokenizer. As the last line of a notebook cell it shows a page that runs the model.

    gpt: a torch.nn.Module in eval mode.
    tokenizer: a `data.tokenizers.Tokenizer`, with encode(text) and decode(ids).
    path: the checkpoint, or the folder or name of a Hugging Face model; of any other model, words for it.
    folder: the folder of its run; None if it belongs to no run.
    step: the number of updates in its training; None if unknown.
    document_masking: whether the model was trained to attend within documents only, as far as its files say.
    """

    gpt: GPT
    tokenizer: Tokenizer
    path: str | Path
    folder: Path | None = None
    step: int | None = None
    document_masking: bool = False

    def __str__(self) -> str:
        """Returns such as "runs/NAME/checkpoints/best.ckpt, step 800, on cpu"."""
        step = "" if self.step is None else f"step {self.step}, "
        return f"{self.path}, {step}on {self.device}"

    def __repr__(self) -> str:
        return f"Glass({self})"

    @property
    def device(self) -> torch.device:
        return self.gpt.token_embedding.weight.device

    @property
    def name(self) -> str:
        """The name of the run, or else of the file or model."""
        if self.folder:
            return self.folder.resolve().name
        return Path(self.path).stem

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints that the run has kept besides the best and the last, in ascending order."""
        return [*Run(self.folder).kept] if self.folder else []

    def at(self, step: int) -> Glass:
        """Opens the model at a step: one of `steps`, the best or the last. Raises a `Mistake` for any other step."""
        # Opening this model has warned already.
        return open_run(self.path, step=step, device=self.device, other_code="accept")

    @cached_property
    def recorded(self) -> Recording:
        """What training recorded, on a fixed text ("text") and on random tokens that repeat themselves ("repeated").

        recorded.steps: the recorded steps.
        recorded.maps(step)["text"]: the attention maps, (L, H, T, T). recorded.probes["text"].labels[0]: the T tokens.
        recorded.at(step).scores["induction"]: (L, H) from 0 to 1, a mean over many windows. For the other scores see
        `model.inspection.heads.SCORES`.

        Maps and scores are numpy arrays. Raises a `Mistake` if nothing was recorded.
        """
        if self.folder is None:
            raise Missing(f"{self.path} belongs to no run, so nothing was recorded in its training")
        return Recording.open(self.folder / ATTENTION, self.name)

    def recorded_or_none(self) -> Recording | None:
        """Returns `recorded`, or None if nothing was recorded.

        For a damaged recording warns and returns None, because a text can be read without it.
        """
        try:
            return self.recorded
        except Missing:
            return None
        except Mistake as error:
            log.warning("The run's recording is ignored: %s", error)
            return None

    def read(self, text: Text, *, without: str | Iterable[str] = ()) -> Reading:
        """Reads a text or its token ids (T,). Later changes of the model do not change the reading.

        If a text is longer than the model's context, only its last tokens are read, with a warning. No token is added
        before the text.

        Args:
            without: names of parts to ablate, as on the page: "head 5.2", "feed-forward 3", "token embedding", "value
                embeddings 1". The output of each is replaced at every token by its mean over the recorded windows, or
                over this text if nothing was recorded.

        Raises a `Mistake` for an empty text, ids outside the vocabulary, or a part that the model does not have.
        """
        check(isinstance(without, Iterable), "without", "names of parts", without)
        names = [without] if isinstance(without, str) else list(without)
        tokens = self.encode(text)
        means = self.means(tokens) if names else {}
        return self._reading(tokens, Edit({self._part(name): means[name] for name in names}))

    def _part(self, name: str) -> str:
        """Returns `name`. Raises a `Mistake` if the model has no part of that name."""
        names = [*parts_of(self.gpt)]
        check(name in names, "the name of a part", f"one of {', '.join(names)}", name)
        return name

    def encode(self, text: Text, at_least: int = 1) -> Tensor:
        """Returns the token ids (T,) of a text, as the model reads it. Pages and scripts use this too.

        If the text is longer than the model's context, warns and returns its last tokens only. Generation also reads
        only these of a prompt. Raises a `Mistake` for fewer than `at_least` tokens: two are needed to predict one.
        """
        try:
            ids = torch.as_tensor(self.tokenizer.encode(text) if isinstance(text, str) else text)
            (length,) = ids.shape
            if length < at_least:
                raise ValueError(f"it has {length}")
            tokens = self.gpt.known_ids(ids)
        except (ValueError, TypeError, RuntimeError) as error:  # torch raises various errors for what is no tensor
            raise Mistake(f"{text!r:.80} is neither text nor ids (T,) of {at_least} tokens or more: {error}") from None
        context = self.gpt.config.context_length
        if length > context:
            log.warning("The text has %s tokens; only the last %s, the model's context, are read.", length, context)
        return tokens[-context:]

    def texts(self, tokens: Tensor | np.ndarray | Sequence, kind: Kind = "text") -> Texts:
        """Makes `Texts` of token ids (T,) or (N, T), with this model's document masking and attention window."""
        return Texts.of(
            torch.as_tensor(tokens).cpu(),
            self.tokenizer.label,
            kind=kind,
            end_of_text=self.tokenizer.end_of_text if self.document_masking else None,
            attention_window=self.gpt.config.window,
        )

    def ablate(self, texts: Text | Sequence[Text] | None = None) -> dict[str, Change]:
        """Returns by part name how much the loss rises without each part in turn, the largest rise first.

        A rise is in nats per token, with its standard error over the texts. A rise of less than twice its error may be
        chance. Parts are heads, feed-forwards and tables, with the names that `read` takes. To leave out a part, its
        output is replaced by its mean, see `means`.

        texts: a text as `read` takes it, or a list of texts; None is the recorded windows of text. For a single text
        the error is NaN.

        Raises a `Mistake` for a text of a single token, which leaves nothing to predict.
        """
        if texts is None:
            batches = [self.recorded.windows["text"]]
        else:
            is_list = isinstance(texts, list) and any(isinstance(text, str) or np.ndim(text) for text in texts)
            each = texts if is_list else [texts]
            batches = [self.texts(self.encode(text, at_least=2)) for text in each]  # type: ignore[arg-type]
        losses = [losses_without_each(self.gpt, batch, self.means(batch.tokens[0])) for batch in batches]
        by_part = {name: torch.cat([loss[name] for loss in losses]) for name in losses[0]}
        return dict(sorted(rises(by_part).items(), key=lambda item: -item[1].rise))

    def patch(
        self,
        text: Text,
        other: Text,
        *,
        head: Sequence[int],
        position: int,
        source: int | None = None,
    ) -> Reading:
        """Reads a text with a head's output at one token replaced by the same head's output at a token of another text.

        This is activation patching (Meng et al. 2022, https://arxiv.org/abs/2202.05262). To patch other parts, put
        hooks on `gpt`.

        Args:
            head: (layer, number).
            position: the token of `text`, counted from 0, or from the end if negative.
            source: the token of `other`, counted in the same way. None means the same number as `position`: with -1,
                both are the last tokens of their texts.

        Raises a `Mistake` if there is no such head or token.
        """
        tokens = self.encode(text)
        other_tokens = self.encode(other)
        check(np.shape(head) == (2,), "head", "(layer, number)", head)
        layer, number = head
        name = self._part(f"head {layer}.{number}")
        at = position_in("position", position, len(tokens))
        other_at = position_in("source", position if source is None else source, len(other_tokens))
        output = self._reading(other_tokens).heads[layer, number, other_at]
        return self._reading(tokens, Edit({name: output}, at))

    def _reading(
        self,
        tokens: Tensor,
        edit: Edit = NO_EDIT,
    ) -> Reading:
        """Returns the reading of tokens (T,), with a title, which names the changes, and a page."""
        reading = read(
            self.gpt,
            self.texts(tokens),
            edit=edit,
            label=self.tokenizer.label,
        )
        step = [] if self.step is None else [f"step {self.step}"]
        change = "without {}"
        if edit.position is not None:
            change = "{} patched at token " + f"{edit.position} (in this text only)"
        reading.title = ", ".join([self.name, *step, *map(change.format, edit.vectors)])
        reading.page = lambda reading: in_frame(lambda: run_page(reading.title, recording_of([(self, reading)])))
        return reading

    def stream(
        self,
        prompt: str,
        max_new_tokens: int,
        *,
        num_texts: int = 1,
        seed: int | None = None,
        **options: Any,
    ) -> Iterator[Tensor]:
        """Continues a prompt `num_texts` times, and yields each next token of these texts, (num_texts,), once drawn.

        An empty prompt begins a document. The first text is drawn with this seed, the next with the seed after it, and
        so on: the same seed draws the same tokens. None uses torch's own generator.
        For other options, such as temperature, see `model.generation.stream`.
        """
        check(isinstance(prompt, str), "prompt", "a text", prompt)
        check_range("num_texts", num_texts, 1, whole=True)
        check_range("seed", seed, 0, whole=True)
        tokens = self.tokenizer.encode(prompt) or [self.tokenizer.end_of_text]
        prompts = torch.tensor([tokens], device=self.device).repeat(num_texts, 1)
        if seed is not None:
            seeds = range(seed, seed + num_texts)
            options["generator"] = [torch.Generator(self.device).manual_seed(one) for one in seeds]
        options = {"stop_token": self.tokenizer.end_of_text, **options}
        return stream(self.gpt, prompts, max_new_tokens, **options)

    def write(self, prompt: str = "", max_new_tokens: int = 50, *, seed: int | None = None, **options: Any) -> str:
        """Continues a prompt once and returns the new text. Other options as in `stream`."""
        stop = options.setdefault("stop_token", self.tokenizer.end_of_text)
        written = torch.cat([*self.stream(prompt, max_new_tokens, num_texts=1, seed=seed, **options)])
        own_text = takewhile(lambda token: token != stop, written.tolist())
        return self.tokenizer.decode([*own_text])

    def means(self, tokens: Tensor) -> dict[str, Tensor]:
        """Returns each part's mean output over the recorded windows of text; if there are none, over `tokens` (T,)."""
        recorded = self.recorded_or_none()
        return part_means(self.gpt, recorded.windows["text"] if recorded else self.texts(tokens))

    def repeated_probe(self) -> Texts:
        """Returns random tokens that repeat themselves: the run's repeated probe if it recorded one, else a new one."""
        if recorded := self.recorded_or_none():
            return recorded.probes["repeated"]
        period = min(PERIOD, (self.gpt.config.context_length - 1) // 2)
        drawn = repeated_tokens(range(self.tokenizer.vocab_size), period, first=self.tokenizer.end_of_text)
        return self.texts(drawn, "repeated")

    def page(self) -> str:
        """Returns the HTML of a page that holds the model and runs it on what a user types.

        The page opens with the recorded text. Raises a `Mistake` if nothing was recorded.
        """
        return run_page(self.name, self.recorded, models=[(self.step or 0, self.gpt)], tokenizer=self.tokenizer)

    def experiments(self) -> tuple[list[Effect], dict[str, str]]:
        """Returns the experiments that hold for the model, strongest first; for the others, by title, why they do not.

        All are tried on the recorded text. Raises a `Mistake` if nothing was recorded.
        """
        return try_all(self.gpt, self.tokenizer, self.recorded.windows["text"])

    def _repr_html_(self) -> str:
        return in_frame(self.page)


def recording_of(read_by: Sequence[tuple[Glass, Reading]]) -> Recording:
    """Makes a recording of one text, with a snapshot of each model that read it, in the order of their steps.

    If training recorded losses without each part at a model's step, on many other texts, its snapshot has them too,
    unless parts were replaced in the reading.

    Raises a `Mistake` if a model no longer predicts what its reading says.
    """
    first, text = read_by[0]
    probes = {"text": first.texts(text.ids), "repeated": first.repeated_probe()}
    recorded = first.recorded_or_none()
    recording = Recording(probes, recorded.windows if recorded else {}, name=first.name, is_prompt=True)
    for glass, reading in read_by:
        snapshot = take_snapshot(
            glass.gpt,
            glass.step or 0,
            recording,
            glass.tokenizer.label,
            edit=reading.edit,
        )
        if snapshot.readings["text"].figures != reading.figures:
            raise Mistake("the model no longer predicts what this reading says, so read the text again to see its page")
        if recorded and snapshot.step in recorded.steps and not reading.edit.vectors:
            in_training = recorded.at(snapshot.step)
            snapshot = replace(snapshot, loss=in_training.loss, ablation=in_training.ablation)
        recording.append(snapshot)
    return recording


def in_frame(page: Callable[[], str]) -> str:
    """Returns HTML that shows a page in a notebook cell, apart from other cells and offline, or a `Mistake`."""
    try:
        source = html.escape(page())
    except Mistake as error:
        return f"<p>{html.escape(str(error))}</p>"
    style = f'width="100%" height="{HEIGHT}" frameborder="0" sandbox="allow-scripts allow-downloads"'
    return f'<iframe srcdoc="{source}" {style}></iframe>'
