"""What the recipe is worth: the shipped default run against GPT-2's architecture and plain AdamW in the same time.

Both are `python train.py` on the same text, tokens, layers, width and batches. Ours trains as shipped; the other gets
as many steps as fit into the seconds that ours took, with a schedule that ends there. Validation is not counted, and
is the same exact pass over all validation files for both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from typing import Any

from scripts.benchmarks.processes import Turn, alternate, config_path, flags, median, one_device, run_training
from scripts.benchmarks.report import Limits, Report

HELP = "bits per byte of the default run against GPT-2's architecture and AdamW in the same time"
CONFIG = "configs/default.yaml"
LEARNING_RATES = (1e-3, 3e-3)  # nanoGPT's for models this small, and one that suits a short run better
CALIBRATION_STEPS = 10
GPT2 = {
    "position": "learned",
    "norm": "layernorm",
    "embedding_norm": "false",
    "activation": "gelu_exact",
    "bias": "true",
    "tie_embeddings": "true",
    "qk_norm": "false",
    "value_embeddings": "false",
    "bigram_buckets": "null",
    "logit_soft_cap": "null",
}
ADAMW = {
    "optimizer.algorithm": "adamw",
    "optimizer.head_learning_rate": "null",
    "optimizer.weight_decay": "0.1",
    "optimizer.betas": "[0.9,0.99]",
    "schedule.decay": "cosine",
    "schedule.decay_fraction": "1.0",
    "schedule.final_factor": "0.1",
}
COLUMNS = {
    "contender": "contender",
    "parameters": "parameters",
    "tokens/step": "tokens_per_step",
    "precision": "precision",
    "steps": "steps",
    "seconds": "seconds",
    "MFU": "mfu",
    "bits/byte": "bits_per_byte",
    "ours lower by": "lower_by",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", default=CONFIG, metavar="YAML", help=f"our recipe (default: {CONFIG})")
    add(
        "--learning_rates",
        nargs="+",
        type=float,
        default=LEARNING_RATES,
        metavar="RATE",
        help=f"AdamW's, each a contender (default: {' '.join(map(str, LEARNING_RATES))})",
    )
    add("train_options", nargs="*", metavar="-- OPTION", help="options for train.py in all runs, after a --")


def run(options: argparse.Namespace, limits: Limits) -> Report:
    report = Report(COLUMNS)
    seconds: dict[int, float] = {}  # that ours took in each round, for the others of that round
    jobs = {"glassgpt": partial(train_ours, seconds, options)}
    jobs |= {f"gpt2+adamw {rate:g}": partial(train_peer, rate, seconds, options) for rate in options.learning_rates}
    report.rows = rows(alternate(jobs, options.rounds), limits.flops)
    report.notes += [
        f"medians of {options.rounds} seeds; seconds of training, validation not counted.",
        "bits/byte: of all validation files, after the last step.",
    ]
    return report


def train_ours(seconds: dict[int, float], options: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    result = train({}, options, turn)
    seconds[turn.number] = result["seconds"]
    return result


def train_peer(
    learning_rate: float, seconds: dict[int, float], options: argparse.Namespace, turn: Turn
) -> dict[str, Any]:
    peer = peer_options(learning_rate)
    trial = train(peer | {"trainer.max_steps": CALIBRATION_STEPS}, options, turn)
    steps = max(1, round(seconds[turn.number] / statistics.median(trial["step_seconds"])))
    return train(peer | {"trainer.max_steps": steps}, options, turn)


def peer_options(learning_rate: float) -> dict[str, Any]:
    """What turns our recipe into GPT-2's architecture, trained as nanoGPT trains it."""
    architecture = {f"model.gpt.{name}": value for name, value in GPT2.items()}
    optimizer = {f"model.{name}": value for name, value in ADAMW.items()}
    rate = {"model.optimizer.learning_rate": learning_rate, "trainer.gradient_clip_val": 1.0}
    return architecture | optimizer | rate


def train(own: dict[str, Any], options: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "config": config_path(options.config),
            **one_device(options.device),
            "trainer.val_check_interval": 1_000_000_000,
            "trainer.default_root_dir": folder,
            "seed_everything": turn.number,
            "attention.enabled": "false",
            "samples.max_new_tokens": 0,
        }
        # What makes it the peer comes behind what a person has typed for both, or it might no longer be one.
        return run_training("TrainingClock", {}, arguments, [*options.train_options, *flags(own)], turn.cache)


def rows(results: dict[str, list[dict[str, Any]]], flops: float) -> list[dict[str, Any]]:
    made = []
    for name, rounds in results.items():
        first, seconds, bits = rounds[0], median(rounds, "seconds"), median(rounds, "bits_per_byte")
        flops_per_step = first["flops_per_token"] * first["tokens_per_step"]
        pairs = zip(results["glassgpt"], rounds, strict=True)
        made.append(
            {
                "contender": name,
                **{key: first[key] for key in ("parameters", "tokens_per_step", "precision")},
                "validation_tokens": first["validation_tokens"],
                "steps": median(rounds, "steps"),
                "seconds": seconds,
                "mfu": flops_per_step * median(rounds, "steps") / seconds / flops,
                "bits_per_byte": bits,
                "bits_per_byte_of_seeds": [result["bits_per_byte"] for result in rounds],
                "lower_by": statistics.median(their["bits_per_byte"] - our["bits_per_byte"] for our, their in pairs),
            }
        )
    return made
