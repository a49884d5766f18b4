"""Compares runs: variants over seeds, as a table and as curves.

Only a few small files of each run are read, and torch is not imported: 200 runs take a few seconds. The files may come
from a stranger: they are data, and only shown.
"""

import glob
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from model.inspection.formation import formation
from model.mistakes import Mistake, parsing
from model.pages.learning import short, training_seconds
from model.runs.code import read_code
from model.runs.configs import compared
from model.runs.records import Row, read_lines, read_metrics
from model.runs.run import CODE, CONFIG, HEAD_SCORES, METRICS, Run
from model.runs.scaling import power_law
from model.runs.terminal import sentence, shown

TOKENIZER = ["data.tokenizer", "data.vocab_size"]
STATE = "state"
TRAINED = "training text"  # the checksum of its tokens
TOKENS = "validation text"
BYTES = "validation bytes"  # the length of this text, which is the same with every tokenizer
LOSS = "val/loss"
BITS = "val/bits_per_byte"
SPEED = "tokens_per_second"
FLOPS = "FLOPs per token"
DIFFERENCE = "difference"
GOAL = f" to {LOSS} "  # in the titles of the steps and minutes to a loss
WIDEST = 300  # characters of a column in a terminal
ERROR = " ±"  # ends the title of a standard error
EXPLANATION = (
    "each row is named by what differs from the first; ±: standard error over seeds; difference: from the first row, "
    "over pairs of runs with the same seed; minutes: of training steps, without validation, recording and saving; "
    "empty: unknown, not reached in every run, or, as a difference, not comparable: unfinished, or validated on other "
    "text, or without a run of the same seed; other figures that are the same in all rows are not shown"
)


@dataclass(frozen=True)
class Comparison:
    """Shows itself as a table: as text in a terminal, as HTML in a notebook.

    rows: see `over_seeds`.
    histories: the histories of all runs, by "variant", "seed" and "step".
    measure: the figure by which all variants can be compared: BITS if they have several tokenizers, else LOSS.
    notes: sentences below the table.
    """

    rows: pd.DataFrame
    histories: pd.DataFrame
    measure: str
    notes: list[str]

    def table(self) -> pd.DataFrame:
        """The rows as text, without the figures that are the same in all rows."""
        table = pd.DataFrame(index=self.rows.index)
        for title in self.rows:
            if title + ERROR in self.rows:
                figures = self.rows[[title, title + ERROR]].to_numpy()
                table[title] = [with_error(title, *figure) for figure in figures]
        is_wanted = table.columns.str.contains(GOAL) | table.columns.isin([self.measure, DIFFERENCE])
        varies = table.nunique() > 1 if len(table) > 1 else (table != "").any()
        table = table.loc[:, varies | is_wanted]
        table = table.rename(columns={DIFFERENCE: f"{DIFFERENCE} of {self.measure}"})
        return table.join(self.rows[["seeds", "pairs", "runs"]])

    def __repr__(self) -> str:
        table = self.table().to_string(index_names=False, max_colwidth=WIDEST)
        return "\n".join([table, "", *self.notes])

    def html(self) -> str:
        notes = [f"<p>{escape(note)}</p>" for note in self.notes]
        return "\n".join([self.table().to_html(index_names=False), *notes])

    _repr_html_ = html

    def curves(self, axis: str) -> pd.DataFrame:
        """By variant and step: "x", a column of `history_of`, "y", the mean of the measure, and its "error"."""
        by_seed = self.histories.dropna(subset=self.measure).groupby(["variant", "seed", "step"], sort=False).mean()
        points = by_seed.groupby(["variant", "step"], sort=False)
        measured = points[self.measure]
        return pd.DataFrame({"x": points[axis].mean(), "y": measured.mean(), "error": measured.sem()})

    def fit(self) -> str:
        """Fits a scaling law to the variants that can be compared with the first, see `power_law`."""
        rows = self.rows[self.rows["comparable"]]
        return power_law(rows["tokens"] * rows[FLOPS], rows[self.measure], self.measure)


def compare(runs: Iterable[str | Path] | str | Path, goal: float | None = None) -> Comparison:
    """Compares runs, given by their folders or by patterns such as "runs/lr-*"; others are compared with the first.

    goal: a validation loss; adds the steps and minutes to it.

    Runs that cannot be read are left out and named. Raises a `Mistake` if none is left.
    """
    folders: dict[Path, str] = {}  # each run once, even if it is given twice, or by a link
    for run in [runs] if isinstance(runs, (str, Path)) else runs:
        # The name of an existing folder is not a pattern, though it may look like one: lr[1].
        matches = [] if Path(run).exists() else sorted(glob.glob(str(run)))  # noqa: PTH207
        folders |= {Path(path).resolve(): path for path in matches or [str(run)]}
    outcomes, notes = [], []
    for path in folders.values():
        try:
            outcomes.append(read_outcome(Path(path), goal))
        except Mistake as error:
            notes.append(f"left out: {sentence(error)}")
    if not outcomes:
        raise Mistake("; ".join(["there is no run to compare", *notes]))
    all_traits, code, all_figures, histories = zip(*outcomes, strict=True)
    traits, figures = pd.DataFrame(all_traits), pd.DataFrame(all_figures)
    traits = traits.fillna(traits.filter(like=".py").bfill().iloc[0])  # a module not loaded yet is no other code

    measure = LOSS
    if traits.filter(TOKENIZER).nunique().gt(1).any():
        measure = BITS
        traits = traits.drop(columns=[TRAINED, TOKENS])
        figures = figures.drop(columns=figures.filter(like=LOSS))
        if goal is not None:
            notes.append("no steps and minutes to a loss, because nats per token do not compare across tokenizers")
    validated = traits.filter([STATE, TOKENS, BYTES])
    figures.insert(0, DIFFERENCE, figures[measure].where((validated == validated.iloc[0]).all(axis=1)))
    figures["variant"] = variants(traits, ChainMap(*code))
    return Comparison(
        over_seeds(figures),
        pd.concat(histories, keys=zip(figures["variant"], figures["seed"], strict=True), names=["variant", "seed"]),
        measure,
        [EXPLANATION, *notes],
    )


def variants(traits: pd.DataFrame, words: Mapping[str, str]) -> list[str]:
    """Names the variant of each run by what differs from the first run; the first one by all that differs in others.

    words: for the digits of changed files, see `read_outcome`.
    """
    traits = traits.fillna("none")
    varying = traits.columns[traits.nunique() > 1]
    first, *others = traits.to_dict("records")
    names = []
    for own in (first, *others):
        differing = [name for name in varying if own == first or own[name] != first[name]]
        label = ", ".join(f"{name} {words.get(own[name], own[name])}" for name in differing)
        names.append(shown(label) or traits[STATE][0])
    return names


def read_outcome(path: Path, goal: float | None) -> tuple[dict[str, Any], dict[str, str], dict[str, Any], pd.DataFrame]:
    """Reads what a run has reached so far, which may still be training.

    Returns:
        What the runs of a variant share: options, and since which step they or the code are other ones; STATE, TRAINED,
            TOKENS, BYTES; and the first digits of each file's hash.
        What the digits of changed files are called, such as "3f2a1b changed: +9 -2".
        The figures of the table: the run's name as "runs", its "seed", and numbers, see `figures_of`.
        The `history_of` the run.

    Raises a `Mistake` if there is no such run, or if one of its files is damaged.
    """
    run = Run.open(path, CODE)
    folder, state = run.folder, run.state
    options = compared(folder / CONFIG)
    starts = read_code(folder)
    rows = read_metrics(folder / METRICS)
    snapshots = read_lines(folder / HEAD_SCORES)
    with parsing(folder):
        last = starts[-1]
        history = history_of(rows, last["flops_per_token"])
        end = options["trainer.max_steps"]
        # A run that was killed once its last step was saved has finished, though its state.json does not say so.
        if state != "finished" and (state == "diverged" or pd.isna(history[LOSS].get(end))):
            unended = "running or killed" if state == "running" else state
            state = f"{unended} at step {history.index[-1]} of {end} in {folder}"
        else:
            state = "finished"
        shared = options | {
            STATE: state,
            TRAINED: last.get("training_tokens"),
            TOKENS: last["validation_tokens"],
            BYTES: last["validation_bytes"],
        }
        traits = {name: str(value) for name, value in shared.items()}
        for before, start in pairwise(starts):
            if start["options"] != before["options"] or start["since"]:
                traits[f"other options or code at step {start['step']}"] = "yes"
            if start["validation_tokens"] != before["validation_tokens"]:
                history.loc[: start["step"], [LOSS, BITS]] = np.nan  # on other text, so no figure of today's
        for file in last["hashes"]:
            digits = [start["hashes"][file][:6] for start in starts if file in start["hashes"]]
            traits[file] = " then ".join(dict.fromkeys(digits))
        code = {traits[file]: f"{traits[file]} {changed}" for file, changed in last["changed"].items()}
        formed = formation((each["step"], each["formed"]) for each in snapshots)
        figures = {
            "runs": shown(folder.resolve().name),
            "seed": int(traits.pop("seed_everything")),
            **figures_of(history, goal),
            "parameters": last["parameters"],
            FLOPS: last["flops_per_token"],
            **{f"{score} formed": min(heads.values(), default=np.nan) for score, heads in formed.items()},
        }
        return traits, code, figures, history


def history_of(rows: list[Row], flops_per_token: float) -> pd.DataFrame:
    """Returns LOSS, BITS and SPEED by step, NaN where unknown, and all that a curve may be drawn over.

    These are "steps", "tokens", "seconds" in training steps, and "flops".
    """
    history = pd.DataFrame([{"step": 0, "tokens": 0}, *rows], columns=["step", "tokens", LOSS, BITS, SPEED])
    history = history.groupby("step").last()
    history["seconds"] = pd.Series(dict(training_seconds(rows)))
    history = history.fillna(history[["tokens", "seconds"]].interpolate("index"))
    return history.assign(steps=history.index, flops=history["tokens"] * flops_per_token)


def figures_of(history: pd.DataFrame, goal: float | None) -> dict[str, float]:
    """Returns the figures of a history. goal: a validation loss; adds the steps and minutes until it was reached."""
    last = history.ffill().iloc[-1]
    figures = {LOSS: last[LOSS], f"best {LOSS}": history[LOSS].min(), BITS: last[BITS]}
    if goal is not None:
        reached = history[history[LOSS] <= goal].min()
        figures[f"steps{GOAL}{goal:g}"] = reached["steps"]
        figures[f"minutes{GOAL}{goal:g}"] = reached["seconds"] / 60
    return figures | {"tokens": last["tokens"], SPEED: history[SPEED].median()}


def over_seeds(figures: pd.DataFrame) -> pd.DataFrame:
    """Returns by variant the mean of each figure over "seeds" with its standard error, see ERROR, and its "runs".

    figures: a row for each run. DIFFERENCE has what is compared with the first variant, in "pairs" of the same seed;
        it is NaN in runs that are not "comparable".

    Runs with the same seed count as one. A figure that one seed lacks is NaN.
    """
    by_seed = figures.groupby(["variant", "seed"], sort=False).mean(numeric_only=True)
    is_comparable = by_seed[DIFFERENCE].notna().groupby("variant", sort=False).all()
    first = by_seed.loc[figures["variant"][0], DIFFERENCE]
    by_seed[DIFFERENCE] = by_seed[DIFFERENCE].sub(first, level="seed")
    seeds = by_seed.groupby("variant", sort=False)
    is_known = seeds.count().eq(seeds.size(), axis=0)
    is_known[DIFFERENCE] = True
    rows = seeds.mean().where(is_known).join(seeds.sem().where(is_known).add_suffix(ERROR))
    rows["seeds"] = seeds.size()
    rows["pairs"] = seeds[DIFFERENCE].count()
    rows["comparable"] = is_comparable
    rows["runs"] = figures.groupby("variant")["runs"].agg(", ".join)
    return rows


def with_error(title: str, mean: float, error: float) -> str:
    """A figure as text, such as "2.4513 ± 0.0030"."""
    if np.isnan(mean):
        return ""
    number = "{:.4f}".format if title.endswith((DIFFERENCE, LOSS, BITS)) else short
    text = number(mean).replace("-0.0000", "0.0000")
    return f"{text} ± {number(error)}" if error > 0 else text
