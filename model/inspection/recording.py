"""Measurements of one model at several training steps: of the probes that training records, or of a user's prompt.

A `Recording` is kept in the attention folder of a run, or in memory only. Files are checked when they are read. All
but scores.jsonl are written atomically:

    probe.json           the probes, the windows, the film's words (see `Texts`), and the tokenizer's fingerprint
    step_XXXXXXXX.npz    for each probe the maps of a step, (L, H, T, T) in float16; "figures", JSON of what the model
                         predicted in each probe and why (see `Reading.figures`); and the film's `Frame`
    scores.jsonl         one line for each step: the rest of a `Snapshot`, each score as L lists of H numbers

A step counts once its whole line is in scores.jsonl, which is written last. Numbers that are not finite are null.

Shapes: L layers, H heads, T tokens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.files import PROBE_FILE, SCORES_FILE, append, atomic_file, content_of, whole_lines, write_atomically
from model.gpt import GPT
from model.inspection.film import Film, Frame, take_frame, tell_film
from model.inspection.formation import formation
from model.inspection.heads import SCORES, HeadTable, measure_heads
from model.inspection.maps import Checks, change_by_cache
from model.inspection.parts import NO_EDIT, Edit, measure_losses, replaced
from model.inspection.passes import in_float32
from model.inspection.reading import RecordedReading, as_json, read
from model.inspection.texts import Label, Texts
from model.mistakes import Missing, Mistake, listed, parsing

VERSION = 5  # of the folder's file format
SCORE_DIGITS = ".5f"  # five decimals in scores.jsonl
CHECK_DIGITS = ".6g"  # six significant digits, because a difference may be tiny
LEFT_OUT = ": remove it to see the other steps"  # advice for a damaged file of one step
FILM = "film_"  # begins the names of a frame's arrays in a file

Models = Sequence[tuple[int, GPT]]  # (step, model), in ascending order of the steps


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What was measured at one step.

    checks: whether the maps of the probe "text" can be trusted.
    heads: what the heads do, measured on many windows.
    loss: nats per token on the "text" and "repeated" windows. None at most steps, as `ablation` is.
    ablation: for the same windows, how the loss changes without each part, by name: a `Change`, or its two numbers.
    readings: what is recorded of each probe. None if it is on disk only, in the recording's folder.
    frame: of the recording's film; None if it has none, or if it is on disk only.
    packed: the blocks of this snapshot in the last page; empty if it is not in it. Each block takes memory.
    """

    step: int
    checks: Checks
    heads: HeadTable
    loss: dict[str, float] | None = None
    ablation: Mapping[str, Mapping[str, Sequence[float]]] | None = None
    readings: Mapping[str, RecordedReading] | None = None
    frame: Frame | None = None
    packed: list[str] = field(default_factory=list)

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """The mean of each score in `heads.SCORES` over many windows, (L, H) in [0, 1]; NaN if the model diverged."""
        return self.heads.scores

    @property
    def shape(self) -> tuple[int, int]:
        """(L, H)"""
        return self.heads.reach.shape

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics to log: attention/fidelity, attention/causality and attention/SCORE/layer_N.

        The last is the largest score of a head in layer N.
        """
        metrics = {
            "attention/fidelity": self.checks.fidelity,
            "attention/causality": self.checks.causality,
        }
        for name, score in self.scores.items():
            for layer, heads in enumerate(score):
                metrics[f"attention/{name}/layer_{layer}"] = float(heads.max())
        return metrics

    def to_json(self) -> dict[str, Any]:
        """Returns a line of scores.jsonl: all but the readings, rounded to CHECK_DIGITS and SCORE_DIGITS."""
        measured = vars(self.heads) | {"loss": self.loss, "ablation": self.ablation}
        checks = as_json(vars(self.checks), CHECK_DIGITS)
        return {"step": self.step, "checks": checks, **as_json(measured, SCORE_DIGITS)}

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> Snapshot:
        """The inverse of `to_json`. May raise any error for other input.

        A score that was added to SCORES after the line was written is NaN, as if no window could show it.
        """
        numbers = _numbers(line)
        unknown = np.full_like(numbers["reach"], np.nan)
        for name in SCORES.keys() - numbers["scores"].keys():
            numbers["scores"][name] = numbers["errors"][name] = unknown
            numbers["formed"][name] = unknown > 0
            numbers["uniform"][name] = 0.0
            numbers["counts"][name] = 0
        return cls(
            int(line["step"]),
            Checks(**numbers["checks"]),
            HeadTable(**{name: numbers[name] for name in HeadTable.__dataclass_fields__}),
            line["loss"] and numbers["loss"],
            line["ablation"] and numbers["ablation"],
        )


@dataclass(eq=False)
class Recording:
    """The snapshots of one model, in the order of their steps.

    probes: one short text of each kind, whose maps are shown. "text" is ordinary text. "repeated" is random tokens that
        occur twice: on them heads show whether they look back for repetitions.
    windows: the texts of each kind on which heads and losses are measured; the probes if empty.
    tokenizer: fingerprint of the tokenizer that made the ids.
    words: the texts of the film, see `film_texts`; None for no film.
    name: the name of the model on pages.
    folder: where snapshots are stored; None keeps them in memory.
    is_prompt: whether the probe "text" is a user's prompt. Pages then open with it.
    """

    probes: Mapping[str, Texts]
    windows: Mapping[str, Texts] = field(default_factory=dict)
    tokenizer: str = ""
    words: Texts | None = None
    name: str = ""
    folder: Path | None = None
    is_prompt: bool = False
    snapshots: list[Snapshot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.windows = self.windows or self.probes

    @classmethod
    def open(cls, folder: Path, name: str = "") -> Recording:
        """Opens the recording in a folder. Raises a `Mistake` if there is none, or a damaged or outdated file."""
        path = folder / PROBE_FILE
        scores = folder / SCORES_FILE
        if not path.is_file():
            raise Missing(f"{folder} holds no recorded maps: train with --recording.enabled true")
        content = content_of(path)
        with parsing(path):
            stored = json.loads(content)
            version = stored.get("version")
        if version != VERSION:
            raise Mistake(
                f"{folder} was recorded by another version of GlassGPT: train the run again, or look at its model with "
                f"--checkpoint {folder.parent} --prompt TEXT"
            )
        with parsing(path):
            recording = cls(
                _texts(stored["probes"]),
                _texts(stored["windows"]),
                str(stored["tokenizer"]),
                stored["words"] and Texts.from_json("text", stored["words"]),
                name,
                folder,
            )
        for number, line in enumerate(whole_lines(scores).splitlines(), start=1):
            with parsing(f"{scores}, line {number}"):
                recording.snapshots.append(Snapshot.from_json(json.loads(line)))
        return recording

    def resumed(self, step: int) -> Recording:
        """Returns the recording in the folder, up to a step; or this one, whose files come with its first snapshot.

        Raises a `Mistake` if the recording in the folder has other texts or another tokenizer.
        """
        if not (self.folder / PROBE_FILE).exists():
            return self
        existing = self.open(self.folder)
        if existing.header() != self.header():
            raise Mistake(
                f"{self.folder} holds maps of other texts: the text, recording.probe_text or an option of data has "
                "changed, so use what this run began with, write --recording.enabled false, or start a new run"
            )
        existing.snapshots = [snapshot for snapshot in existing.snapshots if snapshot.step <= step]
        return existing

    def header(self) -> dict[str, Any]:
        """Returns the content of probe.json."""
        return {
            "version": VERSION,
            "tokenizer": self.tokenizer,
            "probes": {kind: texts.to_json() for kind, texts in self.probes.items()},
            "windows": {kind: texts.to_json() for kind, texts in self.windows.items()},
            "words": self.words and self.words.to_json(),
        }

    @property
    def steps(self) -> list[int]:
        return [snapshot.step for snapshot in self.snapshots]

    @property
    def mapped(self) -> list[int]:
        """The steps whose maps exist. A user may have deleted the files of other steps."""
        return [each.step for each in self.snapshots if each.readings or self.path(each.step).exists()]

    @property
    def formation(self) -> dict[str, dict[str, int]]:
        """See `formation`."""
        return formation((snapshot.step, snapshot.heads.formed) for snapshot in self.snapshots)

    @property
    def film(self) -> Film | None:
        """The film, as the last step with maps shows it; None if the recording has no words or no maps."""
        return tell_film(self.frame(self.mapped[-1])) if self.words and self.mapped else None

    @property
    def problems(self) -> dict[str, str]:
        """What is out of bounds: for each check that fails, a sentence about the last snapshot at which it does."""
        problems = {}
        for snapshot in self.snapshots:
            for name, problem in snapshot.checks.problems.items():
                problems[name] = f"At step {snapshot.step} {problem}."
        return problems

    def at(self, step: int) -> Snapshot:
        """Returns the snapshot of a step. Raises a `Mistake` if the step is not recorded."""
        for snapshot in self.snapshots:
            if snapshot.step == step:
                return snapshot
        raise Missing(f"step {step} is not recorded: the steps are {listed([*map(str, self.steps)])}")

    def path(self, step: int) -> Path:
        """Returns the path of a step's maps and figures. The file need not exist."""
        return Path(self.folder or "", f"step_{step:08d}.npz")

    def maps(self, step: int) -> dict[str, np.ndarray]:
        """Returns the maps of each probe at a step, (L, H, T, T). Raises the same errors as `readings`."""
        return {kind: reading.maps.numpy() for kind, reading in self.readings(step).items()}

    @contextmanager
    def _arrays(self, step: int) -> Iterator[Mapping[str, np.ndarray]]:
        """Opens a step's file. Errors in the block are taken for damage of the file."""
        path = self.path(step)
        with parsing(path, LEFT_OUT), np.load(path) as file:
            yield file

    def readings(self, step: int) -> Mapping[str, RecordedReading]:
        """Returns what is recorded of each probe at a step. Raises a `Mistake` if its file is missing or damaged."""
        snapshot = self.at(step)
        if snapshot.readings is not None:
            return snapshot.readings
        readings = {}
        with self._arrays(step) as file:
            figures = json.loads(file["figures"].item())
            for kind, probe in self.probes.items():
                maps = _from_array(file[kind])
                shape = (*snapshot.shape, probe.length, probe.length)
                if maps.shape != shape:
                    raise ValueError(f"its {kind} maps are {tuple(maps.shape)}, not {shape}")
                readings[kind] = RecordedReading(probe.labels[0], maps, figures[kind])
        return readings

    def frame(self, step: int) -> Frame:
        """Returns the frame of the film at a step. Raises a `Mistake` if it is missing or its file is damaged."""
        snapshot = self.at(step)
        if snapshot.frame is not None:
            return snapshot.frame
        with self._arrays(step) as file:
            return Frame(**{name: _from_array(file[FILM + name]) for name in Frame.__dataclass_fields__})

    def append(self, snapshot: Snapshot) -> None:
        """Adds a snapshot of a later step than all others."""
        if self.folder is None:
            self.snapshots.append(snapshot)
            return
        if not (self.folder / PROBE_FILE).exists():
            write_atomically(self.folder / PROBE_FILE, _as_json(self.header()).encode())
        figures = {kind: reading.figures for kind, reading in snapshot.readings.items()}
        arrays: dict[str, Any] = {kind: _as_array(reading.maps) for kind, reading in snapshot.readings.items()}
        arrays["figures"] = np.array(_as_json(figures).encode())
        if snapshot.frame is not None:
            arrays |= {FILM + name: _as_array(values) for name, values in vars(snapshot.frame).items()}
        with atomic_file(self.path(snapshot.step)) as file:
            np.savez_compressed(file, **arrays)
        append(self.folder / SCORES_FILE, _as_json(snapshot.to_json()) + "\n")
        self.snapshots.append(replace(snapshot, readings=None, frame=None))

    def with_losses(self, models: Models, label: Label = str) -> Recording:
        """Returns the recording with a newly measured snapshot for each model's step that lacks maps or losses."""
        snapshots = {snapshot.step: snapshot for snapshot in self.snapshots}
        for step, gpt in models:
            if step not in self.mapped or not snapshots[step].ablation:
                snapshots[step] = take_snapshot(gpt, step, self, label, with_losses=True)
        return replace(self, snapshots=[snapshots[step] for step in sorted(snapshots)])


def take_snapshot(
    gpt: GPT,
    step: int,
    recording: Recording,
    label: Label = str,
    *,
    edit: Edit = NO_EDIT,
    with_losses: bool = False,
    autocast: torch.dtype | None = None,
) -> Snapshot:
    """Measures a model on the probes and windows of a recording.

    Args:
        edit: as in `read`. Parts are replaced in all measurements; those that are replaced at a single token, only in
            the probe "text".
        with_losses: also measure how much the loss rises without each part. This takes many times as long as the rest.
        label, autocast: see `read`.
    """
    everywhere = edit if edit.position is None else NO_EDIT
    read_probe = partial(read, gpt, autocast=autocast, label=label)
    text = read_probe(recording.probes["text"], edit=edit)
    repeated = read_probe(recording.probes["repeated"], edit=everywhere)
    exact = in_float32(gpt)
    with replaced(exact, *everywhere):
        heads = measure_heads(exact, recording.windows)
        loss, ablation = measure_losses(exact, recording.windows) if with_losses else (None, None)
        frame = take_frame(exact, recording.words, label) if recording.words else None
    readings = {"text": text.recorded(), "repeated": repeated.recorded()}
    checks = replace(text.checks, cached=change_by_cache(exact, recording.probes["text"]))
    return Snapshot(step, checks, heads, loss, ablation, readings, frame)


def _texts(stored: Mapping[Any, Any]) -> dict[str, Texts]:
    return {kind: Texts.from_json(kind, texts) for kind, texts in stored.items()}


def _as_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _as_array(values: Any) -> np.ndarray:
    """Converts a tensor or array for a file: float32 becomes float16."""
    array = np.asarray(values)
    return array.astype(np.float16) if array.dtype == np.float32 else array


def _from_array(array: np.ndarray) -> Any:
    """The inverse of `_as_array`: returns a tensor; of texts, the array."""
    if array.dtype.kind == "U":
        return array
    tensor = torch.from_numpy(array)
    return tensor.float() if tensor.is_floating_point() else tensor


def _numbers(value: Any) -> Any:
    """The inverse of `as_json`: lists become arrays, and None becomes NaN."""
    if isinstance(value, dict):
        return {name: _numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return np.array([_numbers(item) for item in value])
    return math.nan if value is None else value
