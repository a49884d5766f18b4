"""What was measured of one model while it was trained, step by step, or of a prompt at one step or several.

A `Recording` is a run's attention folder, or in memory only. A folder's files are written atomically, and checked when
they are read:

    probe.json           the probes and the windows (see `Texts`) and the tokenizer's fingerprint
    step_XXXXXXXX.npz    the maps of a step: for each probe (L, H, T, T) in float16
    step_XXXXXXXX.json   for each probe what the model predicted and why, see `Reading.figures`
    scores.jsonl         one line a step: all else that a `Snapshot` has, each score as L lists of H numbers

A step counts once its line is in scores.jsonl, which is written last. Numbers that are not finite are null.

Shapes: L layers, H heads, T tokens.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.files import atomic_file, content_of, write_atomically
from model.gpt import GPT
from model.inspection.heads import SCORES, HeadTable, measure_heads
from model.inspection.maps import Checks
from model.inspection.parts import Vectors, in_float32, measure_losses, replaced
from model.inspection.reading import Reading, RecordedReading, as_json, read
from model.inspection.texts import Label, Texts
from model.mistakes import Missing, Mistake, file_errors, parsing

VERSION = 3  # of the folder's files
SCORE_DIGITS = ".5f"  # decimals in scores.jsonl
LEFT_OUT = ": remove it to see the other steps"  # a damaged file of one step
FILES = (".npz", ".json")  # of a step


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What was measured at one step.

    checks: of the reading of the text. heads: what the heads do over many windows.
    loss: nats per token on the windows, by "text" and "repeated". None at most steps, as the next.
    ablation: for the same, by the name of each part, how the loss changes without it: a `Change`, or its two numbers.
    readings: of each probe what is recorded. None if that is to be read from the recording's folder.
    """

    step: int
    checks: Checks
    heads: HeadTable
    loss: dict[str, float] | None = None
    ablation: Mapping[str, Mapping[str, Sequence[float]]] | None = None
    readings: Mapping[str, RecordedReading] | None = None

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """By the names of `heads.SCORES`, (L, H) in [0, 1]: means over many windows; NaN for a model that diverged."""
        return self.heads.scores

    @property
    def shape(self) -> tuple[int, int]:
        """(L, H)"""
        return self.heads.reach.shape

    @property
    def metrics(self) -> dict[str, float]:
        """What is logged: attention/fidelity, attention/causality, and attention/SCORE/layer_N, a layer's best head."""
        logged = {"attention/fidelity": self.checks.fidelity, "attention/causality": self.checks.causality}
        for name, score in self.scores.items():
            for layer, heads in enumerate(score):
                logged[f"attention/{name}/layer_{layer}"] = float(heads.max())
        return logged

    def to_json(self) -> dict[str, Any]:
        """As JSON has it, without the readings; figures rounded to SCORE_DIGITS."""
        measured = vars(self.heads) | {"loss": self.loss, "ablation": self.ablation}
        checks = as_json(asdict(self.checks), ".6g")
        return {"step": self.step, "checks": checks, **as_json(measured, SCORE_DIGITS)}

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Snapshot:
        """Of a line of scores.jsonl. Raises any error for other fields than those.

        A score that has been added to SCORES since was not measured then: it is NaN.
        """
        numbers = _numbers(line)
        unknown = np.full_like(numbers["reach"], np.nan)
        for name in SCORES.keys() - numbers["scores"].keys():
            numbers["scores"][name] = numbers["errors"][name] = unknown
            numbers["formed"][name] = unknown > 0
            numbers["uniform"][name] = math.nan
            numbers["counts"][name] = 0
        measured = {name: numbers[name] for name in ("loss", "ablation") if line[name] is not None}
        checks = _known(Checks, numbers["checks"])
        return cls(int(line["step"]), checks, _known(HeadTable, numbers), **measured)


@dataclass(eq=False)
class Recording:
    """The snapshots of one model, in the order of their steps.

    probes: short texts of one row, whose maps are shown: "text", and "repeated", random tokens that come twice, where
        heads show that look back for repetitions.
    windows: by the same names, the texts on which heads and losses are measured; the probes if there are none.
    tokenizer: fingerprint of the tokenizer that made the ids.
    name: what pages call the model.
    folder: in which snapshots are kept; None keeps them in memory.
    is_prompt: whether the text is a person's own, which they want to see first.
    """

    probes: Mapping[str, Texts]
    windows: Mapping[str, Texts] = field(default_factory=dict)
    tokenizer: str = ""
    name: str = ""
    folder: Path | None = None
    is_prompt: bool = False
    snapshots: list[Snapshot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.windows = self.windows or self.probes

    @classmethod
    def open(cls, folder: Path, name: str = "") -> Recording:
        """The one in an existing folder. Raises a `Mistake` for none, a damaged file, or one of an earlier version."""
        folder = Path(folder)
        path = folder / "probe.json"
        scores = folder / "scores.jsonl"
        if not path.is_file():
            raise Missing(f"{folder} holds no recorded maps: train with --attention.enabled true")
        content = content_of(path)
        with parsing(path):
            about = json.loads(content)
            version = about.get("version")
        if version != VERSION:
            words = f"look at the run's model with --checkpoint {folder.parent} --prompt TEXT, or train it again"
            raise Mistake(f"{folder} was recorded by another version of GlassGPT: {words}")
        with parsing(path):
            texts = {}
            for one in ("probes", "windows"):
                texts[one] = {kind: Texts.from_json(kind, stored) for kind, stored in about[one].items()}
            recording = cls(texts["probes"], texts["windows"], str(about["tokenizer"]), name, folder)
        for number, line in enumerate(content_of(scores).splitlines(), start=1):
            with parsing(f"{scores}, line {number}"):
                recording.snapshots.append(Snapshot.from_json(json.loads(line)))
        return recording

    @classmethod
    def resume(
        cls,
        folder: Path,
        probes: Mapping[str, Texts],
        windows: Mapping[str, Texts],
        tokenizer: str,
    ) -> Recording:
        """The one in the folder, or a new one, whose folder is created with the first snapshot.

        A `Mistake` if it is of other texts.
        """
        new = cls(probes, windows, tokenizer, folder=Path(folder))
        if not (new.folder / "probe.json").exists():
            return new
        found = cls.open(folder)
        if found.texts() != new.texts():
            raise Mistake(
                f"{folder} holds maps of another probe text or tokenizer, which cannot be continued; "
                "use a new run folder, or the data and the tokenizer of this one"
            )
        return found

    def texts(self) -> dict[str, Any]:
        """What probe.json holds."""
        return {
            "version": VERSION,
            "tokenizer": self.tokenizer,
            "probes": {kind: texts.to_json() for kind, texts in self.probes.items()},
            "windows": {kind: texts.to_json() for kind, texts in self.windows.items()},
        }

    @property
    def steps(self) -> list[int]:
        return [snapshot.step for snapshot in self.snapshots]

    @property
    def mapped(self) -> list[int]:
        """The steps whose maps are there; a person may have deleted the files of others."""
        found = []
        for one in self.snapshots:
            if one.readings or self.path(one.step).exists():
                found.append(one.step)
        return found

    @property
    def formation(self) -> dict[str, dict[str, int]]:
        """For each score the heads that have formed: "LAYER.HEAD" -> the step from which on they follow its pattern.

        They do at every later snapshot too.
        """
        formed: dict[str, dict[str, int]] = {name: {} for name in SCORES}
        for snapshot in self.snapshots:
            for name, since in formed.items():
                heads = [f"{layer}.{head}" for layer, head in np.argwhere(snapshot.heads.formed[name])]
                formed[name] = {head: since.get(head, snapshot.step) for head in heads}
        return formed

    @property
    def problems(self) -> dict[str, str]:
        """What is out of bounds, by the name of each check that fails: a sentence about the last snapshot that does."""
        found: dict[str, str] = {}
        for one in self.snapshots:
            found |= {name: f"At step {one.step} {problem}." for name, problem in one.checks.problems.items()}
        return found

    def at(self, step: int) -> Snapshot:
        return next(snapshot for snapshot in self.snapshots if snapshot.step == step)

    def path(self, step: int, suffix: str = ".npz") -> Path:
        """The file of a step's maps, or in ".json" what was predicted, whether it exists or not."""
        return Path(self.folder or "", f"step_{step:08d}{suffix}")

    def maps(self, step: int) -> dict[str, np.ndarray]:
        """Each probe's maps at a step, (L, H, T, T). Raises as `readings`."""
        return {kind: one.maps.numpy() for kind, one in self.readings(step).items()}

    def readings(self, step: int) -> Mapping[str, RecordedReading]:
        """What the model made of each probe at a step. Raises a `Mistake` if a file has been removed or is damaged."""
        snapshot = self.at(step)
        if snapshot.readings is not None:
            return snapshot.readings
        path = self.path(step)
        with file_errors(path):
            content = io.BytesIO(path.read_bytes())
        with parsing(path, LEFT_OUT), np.load(content) as file:
            maps = {kind: torch.from_numpy(file[kind]).float() for kind in self.probes}
            for kind, probe in self.probes.items():
                shape = (*snapshot.shape, probe.length, probe.length)
                if maps[kind].shape != shape:
                    raise ValueError(f"its {kind} maps are {tuple(maps[kind].shape)}, not {shape}")
        path = self.path(step, ".json")
        with file_errors(path):
            text = path.read_bytes()
        with parsing(path, LEFT_OUT):
            figures = json.loads(text)
            readings = {}
            for kind, probe in self.probes.items():
                readings[kind] = RecordedReading(probe.labels[0], maps[kind], figures[kind])
        return readings

    def append(self, snapshot: Snapshot) -> None:
        """Adds a snapshot, and removes those of the same step or later, which an earlier, longer run has left.

        One without readings keeps those of its step, whose line is written anew.
        """
        outdated = [step for step in self.steps if step > snapshot.step]
        self.snapshots = [one for one in self.snapshots if one.step < snapshot.step]
        if self.folder is None:
            self.snapshots.append(snapshot)
            return
        if not (self.folder / "probe.json").exists():
            write_atomically(self.folder / "probe.json", _as_bytes(self.texts()))
        if snapshot.readings is not None:
            maps: dict[str, Any] = {}
            figures = {}
            for kind, one in snapshot.readings.items():
                maps[kind] = one.maps.half().numpy()
                figures[kind] = one.figures
            with atomic_file(self.path(snapshot.step)) as file:
                np.savez_compressed(file, **maps)
            write_atomically(self.path(snapshot.step, ".json"), _as_bytes(figures))
        scores = self.folder / "scores.jsonl"
        lines = content_of(scores).splitlines()[: len(self.snapshots)]
        lines.append(_as_bytes(snapshot.to_json()))
        write_atomically(scores, b"\n".join([*lines, b""]))
        self.snapshots.append(replace(snapshot, readings=None))
        for step in outdated:
            for suffix in FILES:
                self.path(step, suffix).unlink(missing_ok=True)


def take_snapshot(
    gpt: GPT,
    step: int,
    recording: Recording,
    label: Label = str,
    *,
    text: Reading | None = None,
    with_losses: bool = False,
    autocast: torch.dtype | None = None,
) -> Snapshot:
    """Measures a model on the probes and windows of a recording.

    Args:
        text: a reading of the probe "text", whose model is measured: with the parts that it replaced. What was
            replaced at one token only is so in its own text only.
        with_losses: measure what the model loses without each part too, which takes many times as long as all else.
        autocast: see `read`.
    """
    edits: Vectors = {}
    if text is None:
        text = read(gpt, recording.probes["text"], autocast=autocast, label=label)
    elif text.position is None:
        edits = text.replacing
    repeated = read(gpt, recording.probes["repeated"], replacing=edits, autocast=autocast, label=label)
    exact = in_float32(gpt)
    with replaced(exact, edits):
        heads = measure_heads(exact, recording.windows)
        loss = ablation = None
        if with_losses:
            loss, ablation = measure_losses(exact, recording.windows)
    readings = {"text": text.recorded(), "repeated": repeated.recorded()}
    return Snapshot(step, text.checks, heads, loss, ablation, readings)


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _known(kind: Any, values: Mapping[str, Any]) -> Any:
    """Made of those values that it has fields for."""
    return kind(**{one.name: values[one.name] for one in fields(kind)})


def _numbers(value: Any) -> Any:
    """The inverse of `as_json`: lists as arrays, None as NaN."""
    if isinstance(value, dict):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return np.array([_numbers(item) for item in value])
    return math.nan if value is None else value
