"""What was measured of one model, step by step, as pages, pictures and tables show it.

Shapes: L layers, H heads, T tokens; N snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from model.inspection.archive import AttentionArchive, Snapshot
from model.inspection.heads import SCORES
from model.inspection.probes import Probes
from model.pages.describe import find_patterns

MAX_CURVE_POINTS = 300


@dataclass(frozen=True, eq=False)
class History:
    """The snapshots of one model.

    name: its name on the page. probes: "text" and "repeated". snapshots: by step.
    load: from a step to each probe's maps (L, H, T, T). steps: those that have maps, in ascending order.
    details: from a step to what was measured beside its maps, see `archive`; the page that holds the model needs none.
    is_prompt: whether the text is a person's own, which they want to see first.
    """

    name: str
    probes: Probes
    snapshots: Sequence[Snapshot]
    load: Callable[[int], Mapping[str, np.ndarray]]
    steps: Sequence[int]
    details: Callable[[int], dict] = lambda step: {}
    is_prompt: bool = False

    @classmethod
    def of(cls, archive: AttentionArchive, name: str) -> History:
        """A run's archive. Steps of which a file has been removed keep their scores."""
        files = (".npz", ".json")
        steps = [step for step in archive.steps if all(archive.path(step, suffix).exists() for suffix in files)]
        return cls(name, archive.probes, archive.snapshots, archive.maps, steps, archive.details)

    @property
    def uniform(self) -> dict[str, float]:
        """The scores of a head with uniform attention."""
        return self.snapshots[-1].habits.uniform

    @cached_property
    def formation(self) -> dict[str, dict[str, int]]:
        """For each score the heads that have formed: "LAYER.HEAD" -> the step from which on they follow its pattern.

        They do at every later snapshot too, as `describe.FollowedPattern.holds` defines it; entropy is no pattern.
        """
        formed: dict[str, dict[str, int]] = {name: {} for name in SCORES}
        for snapshot in self.snapshots:
            for pattern in find_patterns(snapshot.habits):
                heads = [f"{layer}.{head}" for layer, head in pattern.holds.nonzero().tolist()]
                formed[pattern.name] = {head: formed[pattern.name].get(head, snapshot.step) for head in heads}
        return formed

    @cached_property
    def curve_steps(self) -> set[int]:
        """The steps that are points of the curves, whether or not their maps are on the page."""
        points = set(log_spaced([snapshot.step for snapshot in self.snapshots], MAX_CURVE_POINTS))
        return points | {step for heads in self.formation.values() for step in heads.values()}

    @cached_property
    def by_step(self) -> dict[int, Snapshot]:
        return {snapshot.step: snapshot for snapshot in self.snapshots}

    def check_maps(self) -> None:
        """Raises ValueError if no snapshot has maps: nothing was recorded, or their files have been removed."""
        if not self.steps:
            raise ValueError(f"{self.name} has no recorded maps")


def check_comparable(
    shown: Sequence[History], probes: Sequence[str] | None = None, *, of_one_shape: bool = True
) -> None:
    """Raises ValueError if the maps of two models cannot be subtracted: one sentence that says why.

    probes: those that are compared; all by default. of_one_shape: whether they need as many layers and heads.
    """
    first, last = shown[0], shown[-1]
    problem = f"{first.name} and {last.name} cannot be compared"
    for probe in first.probes if probes is None else probes:
        if first.probes[probe].labels != last.probes[probe].labels:
            raise ValueError(f"{problem}: their {probe} probes have different tokens")
    shapes = [history.snapshots[0].shape for history in (first, last)]
    if of_one_shape and shapes[0] != shapes[1]:
        sizes = " and ".join("{} x {}".format(*shape) for shape in shapes)
        raise ValueError(
            f"{problem}: they have {sizes} layers x heads; choose heads that both have with --head, for a picture or "
            "a table"
        )


def log_spaced(steps: Sequence[int], count: int) -> list[int]:
    """At most `count`, 2 or more, of the ascending steps: the first, the last, and others evenly in log(1 + step)."""
    if count >= len(steps):
        return list(steps)
    places = np.log1p(np.array(steps, dtype=float))
    chosen = [0]
    for left in range(count - 1, 0, -1):
        # The step nearest to an even share of the rest, but early enough to leave one for each choice to come.
        target = places[chosen[-1]] + (places[-1] - places[chosen[-1]]) / left
        nearest = int(np.abs(places - target).argmin())
        chosen.append(min(max(nearest, chosen[-1] + 1), len(steps) - left))
    return [steps[i] for i in chosen]
