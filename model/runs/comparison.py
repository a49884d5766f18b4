"""Compares runs: variants over seeds, as a table and as curves.

No checkpoint is opened and torch is not imported: 200 runs take a few seconds.
"""

import glob
from collections import ChainMap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from model.mistakes import Mistake
from model.pages.learning import short
from model.runs.outcome import BITS, BYTES, FLOPS, LOSS, STATE, TOKENS, read_outcome
from model.runs.scaling import power_law
from model.runs.terminal import sentence, shown

TOKENIZER = ["data.tokenizer", "data.vocab_size"]
DIFFERENCE = "difference"
LONGEST = 300  # characters of a column in a terminal
ERROR = " ±"  # ends the title of a standard error
EXPLANATION = (
    "±: standard error over seeds; difference: from the first row, over the seeds that both have; minutes: of training "
    "steps, without validation, recording and saving; empty: unknown, not reached in every run, or, as a difference, "
    "not comparable: unfinished, or validated on other text; figures that are the same in all rows are not shown"
)


@dataclass(frozen=True)
class Comparison:
    """Shows itself as a table: as text in a terminal, as HTML in a notebook.

    rows: see `over_seeds`.
    histories: the histories of all runs, by "variant" and "step".
    measure: the figure by which all variants can be compared: BITS if they have several tokenizers, else LOSS.
    notes: sentences below the table.
    """

    rows: pd.DataFrame
    histories: pd.DataFrame
    measure: str
    notes: Sequence[str]

    def table(self) -> pd.DataFrame:
        """The rows as text, without the figures that are the same in all rows."""
        table = pd.DataFrame(index=self.rows.index)
        for title in self.rows:
            if title + ERROR in self.rows:
                figures = self.rows[[title, title + ERROR]].to_numpy()
                table[title] = [with_error(title, *figure) for figure in figures]
        if len(table) > 1:
            table = table.loc[:, table.nunique() > 1]
        return table.join(self.rows[["seeds", "runs"]])

    def __str__(self) -> str:
        table = self.table().to_string(index_names=False, max_colwidth=LONGEST)
        return "\n".join([table, "", *self.notes])

    def html(self) -> str:
        notes = [f"<p>{escape(note)}</p>" for note in self.notes]
        return "\n".join([self.table().to_html(index_names=False), *notes])

    _repr_html_ = html

    def curves(self, axis: str) -> pd.DataFrame:
        """By variant and step: "x", a column of `history_of`, "y", the mean of the measure, and its "error"."""
        points = self.histories.dropna(subset=self.measure).groupby(["variant", "step"], sort=False)
        measured = points[self.measure]
        return pd.DataFrame({"x": points[axis].mean(), "y": measured.mean(), "error": measured.sem()})

    def fit(self) -> str:
        """Fits a scaling law to the variants, see `power_law`."""
        rows = self.rows.dropna(subset=self.measure)
        return power_law(rows["tokens"] * rows[FLOPS], rows[self.measure])


def compare(runs: Iterable[str | Path], goal: float | None = None) -> Comparison:
    """Compares runs, given by their folders or by patterns such as "runs/lr-*"; others are compared with the first.

    goal: a validation loss; adds the steps and minutes to it.

    Runs that cannot be read are left out and named. Raises a `Mistake` if none is left.
    """
    paths = [path for run in runs for path in sorted(glob.glob(str(run))) or [str(run)]]  # noqa: PTH207
    outcomes = []
    left_out = []
    for path in dict.fromkeys(paths):
        try:
            outcomes.append(read_outcome(Path(path), goal))
        except Mistake as error:
            left_out.append(f"left out: {sentence(error)}")
    if not outcomes:
        raise Mistake("; ".join(["there is no run to compare", *left_out]))
    all_traits, code, all_figures, histories = zip(*outcomes, strict=True)
    traits, figures = pd.DataFrame(all_traits).fillna("none"), pd.DataFrame(all_figures)

    measure = LOSS
    if traits.filter(TOKENIZER).nunique().gt(1).any():
        measure = BITS
        traits = traits.drop(columns=TOKENS)
        figures = figures.drop(columns=figures.filter(like=LOSS))
    compared = traits.filter([STATE, TOKENS, BYTES, "trainer.limit_val_batches"])
    figures.insert(0, DIFFERENCE, figures[measure].where((compared == compared.iloc[0]).all(axis=1)))

    words = ChainMap(*code)
    variants = []
    for own in traits.loc[:, traits.nunique() > 1].to_dict("records"):
        label = ", ".join(f"{name} {words.get(value, value)}" for name, value in own.items())
        variants.append(shown(label) or traits[STATE][0])
    figures["variant"] = variants
    return Comparison(
        over_seeds(figures),
        pd.concat(histories, keys=variants, names=["variant"]),
        measure,
        [EXPLANATION, *left_out],
    )


def over_seeds(figures: pd.DataFrame) -> pd.DataFrame:
    """Returns by variant the mean of each figure over "seeds" with its standard error, see ERROR, and its "runs".

    figures: a row for each run. DIFFERENCE has what is compared with the first variant, seed by seed.

    Runs with the same seed count as one. A figure that one seed lacks is NaN.
    """
    by_seed = figures.groupby(["variant", "seed"], sort=False).mean(numeric_only=True)
    first = by_seed.loc[figures["variant"][0], DIFFERENCE]
    by_seed[DIFFERENCE] = by_seed[DIFFERENCE].sub(first, level="seed")
    seeds = by_seed.groupby("variant", sort=False)
    is_known = seeds.count().eq(seeds.size(), axis=0)
    is_known[DIFFERENCE] = True
    rows = seeds.mean().where(is_known)
    rows = rows.join(seeds.sem().where(is_known).add_suffix(ERROR))
    rows["seeds"] = seeds.size()
    rows["runs"] = figures.groupby("variant")["runs"].agg(", ".join)
    return rows


def with_error(title: str, mean: float, error: float) -> str:
    """A figure as text, such as "2.4513 ± 0.0030"."""
    if np.isnan(mean):
        return ""
    number = "{:.4f}".format if title.endswith((DIFFERENCE, LOSS, BITS)) else short
    return f"{number(mean)} ± {number(error)}" if error > 0 else number(mean)
