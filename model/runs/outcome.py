"""What a run has reached so far, and in what it may differ from other runs: read from a few small files of its folder.

The files may come from a stranger: they are data, and only shown.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from data.corpora import CorpusOptions
from model.files import whole_lines
from model.inspection.formation import formation
from model.mistakes import parsing
from model.pages.learning import Rows, training_seconds
from model.runs.code import read_code
from model.runs.configs import flat, read_config
from model.runs.metrics_file import read_metrics
from model.runs.run import CODE, CONFIG, HEAD_SCORES, METRICS, Run
from model.runs.terminal import shown

IGNORED = ("seed_everything", "wandb", "trainer.default_root_dir", "data.cache_dir")  # options that make no difference
# The options that choose the text on which a run validates, unless it has data.validation_files.
TEXT = ["data.corpus", "data.max_tokens", "trainer.limit_val_batches"]
TEXT += [f"data.{option.name}" for option in fields(CorpusOptions)]
LOSS = "val/loss"
BITS = "val/bits_per_byte"
SPEED = "tokens_per_second"


@dataclass(frozen=True)
class Outcome:
    """What a run has reached so far.

    traits: what the runs of a variant have in common, by name: options, its state, and the code of each file as digits.
    conditions: losses are comparable if these are equal: the run's state, the options that choose the text on which it
        validates, and the checksum of the tokens of that text.
    history: see `history_of`.
    figures: by the title of a column: its name as "runs", its "seed", and numbers.
    """

    traits: Mapping[str, str]
    conditions: Sequence[Any]
    history: DataFrame
    figures: Mapping[str, Any]


def read_outcome(path: Path, goal: float | None = None) -> Outcome:
    """Reads the outcome of a run, which may still be training. goal: see `figures_of`.

    Raises a `Mistake` if there is no such run, or if one of its files is damaged.
    """
    run = Run.open(path, CODE)
    folder, state = run.folder, run.state
    options = dict(flat(read_config(folder / CONFIG)))
    starts = read_code(folder)
    rows = read_metrics(folder / METRICS)
    scores = whole_lines(folder / HEAD_SCORES)
    with parsing(folder):
        last = starts[-1]
        history = history_of(rows, last["flops_per_token"])
        figures = {"runs": shown(folder.resolve().name), "seed": options["seed_everything"]}
        figures |= figures_of(history, goal)
        figures["parameters"] = float(last["parameters"])
        snapshots = map(json.loads, scores.splitlines())
        formed = formation((each["step"], each["formed"]) for each in snapshots)
        figures |= {f"{score} formed": min(heads.values(), default=np.nan) for score, heads in formed.items()}

        if state != "finished":
            state = f"{state} at step {history.index[-1]} of {options['trainer.max_steps']} in {folder}"
        traits = {name: str(value) for name, value in options.items() if name not in IGNORED}
        traits["state"] = state
        for file in last["hashes"]:
            digits = dict.fromkeys(start["hashes"].get(file, "none")[:6] for start in starts)
            traits[file] = " then ".join(digits)
        text = options["data.validation_files"] or [options.get(name) for name in TEXT]
        return Outcome(traits, [state, text, last["validation_text"]], history, figures)


def history_of(rows: Rows, flops_per_token: float) -> DataFrame:
    """Returns LOSS, BITS and SPEED by step, NaN where unknown, and all that a curve may be drawn over.

    These are "steps", "tokens", "seconds" in training steps, and "flops".
    """
    history = DataFrame([{"step": 0, "tokens": 0}, *rows], columns=["step", "tokens", LOSS, BITS, SPEED])
    history = history.groupby("step").last()
    history["steps"] = history.index
    history["seconds"] = Series(dict(training_seconds(rows)))
    history = history.fillna(history[["tokens", "seconds"]].interpolate("index"))
    history["flops"] = history["tokens"] * flops_per_token
    return history


def figures_of(history: DataFrame, goal: float | None) -> dict[str, float]:
    """Returns the figures of a history. goal: a validation loss; adds the steps and minutes until it was reached."""
    last = history.ffill().iloc[-1]
    figures = {LOSS: last[LOSS], f"best {LOSS}": history[LOSS].min(), BITS: last[BITS]}
    if goal is not None:
        reached = history[history[LOSS] <= goal].min()
        figures[f"steps to {LOSS} {goal:g}"] = reached["steps"]
        figures[f"minutes to {LOSS} {goal:g}"] = reached["seconds"] / 60
    figures["tokens"] = last["tokens"]
    figures["FLOPs"] = last["flops"]
    figures[SPEED] = history[SPEED].median()
    return figures
