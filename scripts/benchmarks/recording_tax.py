"""What recording attention costs: `python train.py` with the maps and without them, and whether the weights differ."""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from typing import Any

from scripts.benchmarks.processes import (
    Turn,
    alternate,
    config_path,
    median,
    one_device,
    run_job,
    run_training,
    times_faster,
)
from scripts.benchmarks.report import Limits, Report
from scripts.parser import at_least

HELP = "a training with recorded attention maps against the same without"
CONFIG = "configs/default.yaml"
COLUMNS = {
    "config": "config",
    "parameters": "parameters",
    "steps": "steps",
    "recordings": "recordings",
    "seconds with": "seconds_with",
    "without": "seconds_without",
    "tax": "tax",
    "recording itself": "recording_seconds",
    "of the rest": "recording_share",
    "same weights": "same_weights",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", default=CONFIG, metavar="YAML", help=f"(default: {CONFIG})")
    add("--steps", type=at_least(1), default=1000, help="of training (default: 1000)")
    add("train_options", nargs="*", metavar="-- OPTION", help="options for train.py, after all others and a --")


def run(options: argparse.Namespace, limits: Limits) -> Report:
    report = Report(COLUMNS)
    with tempfile.TemporaryDirectory() as folder:
        jobs = {name: partial(train, name, folder, options) for name in ("with", "without")}
        results = alternate(jobs, options.rounds)
        checkpoints = [f"{folder}/{name}-0/checkpoints/last.ckpt" for name in jobs]
        same = run_job("training:same_weights", {"paths": checkpoints})["same"]
    recorded = results["with"]
    for result in recorded:
        result["recording_share"] = result["recording_seconds"] / (result["seconds"] - result["recording_seconds"])
    report.rows = [
        {
            "config": options.config,
            "parameters": recorded[0]["parameters"],
            "precision": recorded[0]["precision"],
            "steps": recorded[0]["steps"],
            "recordings": recorded[0]["recordings"],
            "seconds_with": median(recorded, "seconds"),
            "seconds_without": median(results["without"], "seconds"),
            "tax": times_faster(results["without"], recorded),
            "tax_of_rounds": [a["seconds"] / b["seconds"] for a, b in zip(recorded, results["without"], strict=True)],
            "recording_seconds": median(recorded, "recording_seconds"),
            "recording_share": median(recorded, "recording_share"),
            "same_weights": same,
        }
    ]
    report.notes += [
        "seconds of the whole fit: validation, samples and checkpoints too, in both.",
        "recording itself: the time inside the callback, which no other work on the machine blurs.",
    ]
    return report


def train(name: str, folder: str, options: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    arguments = {
        "config": config_path(options.config),
        **one_device(options.device),
        "trainer.max_steps": options.steps,
        "trainer.default_root_dir": folder,
        "name": f"{name}-{turn.number}",
        "attention.enabled": "true" if name == "with" else "false",
    }
    return run_training("FitClock", {}, arguments, options.train_options, turn.cache)
