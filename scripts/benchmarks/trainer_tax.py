"""What the Trainer costs: a step of `python train.py` by a step of a bare loop, stretch by stretch in one process.

Both train the same model with the same optimizer on the same data, so that only what stands around them differs.
Figures and progress are logged as shipped; maps, samples and validation have their own prices and are off.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from scripts.benchmarks.processes import config_path, one_device, run_training
from scripts.benchmarks.report import Limits, Report
from scripts.parser import at_least

HELP = "our Trainer against our own bare loop, for each config"
CPU_CONFIGS = [f"configs/{name}.yaml" for name in ("default", "shakespeare_char", "induction", "debug")]
COLUMNS = {
    "config": "config",
    "parameters": "parameters",
    "tokens/step": "tokens_per_step",
    "precision": "precision",
    "Trainer ms/step": "trainer_milliseconds",
    "bare ms/step": "bare_milliseconds",
    "difference ms": "difference_milliseconds",
    "pairs": "pairs",
    "tax": "tax",
    "MFU": "mfu",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--configs", nargs="+", default=CPU_CONFIGS, metavar="YAML", help=f"(default: {' '.join(CPU_CONFIGS)})")
    add("--data", metavar="FILE", help="the text for configs/shakespeare_char.yaml, which is left out without it")
    add("--stretch", type=at_least(1), default=10, help="steps of the one before the other's turn (default: 10)")
    add("--pairs", type=at_least(1), default=15, help="stretches of each at least (default: 15)")
    add("--seconds", type=at_least(0, float), default=45.0, help="for each config, once warmed up (default: 45)")
    add("train_options", nargs="*", metavar="-- OPTION", help="options for train.py, after all others and a --")


def run(options: argparse.Namespace, limits: Limits) -> Report:
    report = Report(COLUMNS)
    for config in options.configs:
        text = {}
        if Path(config).name == "shakespeare_char.yaml":
            if options.data is None:
                report.notes.append(f"{config} is left out: name its text with --data")
                continue
            text = {"data.files": Path(options.data).resolve()}
        report.rows.append(row(config, text, options, limits.flops))
    report.notes.append(f"tax: median of pairs of {options.stretch} steps each, Trainer by bare loop.")
    return report


def row(config: str, text: dict[str, Path], options: argparse.Namespace, flops: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "config": config_path(config),
            **text,
            **one_device(options.device),
            "trainer.max_steps": 1_000_000_000,
            "trainer.val_check_interval": 1_000_000_000,
            "trainer.limit_val_batches": 1,
            "trainer.default_root_dir": folder,
            "attention.enabled": "false",
            "samples.max_new_tokens": 0,
        }
        measured = {"stretch": options.stretch, "seconds": options.seconds, "min_pairs": options.pairs}
        result = run_training("BesideBareLoop", measured, arguments, options.train_options)
    trainer, bare = result["trainer"], result["bare"]
    trainer_seconds, bare_seconds = statistics.median(trainer), statistics.median(bare)
    return {
        "config": config,
        **{key: result[key] for key in ("parameters", "tokens_per_step", "precision")},
        "trainer_milliseconds": 1000 * trainer_seconds,
        "bare_milliseconds": 1000 * bare_seconds,
        "difference_milliseconds": 1000 * statistics.median(t - b for t, b in zip(trainer, bare, strict=True)),
        "pairs": len(trainer),
        "tax": statistics.median(t / b for t, b in zip(trainer, bare, strict=True)),
        "tax_of_pairs": [t / b for t, b in zip(trainer, bare, strict=True)],
        "mfu": result["flops_per_token"] * result["tokens_per_step"] / trainer_seconds / flops,
    }
