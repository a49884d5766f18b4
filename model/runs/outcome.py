"""What a run has reached so far, and in what it may differ from other runs: read from a few small files of its folder.

The files may come from a stranger: they are data, and only shown.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from data.corpora import CorpusOptions
from model.files import content_of
from model.inspection.formation import formation
from model.mistakes import parsing
from model.pages.learning import Rows, column_points, training_seconds
from model.runs.code import read_code
from model.runs.configs import flat, read_config
from model.runs.metrics_file import read_metrics
from model.runs.run import CODE, CONFIG, HEAD_SCORES, METRICS, PROBES, Run
from model.runs.terminal import sentence

IGNORED = ("seed_everything", "wandb", "trainer.default_root_dir", "data.cache_dir")  # options that make no difference
# The options that choose the text on which a run validates, unless it has data.validation_files.
TEXT = ["data.corpus", "data.max_tokens", "trainer.limit_val_batches"]
TEXT += [f"data.{option.name}" for option in fields(CorpusOptions)]
LOSS, BITS, SPEED = "val/loss", "val/bits_per_byte", "tokens_per_second"
FLOPS = "FLOPs"
BEST = f"best {LOSS}"
AXES = ("steps", "tokens", "seconds", "flops")  # of `history_of`


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run has reached so far.

    traits: what repetitions of a run have in common, by name: options, the code of each file, the probes, its state.
    changed: by file of the code the lines added and removed, such as "+9 -2".
    text: the options that choose the text on which it validates.
    history: see `history_of`.
    figures: by the title of a column.
    """

    name: str
    seed: Any
    traits: Mapping[str, str]
    changed: Mapping[str, str]
    text: Sequence[Any]
    history: DataFrame
    figures: dict[str, float]

    def told(self, name: str) -> str:
        """Tells a trait, such as "model.gpt.num_layers 2" or "model/attention.py +9 -2 3fa2c1"."""
        return " ".join([name, *filter(None, [self.changed.get(name)]), self.traits[name]])


def read_outcome(path: Path, goal: float | None = None) -> Outcome:
    """Reads the outcome of a run, which may still be training. goal: see `figures_of`.

    Raises a `Mistake` if there is no such run, or if one of its files is damaged.
    """
    run = Run.open(path, METRICS)
    folder = run.folder
    options = dict(flat(read_config(folder / CONFIG)))
    rows, starts, state = read_metrics(folder / METRICS), read_code(folder), run.state
    with parsing(folder):
        snapshots = map(json.loads, content_of(folder / HEAD_SCORES).splitlines())
        last = starts[-1] if starts else {}

        history = history_of(rows, last.get("flops_per_token", np.nan))
        figures = figures_of(history, goal)
        figures["parameters"] = float(last.get("parameters", np.nan))
        for score, heads in formation((snapshot["step"], snapshot["formed"]) for snapshot in snapshots).items():
            if heads:
                figures[f"{score} formed"] = min(heads.values())

        traits = {name: str(value) for name, value in options.items() if name not in IGNORED}
        traits[CODE] = "recorded" if starts else "not recorded"
        for file in dict.fromkeys(file for start in starts for file in start["hashes"]):
            hashes = dict.fromkeys(start["hashes"].get(file, "")[:6] for start in starts)
            traits[file] = " then ".join(hashes)
        step, planned = max(history.index, default=0), options["trainer.max_steps"]
        state = state or ("finished" if step >= planned > 0 else "unfinished")
        traits["state"] = state if state == "finished" else f"{state} at step {step} of {planned} in {folder}"
        traits[PROBES] = f"{zlib.crc32(content_of(folder / PROBES)):08x}"
        return Outcome(
            name=sentence(folder.resolve().name),
            seed=str(options["seed_everything"]),
            traits=traits,
            changed={file: "+{} -{}".format(*counts) for file, counts in last.get("changed", {}).items()},
            text=options.get("data.validation_files") or [options.get(name) for name in TEXT],
            history=history,
            figures=figures,
        )


def history_of(rows: Rows, flops_per_token: float) -> DataFrame:
    """Returns the validation, SPEED, "tokens", "seconds" in training steps and "flops" by step; NaN where unknown."""
    steps = np.array([*dict.fromkeys([0, *(row["step"] for row in rows)])])
    history = DataFrame({name: dict(column_points(rows, name)) for name in (LOSS, BITS, SPEED)}, index=steps)
    history["steps"] = steps
    history["tokens"] = np.interp(steps, *np.array([(0, 0), *column_points(rows, "tokens")]).T)
    history["seconds"] = np.interp(steps, *np.array(training_seconds(rows)).T)
    history["flops"] = history["tokens"] * flops_per_token
    return history.rename_axis("step")


def figures_of(history: DataFrame, goal: float | None) -> dict[str, float]:
    """Returns the figures of a history. goal: a validation loss; adds the steps and minutes until it was reached."""
    last = history.ffill().iloc[-1]
    figures = {LOSS: last[LOSS], BEST: history[LOSS].min(), BITS: last[BITS]}
    if goal is not None:
        reached = history[history[LOSS] <= goal].min()
        figures[f"steps to {LOSS} {goal:g}"] = reached["steps"]
        figures[f"minutes to {LOSS} {goal:g}"] = reached["seconds"] / 60
    return figures | {"tokens": last["tokens"], FLOPS: last["flops"], SPEED: history[SPEED].median()}
