"""What a run has reached so far, and in what it may differ from other runs: read from a few small files of its folder.

The files may come from a stranger: they are data, and only shown.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pandas import DataFrame, Series

from model.files import whole_lines
from model.inspection.formation import formation
from model.mistakes import parsing
from model.pages.learning import training_seconds
from model.runs.code import read_code
from model.runs.configs import flat, read_config
from model.runs.metrics_file import Row, read_metrics
from model.runs.run import CODE, CONFIG, HEAD_SCORES, METRICS, Run
from model.runs.terminal import shown

IGNORED = ("seed_everything", "wandb", "trainer.default_root_dir", "data.cache_dir")  # options that make no difference
STATE = "state"
TOKENS = "validation tokens"  # the checksum of those on which a run validates
BYTES = "validation bytes"  # the length of their text, which is the same with every tokenizer
LOSS = "val/loss"
BITS = "val/bits_per_byte"
SPEED = "tokens_per_second"
FLOPS = "FLOPs per token"


class Outcome(NamedTuple):
    """What a run has reached so far."""

    traits: dict[str, Any]  # what the runs of a variant share: options, STATE, TOKENS, BYTES, and digits for each file
    code: dict[str, str]  # the digits of changed files -> what they are called, such as "3f2a1b changed: +9 -2"
    figures: dict[str, Any]  # columns of the table: its name as "runs", its "seed", and numbers
    history: DataFrame  # see `history_of`


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
        snapshots = map(json.loads, scores.splitlines())
        formed = formation((each["step"], each["formed"]) for each in snapshots)
        figures = {
            "runs": shown(folder.resolve().name),
            "seed": options["seed_everything"],
            **figures_of(history, goal),
            "parameters": last["parameters"],
            FLOPS: last["flops_per_token"],
            **{f"{score} formed": min(heads.values(), default=np.nan) for score, heads in formed.items()},
        }
        if state != "finished":
            state = f"{state} at step {history.index[-1]} of {options['trainer.max_steps']} in {folder}"
        traits = {name: str(value) for name, value in options.items() if name not in IGNORED}
        traits |= {STATE: state, TOKENS: last["validation_tokens"], BYTES: last["validation_bytes"]}
        for file in last["hashes"]:
            digits = dict.fromkeys(start["hashes"].get(file, "none")[:6] for start in starts)
            traits[file] = " then ".join(digits)
        code = {traits[file]: f"{traits[file]} {changed}" for file, changed in last["changed"].items()}
        return Outcome(traits, code, figures, history)


def history_of(rows: list[Row], flops_per_token: float) -> DataFrame:
    """Returns LOSS, BITS and SPEED by step, NaN where unknown, and all that a curve may be drawn over.

    These are "steps", "tokens", "seconds" in training steps, and "flops".
    """
    history = DataFrame([{"step": 0, "tokens": 0}, *rows], columns=["step", "tokens", LOSS, BITS, SPEED])
    history = history.groupby("step").last()
    history["seconds"] = Series(dict(training_seconds(rows)))
    history = history.fillna(history[["tokens", "seconds"]].interpolate("index"))
    return history.assign(steps=history.index, flops=history["tokens"] * flops_per_token)


def figures_of(history: DataFrame, goal: float | None) -> dict[str, float]:
    """Returns the figures of a history. goal: a validation loss; adds the steps and minutes until it was reached."""
    last = history.ffill().iloc[-1]
    figures = {LOSS: last[LOSS], f"best {LOSS}": history[LOSS].min(), BITS: last[BITS]}
    if goal is not None:
        reached = history[history[LOSS] <= goal].min()
        figures[f"steps to {LOSS} {goal:g}"] = reached["steps"]
        figures[f"minutes to {LOSS} {goal:g}"] = reached["seconds"] / 60
    return figures | {"tokens": last["tokens"], SPEED: history[SPEED].median()}
