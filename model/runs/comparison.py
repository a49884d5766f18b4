"""Compares runs: variants over seeds, as a table and as curves.

No checkpoint is opened and torch is not imported: 200 runs take a few seconds.
"""

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import shorten

import numpy as np
import pandas as pd

from model.mistakes import Mistake
from model.pages.learning import short
from model.runs.outcome import BEST, BITS, FLOPS, LOSS, read_outcome
from model.runs.run import CODE, PROBES
from model.runs.scaling import power_law
from model.runs.terminal import sentence

# The options that shape the probes, which are a part of this text. Without another, other probes mean another text.
OF_PROBES = ("data.", "recording.", "model.gpt.context_length", "model.gpt.window")
DIFFERENCE = "difference"
LONGEST = 40  # characters of the names of runs in a table
ERROR = " ±"  # ends the title of a standard error
EXPLANATION = (
    "±: standard error over seeds; difference: from the first row, over the seeds that both have; minutes: of training "
    "steps, without validation, recording and saving; empty: unknown, not reached in every run, or, as a difference, "
    "not comparable: unfinished, or validated on other text; columns that are the same in all rows are not shown"
)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Shows itself as a table: as text in a terminal, as HTML in a notebook.

    runs: a row for each run: its "variant", "run", "seed", whether it is "comparable" with the first run, and figures.
    histories: the history of each run, with its "variant".
    measure: the figure by which all variants can be compared: BITS if they have several tokenizers, else LOSS.
    notes: sentences below the table.
    """

    runs: pd.DataFrame
    histories: pd.DataFrame
    measure: str
    notes: Sequence[str]

    @property
    def rows(self) -> pd.DataFrame:
        """A row for each variant: "runs", "seeds", and the mean of each figure with its standard error, see ERROR.

        Runs with the same seed count as one. A figure that one seed lacks is NaN.
        """
        names = self.runs.groupby("variant", sort=False)["run"].agg(", ".join)
        by_seed = self.runs.drop(columns="run").groupby(["variant", "seed"], sort=False).mean()
        variants = by_seed.groupby("variant", sort=False)
        paired = by_seed[self.measure].where(by_seed["comparable"] == 1).unstack("variant")
        differences = paired.sub(paired[names.index[0]], axis=0)

        rows = pd.DataFrame({"runs": names, "seeds": variants.size()})
        for title in by_seed.columns.drop("comparable"):
            is_in_all = variants[title].count() == rows["seeds"]
            rows[title] = variants[title].mean().where(is_in_all)
            rows[title + ERROR] = variants[title].sem().where(is_in_all)
            if title == self.measure:
                rows[DIFFERENCE] = differences.mean()
                rows[DIFFERENCE + ERROR] = differences.sem()
        return rows

    def shown(self) -> pd.DataFrame:
        """The rows as text, without the columns that are the same in all rows."""
        rows = self.rows
        shown = rows[["runs", "seeds"]].astype(str)
        shown["runs"] = shown["runs"].map(lambda names: shorten(names, LONGEST, placeholder=" ..."))
        for title in rows.columns[2::2]:
            figures = zip(rows[title], rows[title + ERROR], strict=True)
            shown[title] = [_told(title, mean, error) for mean, error in figures]
        differs = (shown.nunique() > 1) | (len(shown) == 1)
        return shown.loc[:, differs & (shown != "").any()]

    def __str__(self) -> str:
        return "\n".join([self.shown().to_string(index_names=False), "", *self.notes])

    def _repr_html_(self) -> str:
        return self.shown().to_html(index_names=False) + "".join(f"<p>{escape(note)}</p>" for note in self.notes)

    def curves(self, axis: str) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """For each variant its name, the axis, which is a column of `history_of`, and the measure with its error."""
        curves = []
        for variant, history in self.histories.groupby("variant", sort=False):
            if history[axis].isna().any():
                raise Mistake(f"{variant} has no {axis}: its runs have no {CODE}")
            points = history.dropna(subset=self.measure).groupby("step")
            measured = points[self.measure]
            curves.append((variant, points[axis].mean(), measured.mean(), measured.sem().fillna(0)))
        return curves

    def fit(self) -> str:
        """Fits a scaling law to the variants, see `power_law`."""
        return power_law(*self.rows[[FLOPS, self.measure]].dropna().to_numpy().T)


def compare(runs: Iterable[str | Path], goal: float | None = None) -> Comparison:
    """Compares runs, given by their folders or by patterns such as "runs/lr-*"; others are compared with the first.

    goal: a validation loss; adds the steps and minutes to it.

    Runs that cannot be read are left out and named. Raises a `Mistake` if none is left.
    """
    paths = [path for run in runs for path in sorted(glob.glob(str(run))) or [str(run)]]  # noqa: PTH207
    outcomes, left_out = [], []
    for path in dict.fromkeys(paths):
        try:
            outcomes.append(read_outcome(Path(path), goal))
        except Mistake as error:
            left_out.append(f"left out: {sentence(error)}")
    if not outcomes:
        raise Mistake("; ".join(["there is no run to compare", *left_out]))

    traits = pd.DataFrame([outcome.traits for outcome in outcomes])
    differing = traits.columns[traits.nunique() > 1]
    if any(name.startswith(OF_PROBES) for name in differing):
        differing = differing[differing != PROBES]
    first = outcomes[0]
    decisive = differing.intersection(["state", PROBES])
    variants: dict[tuple, str] = {}
    rows, histories = [], []
    for outcome in outcomes:
        traits_of_variant = tuple(outcome.traits.get(name) for name in differing)
        if traits_of_variant not in variants:
            label = ", ".join(outcome.told(name) for name in differing if name in outcome.traits)
            label = sentence(label or outcome.traits["state"])
            is_new = label not in variants.values()  # long labels are cut
            variants[traits_of_variant] = label if is_new else f"{label} ({outcome.name})"
        row = {
            "variant": variants[traits_of_variant],
            "run": outcome.name,
            "seed": outcome.seed,
            "comparable": outcome.text == first.text
            and all(outcome.traits[name] == first.traits[name] for name in decisive),
        }
        rows.append(row | outcome.figures)
        histories.append(outcome.history.assign(variant=row["variant"]))
    table = pd.DataFrame(rows)
    measure = LOSS
    if {"data.tokenizer", "data.vocab_size"} & {*differing}:
        measure = BITS
        table = table.drop(columns=[title for title in table if LOSS in title])
    return Comparison(table, pd.concat(histories), measure, [EXPLANATION, *left_out])


def _told(title: str, mean: float, error: float) -> str:
    """A figure as text, such as "2.4513 ± 0.0030"."""
    if np.isnan(mean):
        return ""
    number = "{:.4f}".format if title in (DIFFERENCE, LOSS, BEST, BITS) else short
    return f"{number(mean)} ± {number(error)}" if error > 0 else number(mean)
