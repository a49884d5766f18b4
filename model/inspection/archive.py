"""A run's attention folder on disk. Files are written atomically and checked when they are read.

    probe.json           the probes and the windows (token ids and their texts) and the tokenizer's fingerprint
    step_XXXXXXXX.npz    one snapshot: for each probe its maps (L, H, T, T) in float16
    step_XXXXXXXX.png    their picture, of some snapshots (see `model/runs/recording.py`)
    step_XXXXXXXX.json   its details, what the model predicted and why, to 4 significant digits (see below)
    scores.jsonl         one line a snapshot: step, precision, fidelity, causality, checks, each score as L lists of H
                         numbers, habits, loss, ablation and copying (see `Snapshot`)

A snapshot counts once its line is in scores.jsonl, which is written last. Numbers that are not finite are null.

The details (L layers, H heads, T tokens, P parts; column t is the position that reads token t and predicts token t + 1,
so what needs the true next token is null in the last):

    parts        P names, of what `attribution` tells apart
    sublayers    2L + 1 names: embeddings, attention 0, feed-forward 0, attention 1, ...
    tokens       the text of every id that occurs below
    probes       for "text" and "repeated": bits, rank, top, top_probability, lens (see `lens.predictions`);
                 attribution (P, T), to the logit of the true next token, and attribution_error, how far their sum is
                 from it (see `attribution`); value_norms (L, H, T), by which weights are multiplied to see what they
                 move
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from model.checks import Mistake
from model.files import parsing, write_atomically
from model.inspection.heads import SCORES
from model.inspection.probes import Probe, Probes
from model.inspection.survey import Habits, windows_of

SCORE_DIGITS = 5  # decimals in scores.jsonl
MEASURED = ("loss", "ablation", "copying")
DETAILS_DIGITS = ".4g"  # 4 significant digits
LEFT_OUT = ": remove it to see the other steps"  # a damaged file of one step
NO_CHECKS = {"fidelity": [], "future": [], "outside": [], "random": [], "replaced": 0, "noise": 0.0, "logits": 1.0}
HABIT_ARRAYS = ("spread", "halves", "distance", "distance_halves", "reach")


@dataclass(frozen=True)
class Snapshot:
    """What one snapshot measured.

    precision: the type that attention was computed in, such as "bfloat16", which bounds the fidelity to be expected.
    fidelity, causality, checks: as in `recorder`; NaN for a model that diverged.
    scores: by the names of `heads.SCORES`, (L, H) in [0, 1]: means over many windows, see `survey`; NaN for a model
        that diverged (on some processors 0 in texts of under 16 tokens, whose NaN PyTorch's kernel takes for masked).
    habits: what else the windows say about the heads.
    loss: nats per token on the probe "text", and on the second half of "repeated". None where they were not measured,
        as the next two: a page that holds the model measures them itself.
    ablation: by probe and by the name of each part, the change of that loss when the part is replaced by its mean.
    copying: (L, H), see `copying.copying_scores`.
    """

    step: int
    precision: str
    fidelity: float
    causality: float
    scores: dict[str, np.ndarray]
    habits: Habits
    loss: dict[str, float] | None = None
    ablation: dict[str, dict[str, float]] | None = None
    copying: np.ndarray | None = None
    checks: dict[str, Any] = field(default_factory=NO_CHECKS.copy)

    @property
    def shape(self) -> tuple[int, int]:
        """(L, H)"""
        return next(iter(self.scores.values())).shape

    def to_json(self) -> dict:
        """As JSON has it: scores and measurements rounded to SCORE_DIGITS decimals, None for what is not finite.

        The habits are left out: pages do not show them, but the sentences that `describe` makes of them.
        """
        errors = as_json({"fidelity": self.fidelity, "causality": self.causality}, ".17g")  # exactly
        errors["checks"] = as_json(self.checks, ".6g")
        measured = {name: getattr(self, name) for name in MEASURED if getattr(self, name) is not None}
        numbers = as_json({"scores": self.scores, **measured}, f".{SCORE_DIGITS}f")
        return {"step": self.step, "precision": self.precision, **errors, **numbers}

    @classmethod
    def from_json(cls, fields: dict) -> Snapshot:
        """Of a line of scores.jsonl, which has the habits too. Raises any error for other fields than those."""
        scores, checks = _arrays({name: fields["scores"][name] for name in SCORES}), _arrays(fields["checks"])
        measured = {name: _arrays(fields[name]) for name in ("fidelity", "causality", *MEASURED)}
        shape = np.stack([*scores.values(), measured["copying"]]).shape[1:]  # refuses arrays of several shapes
        heads = {f"head {layer}.{head}" for layer, head in np.ndindex(shape)}
        for changes in measured["ablation"].values():
            named = {part for part in changes if part.startswith("head ")}
            if not heads or named != heads or not all(isinstance(one, float) for one in changes.values()):
                raise ValueError("its measurements are not of the same layers and heads")
        habits = Habits(**fields["habits"] | {name: _arrays(fields["habits"][name]) for name in HABIT_ARRAYS})
        checks = NO_CHECKS | checks | {"replaced": int(checks["replaced"])}
        step, precision = int(fields["step"]), str(fields["precision"])
        return cls(step, precision, scores=scores, habits=habits, checks=checks, **measured)


class AttentionArchive:
    """The snapshots of one run, in the order of their steps.

    Args:
        folder: created when the first snapshot is added. An existing folder is resumed.
        probes: by name: "text", and "repeated", on which heads show that look back for repetitions.
        tokenizer: fingerprint of the tokenizer that made the ids.
        windows: by the same names, the texts on which heads are measured; the probes if None.

    Raises:
        ValueError: if the folder holds snapshots of other probes, or damaged files.
    """

    def __init__(
        self, folder: Path, probes: Probes, tokenizer: str, windows: Mapping[str, Sequence[Probe]] | None = None
    ) -> None:
        self.folder = Path(folder)
        self.probes = dict(probes)
        self.windows = windows_of(probes if windows is None else windows)
        self.tokenizer = tokenizer
        self.snapshots: list[Snapshot] = []
        if (self.folder / "probe.json").exists():
            if _read_probes(self.folder / "probe.json") != (self.probes, tokenizer, self._texts()):
                raise Mistake(
                    f"{self.folder} holds maps of another probe text or tokenizer, which cannot be continued; "
                    "use a new run folder, or the data and the tokenizer of this one"
                )
            if (self.folder / "scores.jsonl").exists():  # it does not if the first snapshot was interrupted
                self.snapshots = _read_snapshots(self.folder / "scores.jsonl")

    @classmethod
    def open(cls, folder: Path) -> AttentionArchive:
        """The archive in an existing folder. Raises FileNotFoundError for none, ValueError for a damaged file."""
        return cls(folder, *_read_probes(Path(folder) / "probe.json"))

    def _texts(self) -> dict[str, list[Probe]]:
        return {name: list(windows.texts) for name, windows in self.windows.items()}

    @property
    def steps(self) -> list[int]:
        return [snapshot.step for snapshot in self.snapshots]

    def path(self, step: int, suffix: str = ".npz") -> Path:
        """The file of a step's maps, or its details in ".json", whether it exists or not."""
        return self.folder / f"step_{step:08d}{suffix}"

    def details(self, step: int) -> dict:
        """What the model predicted at a step, and why. Raises as `maps`."""
        path, content = self.path(step, ".json"), self._content(step, ".json")
        with parsing(path, LEFT_OUT):
            details = json.loads(content)
            for name, measured in details["probes"].items():
                T = len(self.probes[name].tokens)
                shapes = {"bits": (T,), "rank": (T,), "attribution_error": ()}
                shapes |= dict.fromkeys(("top", "top_probability"), (T, len(measured["top"][0])))
                shapes |= dict.fromkeys(("token", "probability", "divergence"), (len(details["sublayers"]), T))
                shapes |= {"attribution": (len(details["parts"]), T), "value_norms": (*self.snapshots[0].shape, T)}
                fields = measured | measured["lens"]
                if any(np.array(fields[field], float).shape != shape for field, shape in shapes.items()):
                    raise ValueError(f"its measurements of the probe {name} are not those of {T} tokens")
            return details

    def maps(self, step: int) -> dict[str, np.ndarray]:
        """Each probe's maps at a step, (L, H, T, T) in float16.

        Raises FileNotFoundError if there is no such file, ValueError if it is damaged or of other probes.
        """
        content, maps = io.BytesIO(self._content(step, ".npz")), {}
        with parsing(self.path(step), LEFT_OUT), np.load(content) as file:
            for name, probe in self.probes.items():
                shape, found = (*self.snapshots[0].shape, *2 * (len(probe.tokens),)), file[name]
                if found.shape != shape or found.dtype != np.float16:
                    raise ValueError(f"it holds {name} maps {found.shape} in {found.dtype}, not {shape} in float16")
                maps[name] = found
        return maps

    def _content(self, step: int, suffix: str) -> bytes:
        if not self.path(step, suffix).exists():
            raise FileNotFoundError(f"{self.path(step, suffix)} has been removed: choose another step")
        return self.path(step, suffix).read_bytes()

    def add(self, snapshot: Snapshot, maps: Mapping[str, ArrayLike], details: Mapping[str, Any]) -> None:
        """Writes a snapshot, and removes those of the same step or later, which an earlier, longer run has left.

        details: as the module's docstring describes them.
        """
        if not (self.folder / "probe.json").exists():
            described = {"tokenizer": self.tokenizer, "probes": self.probes, "windows": self._texts()}
            write_atomically(self.folder / "probe.json", json.dumps(described, default=asdict).encode())
        content = io.BytesIO()
        arrays: dict[str, Any] = {name: np.asarray(array, np.float16) for name, array in maps.items()}
        np.savez_compressed(content, **arrays)
        write_atomically(self.path(snapshot.step), content.getvalue())
        write_atomically(self.path(snapshot.step, ".json"), json.dumps(details, allow_nan=False).encode())

        scores, outdated = self.folder / "scores.jsonl", [step for step in self.steps if step > snapshot.step]
        earlier = [one for one in self.snapshots if one.step < snapshot.step]
        lines = scores.read_bytes().splitlines(keepends=True)[: len(earlier)] if earlier else []  # one each, as it is
        self.snapshots = [*earlier, snapshot]
        fields = snapshot.to_json() | {"habits": as_json(vars(snapshot.habits), f".{SCORE_DIGITS}f")}
        lines.append(json.dumps(fields, allow_nan=False).encode() + b"\n")
        write_atomically(scores, b"".join(lines))
        for step in outdated:
            for suffix in (".npz", ".json", ".png"):
                self.path(step, suffix).unlink(missing_ok=True)


def as_json(value: Any, digits: str) -> Any:
    """As JSON has it: arrays and tensors as lists, None for what is not finite.

    digits: how floating-point numbers are rounded, as in a format string: ".4g" is to four significant digits.
    """
    if isinstance(value, float):  # first, for there may be a million
        return float(f"{value:{digits}}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [as_json(item, digits) for item in value]
    if isinstance(value, Mapping):
        return {name: as_json(item, digits) for name, item in value.items()}
    return as_json(value.tolist(), digits) if hasattr(value, "tolist") else value


def _read_probes(path: Path) -> tuple[dict[str, Probe], str, dict[str, list[Probe]]]:
    """The probes, the tokenizer's fingerprint and the windows."""
    content = path.read_bytes()
    with parsing(path):
        description = json.loads(content)
        probes = {name: Probe(**probe) for name, probe in description["probes"].items()}
        windows = {name: [Probe(**text) for text in texts] for name, texts in description["windows"].items()}
        if not {"text", "repeated"} <= set(probes):
            raise ValueError("it lacks one of the two probes")
        if any(len({len(text.tokens) for text in texts}) != 1 for texts in windows.values()):
            raise ValueError("its windows are not all of one length")
        return probes, str(description["tokenizer"]), windows


def _read_snapshots(path: Path) -> list[Snapshot]:
    content, snapshots = path.read_bytes(), []
    # A last line without a line end was cut short and does not count.
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        with parsing(f"{path}, line {number}"):
            snapshots.append(snapshot := Snapshot.from_json(json.loads(line)))
            if snapshot.shape != snapshots[0].shape or any(one.step >= snapshot.step for one in snapshots[-2:-1]):
                raise ValueError("it is of another model, or not in order")
    return snapshots


def _arrays(value: Any) -> Any:
    """The inverse of `as_json`: lists as arrays, None as NaN."""
    if isinstance(value, dict):
        return {name: _arrays(item) for name, item in value.items()}
    return np.array(value, np.float32) if isinstance(value, list) else float(math.nan if value is None else value)
