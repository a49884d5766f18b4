"""A run's attention folder on disk. Files are written atomically and checked when they are read.

    probe.json           the probes and the windows (token ids and their texts) and the tokenizer's fingerprint
    step_XXXXXXXX.npz    one capture: for each probe its maps (L, H, T, T) in float16
    step_XXXXXXXX.json   its details, what the model predicted and why, to 4 significant digits (see below)
    scores.jsonl         one line a capture: step, precision, fidelity, causality, each score as L lists of H numbers,
                         habits, loss, ablation and copying (see `Snapshot`)

A capture counts once its line is in scores.jsonl, which is written last. Numbers that are not finite are null.

The details (L layers, H heads, T tokens, P parts; column t is the position that reads token t and predicts token t + 1,
so what needs the true next token is null in the last):

    parts        P names, of what `attribution` tells apart
    sublayers    2L + 1 names: embeddings, attention 0, feed-forward 0, attention 1, ...
    tokens       the text of every id that occurs below
    probes       for "text" and "repeated": bits, rank, top, top_probability, lens (see `lens.predictions`);
                 attribution (P, T), to the logit of the true next token, and attribution_error, the largest difference
                 of their sum from it; value_norms (L, H, T), by which weights are multiplied to see what they move
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

from model.files import write_atomically
from model.inspection.heads import SCORES
from model.inspection.probes import Probe
from model.inspection.survey import Habits, windows_of

SCORE_DIGITS = 5  # decimals in scores.jsonl
MEASURED = ("loss", "ablation", "copying")
DETAILS_DIGITS = ".4g"  # 4 significant digits

# Unreadable JSON, or JSON of something else.
DAMAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Snapshot:
    """What one capture measured.

    precision: the type that attention was computed in, such as "bfloat16", which bounds the fidelity to be expected.
    fidelity, causality, checks: as in `recorder`; NaN for a model that diverged.
    scores: by the names of `heads.SCORES`, (L, H) in [0, 1]: means over many windows, see `survey`; NaN for a model
        that diverged.
    habits: what else the windows say about the heads. None where they were not measured, as the next three.
    loss: nats per token on the probe "text", and on the second half of "repeated".
    ablation: by probe, the change of that loss when a part is replaced by its mean: {"heads": (L, H), "feed_forward":
        (L,), "tables": a number by the table's name}.
    copying: (L, H), see `circuits.copying_scores`.
    """

    step: int
    precision: str
    fidelity: float
    causality: float
    scores: dict[str, np.ndarray]
    habits: Habits | None = None
    loss: dict[str, float] | None = None
    ablation: dict[str, dict[str, Any]] | None = None
    copying: np.ndarray | None = None
    checks: dict[str, Any] = field(default_factory=lambda: {"fidelity": [], "future": [], "replaced": 0})

    @property
    def shape(self) -> tuple[int, int]:
        """(L, H)"""
        return next(iter(self.scores.values())).shape

    def weaker(self, name: str) -> np.ndarray:
        """A score in the half of the window where it is lower, (L, H)."""
        return self.scores[name] if self.habits is None else self.habits.weaker(name).numpy()

    def to_json(self, digits: int) -> dict:
        """As JSON has it: scores and measurements rounded to `digits` decimals, None for what is not finite.

        Without the habits, of which pages show the sentences.
        """
        errors = as_json({"fidelity": self.fidelity, "causality": self.causality}, ".17g")  # exactly
        errors["checks"] = as_json(self.checks, ".3g")
        measured = {name: getattr(self, name) for name in MEASURED if getattr(self, name) is not None}
        numbers = as_json({"scores": self.scores, **measured}, f".{digits}f")
        return {"step": self.step, "precision": self.precision, **errors, **numbers}

    @classmethod
    def from_json(cls, fields: dict) -> Snapshot:
        """Raises one of DAMAGE if the fields are not those of `to_json`."""
        scores = {name: np.array(fields["scores"][name], np.float32) for name in SCORES}
        shapes = {score.shape for score in scores.values()}
        if len(shapes) != 1 or len(shape := shapes.pop()) != 2 or not min(shape):
            raise ValueError("the scores are not all (L, H)")
        fidelity, causality = (math.nan if fields[x] is None else float(fields[x]) for x in ("fidelity", "causality"))
        measured = {name: _arrays(fields[name]) for name in MEASURED if name in fields}
        arrays = [(measured["copying"], shape)] if "copying" in measured else []
        numbers = [*measured.get("loss", {}).values()]
        for probe in measured.get("ablation", {}).values():
            arrays += [(probe["heads"], shape), (probe["feed_forward"], shape[:1])]
            numbers += probe["tables"].values()
        if any(np.shape(array) != wanted for array, wanted in arrays):
            raise ValueError("the measurements are not of the same layers and heads as the scores")
        if not all(isinstance(number, float) for number in numbers):
            raise ValueError("its losses are not numbers")
        if not 0 <= fields["step"] < 2**53:
            raise ValueError("its step is not one")
        if "habits" in fields:
            measured["habits"] = Habits.from_json(fields["habits"])
        measured["checks"] = {name: _arrays(fields["checks"][name]) for name in ("fidelity", "future")}
        measured["checks"]["replaced"] = int(fields["checks"]["replaced"])
        return cls(int(fields["step"]), str(fields["precision"]), fidelity, causality, scores, **measured)


class AttentionArchive:
    """The captures of one run, in the order of their steps.

    Args:
        folder: created when the first capture is added. An existing folder is resumed.
        probes: by name: "text", and "repeated", on which heads show that look back for repetitions.
        tokenizer: fingerprint of the tokenizer that made the ids.
        windows: by the same names, the texts on which heads are measured; the probes if None.

    Raises:
        ValueError: if the folder holds captures of other probes, or damaged files.
    """

    def __init__(
        self,
        folder: Path,
        probes: Mapping[str, Probe],
        tokenizer: str,
        windows: Mapping[str, Sequence[Probe]] | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.probes = dict(probes)
        self.windows = windows_of({name: [probe] for name, probe in probes.items()} if windows is None else windows)
        self.tokenizer = tokenizer
        self.snapshots: list[Snapshot] = []
        if (self.folder / "probe.json").exists():
            if _read_probes(self.folder / "probe.json") != (self.probes, tokenizer, self._texts()):
                raise ValueError(
                    f"{self.folder} holds maps of another probe text or tokenizer, which cannot be continued; "
                    "use a new run folder, or the data and the tokenizer of this one"
                )
            if (self.folder / "scores.jsonl").exists():  # it does not if the first capture was interrupted
                self.snapshots = _read_snapshots(self.folder / "scores.jsonl")

    @classmethod
    def open(cls, folder: Path) -> AttentionArchive:
        """The archive in an existing folder.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if a file is damaged.
        """
        return cls(folder, *_read_probes(Path(folder) / "probe.json"))

    def _texts(self) -> dict[str, list[Probe]]:
        return {name: list(windows.texts) for name, windows in self.windows.items()}

    @property
    def steps(self) -> list[int]:
        return [snapshot.step for snapshot in self.snapshots]

    def path(self, step: int) -> Path:
        """The file of a step's maps, whether it exists or not."""
        return self.folder / f"step_{step:08d}.npz"

    def details_path(self, step: int) -> Path:
        """The file of a step's details, whether it exists or not."""
        return self.path(step).with_suffix(".json")

    def details(self, step: int) -> dict:
        """What the model predicted at a step, and why; empty if it was not recorded.

        Raises ValueError if the file is damaged.
        """
        path = self.details_path(step)
        try:
            details = json.loads(path.read_bytes())
            _check_details(details, self.probes, self.snapshots[0].shape)
            return details
        except FileNotFoundError:
            return {}
        except DAMAGE as error:
            raise ValueError(f"{path} is damaged ({error}): remove it to see the maps") from None

    def maps(self, step: int) -> dict[str, np.ndarray]:
        """Each probe's maps at a step, (L, H, T, T) in float16.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is damaged, or does not hold maps of these probes.
        """
        path = self.path(step)
        content = io.BytesIO(path.read_bytes())
        shapes = {name: (*self.snapshots[0].shape, *2 * (len(probe.tokens),)) for name, probe in self.probes.items()}
        try:
            with np.load(content, allow_pickle=False) as file:
                maps = {name: file[name] for name in self.probes}
        except Exception:  # a damaged zip file fails in many ways, even as an encrypted one
            raise ValueError(f"{path} is damaged: remove it to see the other steps") from None
        for name, shape in shapes.items():
            if maps[name].shape != shape or maps[name].dtype != np.float16:
                raise ValueError(
                    f"{path} holds {name} maps {maps[name].shape} in {maps[name].dtype}, not {shape} in float16"
                )
        return maps

    def add(self, snapshot: Snapshot, maps: Mapping[str, ArrayLike], details: Mapping[str, Any] | None = None) -> None:
        """Writes a capture, and removes those of the same step or later, which an earlier, longer run has left.

        details: as the module's docstring describes them.
        """
        if not (self.folder / "probe.json").exists():
            probes = {name: asdict(probe) for name, probe in self.probes.items()}
            windows = {name: [asdict(text) for text in texts] for name, texts in self._texts().items()}
            described = {"tokenizer": self.tokenizer, "probes": probes, "windows": windows}
            write_atomically(self.folder / "probe.json", _json(described))
        content = io.BytesIO()
        arrays: dict[str, Any] = {name: np.asarray(array, np.float16) for name, array in maps.items()}
        np.savez_compressed(content, **arrays)
        write_atomically(self.path(snapshot.step), content.getvalue())
        if details is None:
            self.details_path(snapshot.step).unlink(missing_ok=True)
        else:
            write_atomically(self.details_path(snapshot.step), _json(details))

        outdated = [step for step in self.steps if step > snapshot.step]
        self.snapshots = [earlier for earlier in self.snapshots if earlier.step < snapshot.step] + [snapshot]
        lines = b"".join(_json(_line(one)) + b"\n" for one in self.snapshots)
        write_atomically(self.folder / "scores.jsonl", lines)
        for step in outdated:
            for suffix in (".npz", ".json", ".png"):
                self.path(step).with_suffix(suffix).unlink(missing_ok=True)


def as_json(value: Any, digits: str) -> Any:
    """As JSON has it: arrays and tensors as lists, None for what is not finite.

    digits: how floating-point numbers are rounded, as in a format string: ".4g" is to four significant digits.
    """
    if isinstance(value, float):
        return float(f"{value:{digits}}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [as_json(item, digits) for item in value]
    if isinstance(value, Mapping):
        return {name: as_json(item, digits) for name, item in value.items()}
    return as_json(value.tolist(), digits) if hasattr(value, "tolist") else value


def _line(snapshot: Snapshot) -> dict:
    habits = {} if snapshot.habits is None else {"habits": as_json(snapshot.habits.to_json(), f".{SCORE_DIGITS}f")}
    return snapshot.to_json(SCORE_DIGITS) | habits


def _read_probes(path: Path) -> tuple[dict[str, Probe], str, dict[str, list[Probe]]]:
    """The probes, the tokenizer's fingerprint and the windows."""
    content = path.read_bytes()
    try:
        description = json.loads(content)
        probes = {name: Probe(**probe) for name, probe in description["probes"].items()}
        if not {"text", "repeated"} <= set(probes) or not isinstance(description["tokenizer"], str):
            raise ValueError("it lacks one of the two probes, or the tokenizer")
        windows = {name: [Probe(**text) for text in texts] for name, texts in description["windows"].items()}
        if any(len({len(text.tokens) for text in texts}) != 1 for texts in windows.values()):
            raise ValueError("its windows are not all of one length")
        return probes, description["tokenizer"], windows
    except DAMAGE as error:
        raise ValueError(f"{path} is damaged or not a probe ({error})") from None


def _read_snapshots(path: Path) -> list[Snapshot]:
    content, snapshots = path.read_bytes(), []
    # A last line without a line end was cut short and does not count.
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            snapshots.append(snapshot := Snapshot.from_json(json.loads(line)))
            if snapshot.shape != snapshots[0].shape or any(one.step >= snapshot.step for one in snapshots[-2:-1]):
                raise ValueError("it is of another model, or not in order")
        except DAMAGE as error:
            raise ValueError(f"{path}, line {number}: damaged ({error})") from None
    return snapshots


def _check_details(details: dict, probes: Mapping[str, Probe], shape: tuple[int, int]) -> None:
    """Raises one of DAMAGE unless the details are as the module's docstring says, for these probes and (L, H)."""
    P, S = len(details["parts"]), len(details["sublayers"])
    names = [*details["parts"], *details["sublayers"], *details["tokens"].values()]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("its names are not text")
    for name, measured in details["probes"].items():
        T, tops = len(probes[name].tokens), len(measured["top"][0])
        for array, sizes in (
            (measured["bits"], (T,)),
            (measured["rank"], (T,)),
            (measured["top"], (T, tops)),
            (measured["top_probability"], (T, tops)),
            (measured["lens"]["token"], (S, T)),
            (measured["lens"]["probability"], (S, T)),
            (measured["lens"]["divergence"], (S, T)),
            (measured["attribution"], (P, T)),
            (measured["attribution_error"], ()),
            (measured["value_norms"], (*shape, T)),
        ):
            if not _holds_numbers(array, sizes):
                raise ValueError(f"its measurements of the probe {name} are not those of {T} tokens")


def _holds_numbers(value: Any, shape: tuple[int, ...]) -> bool:
    """Whether `value` is lists of this shape, of finite numbers and None."""
    if shape:
        return isinstance(value, list) and len(value) == shape[0] and all(_holds_numbers(x, shape[1:]) for x in value)
    return value is None or (isinstance(value, int | float) and -1e300 < value < 1e300)


def _arrays(value: Any) -> Any:
    """The inverse of `as_json`: lists as arrays, None as NaN."""
    if isinstance(value, dict):
        return {name: _arrays(item) for name, item in value.items()}
    return np.array(value, np.float32) if isinstance(value, list) else float(math.nan if value is None else value)


def _json(value: object) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
