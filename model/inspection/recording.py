"""What was measured of one model while it was trained, step by step, or of a prompt at one step or several.

A `Recording` is a run's attention folder, or in memory only. A folder's files are written atomically, and checked when
they are read:

    probe.json           the probes and the windows (token ids and their texts) and the tokenizer's fingerprint
    step_XXXXXXXX.npz    the maps of a step: for each probe (L, H, T, T) in float16
    step_XXXXXXXX.json   its details, what the model predicted and why, to 4 significant digits (see below)
    scores.jsonl         one line a step: all else that a `Snapshot` has, each score as L lists of H numbers

A step counts once its line is in scores.jsonl, which is written last. Numbers that are not finite are null.

The details (L layers, H heads, T tokens, P parts; column t is the position that reads token t and predicts token t + 1,
so what needs the true next token is null in the last):

    parts        P names, of what `attribution` tells apart
    sublayers    2L + 1 names: embeddings, attention 0, feed-forward 0, attention 1, ...
    tokens       the text of every id that occurs below
    probes       for "text" and "repeated": bits, rank, top, top_probability, lens (see `lens.predictions`);
                 attribution (P, T), to the logit of the true next token, and attribution_error, how far their sum is
                 from it (see `attribution`)
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from model.checks import Mistake, parsing, reading
from model.files import write_atomically
from model.inspection.ablation import Change
from model.inspection.heads import SCORES
from model.inspection.probes import Probe, Probes
from model.inspection.survey import Survey, Windows, windows_of

VERSION = 2  # of the folder's files
SCORE_DIGITS = ".5f"  # decimals in scores.jsonl
DETAILS_DIGITS = ".4g"  # 4 significant digits
LEFT_OUT = ": remove it to see the other steps"  # a damaged file of one step
FILES = (".npz", ".json")  # of a step


@dataclass(frozen=True)
class Checks:
    """Whether maps can be trusted, as numbers; `verdicts` judges them. Those of a diverged model are NaN.

    precision: the type that attention was computed in, such as "bfloat16", which bounds the fidelity to be expected.
    fidelity, causality: as in `recorder`.
    by_layer: for each layer "fidelity", "future", the largest weight on a later token, "outside", how far a weight lies
        outside [0, 1], and "random", by how much two calls with the same q, k and v differ, relative as fidelity is.
    replaced: the token whose change moved the logits before it most. noise: by how much the logits change when the same
        tokens are read again. logits: the largest of them.
    """

    precision: str
    fidelity: float
    causality: float
    by_layer: Mapping[str, Sequence[float]]
    replaced: int = 0
    noise: float = 0.0
    logits: float = 1.0

    @classmethod
    def worst(cls, read: Sequence[Checks]) -> Checks:
        """Of all that a model has read; NaN if one is."""
        names = ("fidelity", "causality", "noise", "logits")
        figures = {name: np.max([getattr(one, name) for one in read]).item() for name in names}
        by_layer = {name: np.max([one.by_layer[name] for one in read], axis=0).tolist() for name in read[0].by_layer}
        token = max(read, key=lambda one: one.causality).replaced
        return cls(read[0].precision, by_layer=by_layer, replaced=token, **figures)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """What was measured at one step.

    heads: what they do over many windows, see `survey`.
    loss: nats per token on the windows, by "text" and "repeated". None at most steps, as the next.
    ablation: for the same, by the name of each part, how the loss changes when the part is replaced by its mean.
    maps: each probe's, (L, H, T, T); details: see above. None if they are to be read from the recording.
    """

    step: int
    checks: Checks
    heads: Survey
    loss: dict[str, float] | None = None
    ablation: dict[str, dict[str, Change]] | None = None
    maps: Mapping[str, np.ndarray] | None = None
    details: dict | None = None

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """By the names of `heads.SCORES`, (L, H) in [0, 1]: means over many windows; NaN for a model that diverged."""
        return self.heads.scores

    @property
    def shape(self) -> tuple[int, int]:
        """(L, H)"""
        return self.heads.reach.shape

    def to_json(self) -> dict:
        """As JSON has it, without maps and details; figures rounded to SCORE_DIGITS."""
        measured = vars(self.heads) | {"loss": self.loss, "ablation": self.ablation}
        return {"step": self.step, "checks": as_json(asdict(self.checks), ".6g"), **as_json(measured, SCORE_DIGITS)}

    @classmethod
    def from_json(cls, line: dict) -> Snapshot:
        """Of a line of scores.jsonl. Raises any error for other fields than those.

        A score that has been added to SCORES since was not measured then: it is NaN.
        """
        for name in SCORES.keys() - line["scores"].keys():
            unknown = [[None] * len(heads) for heads in line["reach"]]
            line["scores"][name] = line["spread"][name] = line["formed"][name] = unknown
            line["uniform"][name] = None
        by_score = {kind: {name: line[kind][name] for name in SCORES} for kind in ("scores", "spread", "uniform")}
        formed = {name: np.array(line["formed"][name], bool) for name in SCORES}
        heads = Survey(**_arrays(by_score), formed=formed, reach=_arrays(line["reach"]), windows=line["windows"])
        np.stack([heads.reach, *formed.values(), *heads.scores.values(), *heads.spread.values()])  # of one shape
        numbers = dict(line["checks"])
        about = {name: numbers.pop(name) for name in ("precision", "replaced")}
        checks, loss, ablation = Checks(**about, **_arrays(numbers)), line["loss"], line["ablation"]
        if ablation is not None:
            loss = _arrays(loss)
            for kind, parts in ablation.items():
                ablation[kind] = {part: Change(*map(_arrays, change)) for part, change in parts.items()}
        return cls(int(line["step"]), checks, heads, loss, ablation)


@dataclass(eq=False)
class Recording:
    """The snapshots of one model, in the order of their steps.

    probes: by name: "text", and "repeated", on which heads show that look back for repetitions.
    windows: by the same names, the texts on which heads and losses are measured; the probes if there are none.
    tokenizer: fingerprint of the tokenizer that made the ids.
    name: the model's on pages.
    folder: in which snapshots are kept; None keeps them in memory.
    is_prompt: whether the text is a person's own, which they want to see first.
    """

    probes: Probes
    windows: Mapping[str, Windows] = field(default_factory=dict)
    tokenizer: str = ""
    name: str = field(default="", kw_only=True)
    folder: Path | None = field(default=None, kw_only=True)
    is_prompt: bool = field(default=False, kw_only=True)
    snapshots: list[Snapshot] = field(default_factory=list, kw_only=True)

    def __post_init__(self) -> None:
        self.windows = self.windows or windows_of(self.probes)

    @classmethod
    def open(cls, folder: Path, name: str = "") -> Recording:
        """The one in an existing folder. Raises a `Mistake` for none, a damaged file, or one of an earlier version."""
        folder = Path(folder)
        if not (folder / "probe.json").is_file():
            raise Mistake(f"{folder} holds no recorded maps: train with --attention.enabled true")
        recording = cls(*_read_texts(folder / "probe.json"), name=name, folder=folder)
        if (folder / "scores.jsonl").exists():  # it does not if the first snapshot was interrupted
            for number, line in enumerate((folder / "scores.jsonl").read_bytes().splitlines(), start=1):
                with parsing(f"{folder / 'scores.jsonl'}, line {number}"):
                    recording.snapshots.append(Snapshot.from_json(json.loads(line)))
        return recording

    @classmethod
    def resume(cls, folder: Path, probes: Probes, windows: Mapping[str, Windows], tokenizer: str) -> Recording:
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
        windows = {name: [asdict(text) for text in of_kind.texts] for name, of_kind in self.windows.items()}
        about = {"version": VERSION, "tokenizer": self.tokenizer}
        about |= {"attention_window": self.windows["text"].attention_window}
        return about | {"probes": {name: asdict(probe) for name, probe in self.probes.items()}, "windows": windows}

    @property
    def steps(self) -> list[int]:
        return [snapshot.step for snapshot in self.snapshots]

    @property
    def mapped(self) -> list[int]:
        """The steps that have maps and details: of others a person has removed the files."""
        return [one.step for one in self.snapshots if one.maps or all(self.path(one.step, f).exists() for f in FILES)]

    @property
    def shape(self) -> tuple[int, int]:
        """(L, H)"""
        return self.snapshots[0].shape

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

    def at(self, step: int) -> Snapshot:
        return next(snapshot for snapshot in self.snapshots if snapshot.step == step)

    def path(self, step: int, suffix: str = ".npz") -> Path:
        """The file of a step's maps, or its details in ".json", whether it exists or not."""
        return Path(self.folder or "", f"step_{step:08d}{suffix}")

    def maps(self, step: int) -> Mapping[str, np.ndarray]:
        """Each probe's maps at a step, (L, H, T, T), from a file in float16.

        Raises a `Mistake` if their file has been removed, is damaged or is of other probes.
        """
        if (maps := self.at(step).maps) is not None:
            return maps
        with reading(self.path(step)):
            content, maps = io.BytesIO(self.path(step).read_bytes()), {}
        with parsing(self.path(step), LEFT_OUT), np.load(content) as file:
            for name, probe in self.probes.items():
                shape, found = (*self.shape, *2 * (len(probe.tokens),)), file[name]
                if found.shape != shape or found.dtype != np.float16:
                    raise ValueError(f"it holds {name} maps {found.shape} in {found.dtype}, not {shape} in float16")
                maps[name] = found
        return maps

    def details(self, step: int) -> dict:
        """What the model predicted at a step, and why. Raises as `maps`."""
        if (details := self.at(step).details) is not None:
            return details
        path = self.path(step, ".json")
        with reading(path):
            content = path.read_bytes()
        with parsing(path, LEFT_OUT):
            details = json.loads(content)
            for name, probe in self.probes.items():
                shape = (len(details["parts"]), len(probe.tokens))
                if np.array(details["probes"][name]["attribution"], float).shape != shape:
                    raise ValueError(f"its measurements of the probe {name} are not of its parts and tokens")
            return details

    def append(self, snapshot: Snapshot) -> None:
        """Adds a snapshot, and removes those of the same step or later, which an earlier, longer run has left.

        One without maps keeps those of its step, whose line is written anew.
        """
        outdated = [step for step in self.steps if step > snapshot.step]
        self.snapshots = [one for one in self.snapshots if one.step < snapshot.step]
        if self.folder is None:
            self.snapshots.append(snapshot)
            return
        if not (self.folder / "probe.json").exists():
            write_atomically(self.folder / "probe.json", json.dumps(self.texts()).encode())
        if snapshot.maps is not None:
            content = io.BytesIO()
            arrays: dict[str, Any] = {name: np.asarray(maps, np.float16) for name, maps in snapshot.maps.items()}
            np.savez_compressed(content, **arrays)
            write_atomically(self.path(snapshot.step), content.getvalue())
            write_atomically(self.path(snapshot.step, ".json"), json.dumps(snapshot.details, allow_nan=False).encode())
        scores = self.folder / "scores.jsonl"
        lines = scores.read_bytes().splitlines(keepends=True)[: len(self.snapshots)] if self.snapshots else []
        lines.append(json.dumps(snapshot.to_json(), allow_nan=False).encode() + b"\n")
        write_atomically(scores, b"".join(lines))
        self.snapshots.append(replace(snapshot, maps=None, details=None))
        for step in outdated:
            for suffix in FILES:
                self.path(step, suffix).unlink(missing_ok=True)


def as_json(value: Any, digits: str) -> Any:
    """As JSON has it: arrays and tensors as lists, None for what is not finite.

    digits: how floating-point numbers are rounded, as in a format string: ".4g" is to four significant digits.
    """
    if isinstance(value, float):  # first, for there may be a million
        return float(f"{value:{digits}}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [as_json(item, digits) for item in value]
    if isinstance(value, Mapping):
        return {name: as_json(item, digits) for name, item in value.items()}
    return as_json(value.tolist(), digits) if hasattr(value, "tolist") else value


def _arrays(value: Any) -> Any:
    """The inverse of `as_json`: lists as arrays, None as NaN."""
    if isinstance(value, dict):
        return {name: _arrays(item) for name, item in value.items()}
    return np.array(value, np.float32) if isinstance(value, list) else float(math.nan if value is None else value)


def _read_texts(path: Path) -> tuple[dict[str, Probe], dict[str, Windows], str]:
    """The probes, the windows and the tokenizer's fingerprint."""
    content = path.read_bytes()
    with parsing(path):
        about = json.loads(content)
        version = about.get("version")
    if version != VERSION:
        words = f"look at the run's model with --checkpoint {path.parent.parent} --prompt TEXT, or train it again"
        raise Mistake(f"{path.parent} was recorded by another version of GlassGPT: {words}")
    with parsing(path):
        probes = {name: Probe(**probe) for name, probe in about["probes"].items()}
        texts = {name: [Probe(**text) for text in texts] for name, texts in about["windows"].items()}
        return probes, windows_of(texts, about["attention_window"]), str(about["tokenizer"])
