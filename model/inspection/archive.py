"""A run's attention folder on disk: every file complete or absent, every reading checked.

    probe.json           the probes: token ids and their texts, and the tokenizer's fingerprint
    step_XXXXXXXX.npz    one capture: for each probe its maps (L, H, T, T), float16
    scores.jsonl         one line a capture: step, precision, fidelity, causality, each score as L lists of H numbers

A capture counts once its line is in scores.jsonl, which is replaced last. Shapes: L layers, H heads, T tokens.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from model.files import write_atomically
from model.inspection.heads import SCORES


@dataclass(frozen=True)
class Probe:
    """A text that is shown to the model at each capture: T token ids and how they read.

    period: S for a probe of S distinct tokens written twice (possibly after one more), None for ordinary text.
    """

    tokens: list[int]
    labels: list[str]
    period: int | None = None

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.labels):
            raise ValueError(f"a probe needs a label for each token, but has {len(self.tokens)} and {len(self.labels)}")


@dataclass(frozen=True)
class Snapshot:
    """What one capture measured.

    precision: the type that attention was computed in, such as "bfloat16", which bounds the fidelity to be expected.
    scores: by the names of `heads.SCORES`, (L, H) in [0, 1]; NaN, like the two errors, for a model that diverged.
    """

    step: int
    precision: str
    fidelity: float
    causality: float
    scores: dict[str, np.ndarray]


class AttentionArchive:
    """The captures of one run, in the order of their steps.

    Args:
        folder: made when the first capture is added. What it holds already is gone on with.
        probes: by name, "text" and "repeated".
        tokenizer: fingerprint of the tokenizer that the ids belong to.

    Raises:
        ValueError: if the folder holds captures of other probes, or damaged files.
    """

    def __init__(self, folder: Path, probes: Mapping[str, Probe], tokenizer: str) -> None:
        self.folder = Path(folder)
        self.probes = dict(probes)
        self.tokenizer = tokenizer
        self.snapshots: list[Snapshot] = []
        if (self.folder / "probe.json").exists():
            earlier = AttentionArchive.open(self.folder)
            if (earlier.probes, earlier.tokenizer) != (self.probes, self.tokenizer):
                raise ValueError(
                    f"{self.folder} holds maps of another probe text or tokenizer, which cannot be continued; "
                    "use a new run folder, or go on with the data and the tokenizer of this one"
                )
            self.snapshots = earlier.snapshots

    @classmethod
    def open(cls, folder: Path) -> AttentionArchive:
        """The archive that is on disk.

        Raises:
            FileNotFoundError: if there is none.
            ValueError: if a file is damaged.
        """
        folder = Path(folder)
        try:
            description = json.loads(_read(folder / "probe.json"))
            probes = {name: Probe(**probe) for name, probe in description["probes"].items()}
            archive = cls.__new__(cls)
            archive.folder, archive.probes, archive.tokenizer = folder, probes, description["tokenizer"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{folder / 'probe.json'} is damaged or not a probe ({error})") from None
        archive.snapshots = _read_snapshots(folder / "scores.jsonl")
        return archive

    @property
    def steps(self) -> list[int]:
        return [snapshot.step for snapshot in self.snapshots]

    def path(self, step: int) -> Path:
        """Where the maps of a step are, or would be."""
        return self.folder / f"step_{step:08d}.npz"

    def maps(self, step: int) -> dict[str, np.ndarray]:
        """Each probe's maps at a step, (L, H, T, T) in float16.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is damaged, or does not hold maps of these probes.
        """
        path = self.path(step)
        content = io.BytesIO(_read(path))
        try:
            with np.load(content, allow_pickle=False) as file:
                maps = {name: file[name] for name in self.probes}
        except (zipfile.BadZipFile, ValueError, KeyError, EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{path} is damaged ({error}); without that file the other steps can be shown") from None
        for name, probe in self.probes.items():
            if maps[name].ndim != 4 or maps[name].shape[2:] != (len(probe.tokens),) * 2:
                raise ValueError(
                    f"{path} holds {name} maps {maps[name].shape}, not (L, H, T, T) of {len(probe.tokens)} tokens"
                )
        return maps

    def add(self, snapshot: Snapshot, maps: Mapping[str, np.ndarray]) -> None:
        """Writes a capture. Those of this step and later, left by a run that went further before, are forgotten."""
        if not (self.folder / "probe.json").exists():
            probes = {name: asdict(probe) for name, probe in self.probes.items()}
            write_atomically(self.folder / "probe.json", _json({"tokenizer": self.tokenizer, "probes": probes}))
        content = io.BytesIO()
        np.savez_compressed(content, **{name: np.asarray(array, np.float16) for name, array in maps.items()})
        write_atomically(self.path(snapshot.step), content.getvalue())

        outdated = [step for step in self.steps if step > snapshot.step]
        self.snapshots = [earlier for earlier in self.snapshots if earlier.step < snapshot.step] + [snapshot]
        lines = b"".join(_json(_plain(snapshot)) + b"\n" for snapshot in self.snapshots)
        write_atomically(self.folder / "scores.jsonl", lines)
        for step in outdated:
            for path in (self.path(step), self.path(step).with_suffix(".png")):
                path.unlink(missing_ok=True)


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}")
    return path.read_bytes()


def _read_snapshots(path: Path) -> list[Snapshot]:
    content, snapshots = _read(path), []
    # A last line without an end has been cut short, by a copy perhaps: it stands for no capture.
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), start=1):
        try:
            fields = json.loads(line)
            scores = {name: np.array(fields["scores"][name], dtype=np.float32) for name in SCORES}
            shapes = {score.shape for score in scores.values()}
            if len(shapes) > 1 or len(shapes.pop()) != 2:
                raise ValueError("the scores are not all (L, H)")
            fidelity, causality = (
                math.nan if fields[x] is None else float(fields[x]) for x in ("fidelity", "causality")
            )
            snapshots.append(Snapshot(int(fields["step"]), str(fields["precision"]), fidelity, causality, scores))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: damaged ({error})") from None
    return snapshots


def _plain(snapshot: Snapshot) -> dict:
    """Data for JSON, which knows no NaN: null stands for it."""
    scores = {name: _without_nan(np.round(score.astype(float), 5).tolist()) for name, score in snapshot.scores.items()}
    fidelity, causality = _without_nan([snapshot.fidelity, snapshot.causality])
    errors = {"fidelity": fidelity, "causality": causality}
    return {"step": snapshot.step, "precision": snapshot.precision, **errors, "scores": scores}


def _without_nan(values: Sequence) -> list:
    return [_without_nan(v) if isinstance(v, list) else v if math.isfinite(v) else None for v in values]


def _json(value: object) -> bytes:
    return json.dumps(value, allow_nan=False).encode()
