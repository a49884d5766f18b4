"""Steps a second of the same architecture: our GPT in GPT-2's form against nanoGPT, in their own bare loops."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from scripts.benchmarks.processes import Turn, alternate, fastest_of_ours, median, run_job, times_faster
from scripts.benchmarks.report import Limits, Report
from scripts.benchmarks.workload import Size, add_nanogpt, check, default_sizes, select
from scripts.parser import at_least

HELP = "training steps a second, same architecture, against nanoGPT"
COLUMNS = {
    "size": "size",
    "contender": "contender",
    "parameters": "parameters",
    "tokens/step": "tokens_per_step",
    "precision": "precision",
    "ms/step": "milliseconds_per_step",
    "tokens/s": "tokens_per_second",
    "MFU": "mfu",
    "our best faster, x": "times_faster",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_nanogpt(parser)
    parser.add_argument(
        "--sizes",
        nargs="+",
        metavar="SIZE",
        help="LAYERSxHEADSxWIDTH/BATCHxCONTEXT/VOCABULARY (default: nanoGPT's on a CPU and 6x6x384/16x256/65; "
        "on a GPU its character config and GPT-2)",
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        metavar="NAME",
        help="glassgpt, glassgpt+compile, glassgpt+reduce-overhead, or nanogpt with any of +compile, +allocator, +bf16 "
        "(default: all that can gain something on the device, but +bf16)",
    )
    parser.add_argument(
        "--seconds",
        type=at_least(0, float),
        default=15.0,
        help="time to train in each round after warming up (default: 15)",
    )


def run(options: argparse.Namespace, limits: Limits) -> Report:
    report = Report(COLUMNS)
    if options.device == "cuda":
        names = ["glassgpt", "glassgpt+reduce-overhead", "nanogpt", "nanogpt+compile"]
    else:
        names = ["glassgpt", "glassgpt+compile", "nanogpt", "nanogpt+compile"]
        names += ["nanogpt+allocator", "nanogpt+compile+allocator"]
    contenders = select(options.contenders or names, options, report.notes)
    for size in [Size.parse(text) for text in options.sizes or default_sizes(options.device)]:
        jobs = {name: partial(job, name, size, options) for name in contenders}
        report.rows += rows(size, alternate(jobs, options.rounds), limits.flops)
    if options.device == "cpu":
        report.notes.append(
            "glassgpt keeps freed memory in the process (model/device.py), as train.py does; nanogpt does not by "
            "itself, and with +allocator is given the same."
        )
    report.notes.append(
        "MFU: FLOPs per token x tokens a second / the matrix rate above, the best or else --peak_tflops."
    )
    return report


def job(contender: str, size: Size, options: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    settings = {"device": options.device, "steps": 2000, "seed": turn.number}
    if contender.startswith("nanogpt"):
        settings["checkout"] = options.nanogpt
    arguments = {"contender": contender, "size": size.to_dict(), "seconds": options.seconds, "options": settings}
    return run_job("training:throughput", arguments, turn.cache)


def rows(size: Size, results: dict[str, list[dict[str, Any]]], flops: float) -> list[dict[str, Any]]:
    made = []
    fastest = fastest_of_ours(results)
    for name, rounds in results.items():
        seconds = median(rounds, "seconds")
        first = rounds[0]
        made.append(
            {
                "size": str(size),
                "contender": name,
                "parameters": first["parameters"],
                "tokens_per_step": first["tokens_per_step"],
                "flops_per_token": first["flops_per_token"],
                "precision": first["precision"],
                "milliseconds_per_step": 1000 * seconds,
                "milliseconds_of_rounds": [1000 * result["seconds"] for result in rounds],
                "cold_seconds": first["cold_seconds"],
                "tokens_per_second": first["tokens_per_step"] / seconds,
                "mfu": first["flops_per_token"] * first["tokens_per_step"] / seconds / flops,
                "times_faster": fastest and times_faster(fastest, rounds),
            }
        )
    return check(made, "parameters", "tokens_per_step")
