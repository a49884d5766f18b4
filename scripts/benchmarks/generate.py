"""Tokens a second written after a prompt: ours, nanoGPT, and GPT-2 of `transformers` with its cache.

All have the same architecture and size, weights that were never trained, and write exactly as many tokens.
"""

from __future__ import annotations

import argparse
from functools import partial
from importlib.util import find_spec
from typing import Any

from scripts.benchmarks.processes import Turn, alternate, median, run_job, times_faster
from scripts.benchmarks.report import Limits, Report
from scripts.benchmarks.workload import Size, add_nanogpt, anybody, check
from scripts.parser import at_least

HELP = "tokens a second written after a prompt, against nanoGPT and transformers"
COLUMNS = {
    "batch": "batch",
    "new tokens": "new_tokens",
    "contender": "contender",
    "parameters": "parameters",
    "precision": "precision",
    "seconds": "seconds",
    "tokens/s": "tokens_per_second",
    "of the limit": "of_limit",
    "ours faster, x": "times_faster",
}
NAMES = ("glassgpt", "nanogpt", "transformers")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_nanogpt(parser)
    add = parser.add_argument
    add("--batches", nargs="+", type=at_least(1), default=[1, 16], metavar="N", help="texts at once (default: 1 16)")
    add("--new_tokens", nargs="+", type=at_least(1), default=[256, 1000], metavar="N", help="(default: 256 1000)")
    add("--prompt_tokens", type=at_least(1), default=16, help="length of the prompt (default: 16)")
    add("--model", default="6x6x384", metavar="LAYERSxHEADSxWIDTH", help="(default: 6x6x384)")
    add(
        "--context",
        type=at_least(1),
        default=1024,
        help="the models' context, which prompt and text must fit (default: 1024)",
    )
    add(
        "--vocab",
        type=at_least(1),
        default=65,
        help="tokens that there are (default: 65, Tiny Shakespeare's characters)",
    )
    add("--dtype", choices=("float32", "bfloat16"), help="of weights and cache (default: float32; GPU: bfloat16)")
    add("--contenders", nargs="+", choices=NAMES, default=list(NAMES), help="(default: all that are there)")
    add(
        "--patience",
        type=at_least(0, float),
        default=300.0,
        metavar="SECONDS",
        help="who takes longer than this in one round is not asked again (default: 300)",
    )


def run(options: argparse.Namespace, limits: Limits) -> Report:
    longest = options.prompt_tokens + max(options.new_tokens)
    if longest > options.context:
        raise ValueError(f"--context {options.context} is too short for the {longest} tokens of prompt and text")
    try:
        Size.parse(f"{options.model}/1x{options.context}/{options.vocab}")
    except ValueError as error:
        raise ValueError(f"--model {options.model} is no size: write LAYERSxHEADSxWIDTH, such as 6x6x384") from error
    report = Report(COLUMNS)
    contenders = anybody([name for name in options.contenders if is_there(name, options, report.notes)], report.notes)
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    for batch in options.batches:
        for new_tokens in options.new_tokens:
            work = {
                "model": options.model,
                "context": options.context,
                "vocab": options.vocab,
                "batch": batch,
                "prompt_tokens": options.prompt_tokens,
                "new_tokens": new_tokens,
                "dtype": dtype,
                "device": options.device,
                "checkout": options.nanogpt,
            }
            jobs = {name: partial(job, name, work) for name in contenders}
            results = alternate(jobs, options.rounds, options.patience)
            report.rows += rows(results, work, limits.bytes_per_second)
    report.notes.append(
        "the limit: for each token all weights and the keys and values so far are read once, at the bandwidth above; "
        "a model that fits into the processor's cache can be faster."
    )
    return report


def is_there(name: str, options: argparse.Namespace, notes: list[str]) -> bool:
    if name == "nanogpt" and options.nanogpt is None:
        notes.append("nanogpt is left out: name a checkout of it with --nanogpt")
        return False
    if name == "transformers" and find_spec("transformers") is None:
        notes.append("transformers is left out: it is not installed")
        return False
    return True


def job(name: str, work: dict[str, Any], turn: Turn) -> dict[str, Any]:
    return run_job("decoding:decode", {"contender": name, "seed": turn.number, **work}, turn.cache)


def rows(
    results: dict[str, list[dict[str, Any]]], work: dict[str, Any], bytes_per_second: float
) -> list[dict[str, Any]]:
    made = []
    for name, rounds in results.items():
        seconds = median(rounds, "seconds")
        first = rounds[0]
        limit = first["bytes"] / bytes_per_second
        made.append(
            {
                "contender": name,
                **{key: work[key] for key in ("model", "context", "batch", "prompt_tokens", "new_tokens")},
                "parameters": first["parameters"],
                "precision": work["dtype"],
                "seconds": seconds,
                "seconds_of_rounds": [result["seconds"] for result in rounds],
                "tokens_per_second": work["batch"] * work["new_tokens"] / seconds,
                "limit_tokens_per_second": work["batch"] * work["new_tokens"] / limit,
                "of_limit": limit / seconds,
                "times_faster": times_faster(results["glassgpt"], rounds) if "glassgpt" in results else None,
            }
        )
    return check(made, "parameters", "new_tokens")
