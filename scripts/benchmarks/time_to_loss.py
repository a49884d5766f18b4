"""Time to a validation loss: `python train.py` with the shipped recipe against nanoGPT with its published settings.

The clock runs from the first step on and stands still during evaluation. Evaluation is the same for both: every
character of the validation split once, in windows of the same length side by side, in float32, not compiled.
"""

from __future__ import annotations

import argparse
import array
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from scripts.benchmarks.processes import (
    Turn,
    alternate,
    config_path,
    fastest_of_ours,
    median,
    one_device,
    run_job,
    run_training,
    times_faster,
)
from scripts.benchmarks.report import Limits, Report
from scripts.benchmarks.workload import Size, add_nanogpt, check, compile_mode, default_sizes, select
from scripts.parser import at_least

HELP = "time to the validation loss that nanoGPT reaches, on a text by characters"
CONFIG = "configs/shakespeare_char.yaml"
COLUMNS = {
    "contender": "contender",
    "parameters": "parameters",
    "tokens/step": "tokens_per_step",
    "precision": "precision",
    "lowest loss": "lowest_loss",
    "steps to target": "steps_to_target",
    "seconds": "seconds",
    "cold": "cold_seconds",
    "MFU": "mfu",
    "ours faster, x": "times_faster",
    "cold, x": "times_faster_cold",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_nanogpt(parser)
    add = parser.add_argument
    add("--data", required=True, metavar="FILE", help="the text, ASCII; its last tenth is to validate on")
    add("--size", metavar="SIZE", help="of both models, LAYERSxHEADSxWIDTH/BATCHxCONTEXT (default: as `train`'s first)")
    add("--steps", type=at_least(1), help="our training in all; its schedule ends there (default: 260; on a GPU 1000)")
    add("--peer_steps", type=at_least(1), help="nanoGPT's (default: 2000, its README's; on a GPU 5000, its config's)")
    add("--dropout", type=at_least(0, float), help="nanoGPT's (default: 0, its README's; on a GPU 0.2, its config's)")
    add("--evaluations", type=at_least(1), default=20, help="of each run, at equal distances (default: 20)")
    add(
        "--target",
        type=at_least(0.001, float),
        metavar="NATS",
        help="loss per character to reach (default: the lowest of nanoGPT's run, of the seed where that is highest)",
    )
    add("--config", default=CONFIG, metavar="YAML", help=f"our recipe (default: {CONFIG})")
    add("--contenders", nargs="+", metavar="NAME", help="as for `train` (default: glassgpt and nanogpt as they are)")
    add("train_options", nargs="*", metavar="-- OPTION", help="options for our train.py, after all others and a --")


def run(options: argparse.Namespace, limits: Limits) -> Report:
    gpu = options.device == "cuda"
    report = Report(COLUMNS)
    names = ["glassgpt", "nanogpt+compile"] if gpu else ["glassgpt", "nanogpt", "nanogpt+allocator"]
    contenders = select(options.contenders or names, options, report.notes)
    if options.target is None and not any(name.startswith("nanogpt") for name in contenders):
        raise ValueError("without nanoGPT there is no loss to reach: set --target, or --nanogpt to a checkout")
    with tempfile.TemporaryDirectory() as folder:
        text = Text(Path(options.data), Path(folder))
        shape = options.size or default_sizes(options.device)[0].rpartition("/")[0]
        size = Size.parse(f"{shape}/{text.vocab}")
        jobs = {
            name: partial(train_ours if name.startswith("glassgpt") else train_peer, name, size, text, options)
            for name in contenders
        }
        results = alternate(jobs, options.rounds)
    target = options.target or highest_low(results)
    report.rows = rows(results, target, limits.flops)
    report.notes += [
        f"target: {target:.4f} nats per character on {report.rows[0]['validation_tokens']:,} characters, exact, in "
        f"float32, windows of {size.context}; medians of {options.rounds} seeds.",
        "cold: with the three steps before the first, in which all is compiled that will be; of the first seed, where "
        "nothing is compiled yet.",
        f"glassgpt is `{' '.join(['python train.py --config', options.config, *options.train_options])}`, and records "
        "and logs what that does; it reads bytes and knows 257 tokens, nanogpt the text's characters.",
    ]
    return report


class Text:
    """A text in two splits, as files for nanoGPT's loop, ids of characters, and for ours, text.

    The last training character comes before the validation split, so that its first one is predicted too.

    Raises:
        ValueError: if it is not ASCII, where a byte is a character, or too short.
        FileNotFoundError: if it is not there.
    """

    def __init__(self, path: Path, folder: Path):
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {path} to train on: --data names a text")
        content = path.read_bytes()
        if not content.isascii():
            raise ValueError(f"{path} is not all ASCII: bytes and characters, which are compared here, differ then")
        if len(content) < 1000:
            raise ValueError(f"{path} has {len(content)} characters: too few to train and validate on, give 1000")
        cut = int(len(content) * 0.9)  # as nanoGPT's prepare.py has it
        characters = sorted(set(content))
        self.vocab = len(characters)
        self.folder = folder
        ids = content.translate(bytes(characters.index(byte) if byte in characters else 0 for byte in range(256)))
        (folder / "train.txt").write_bytes(content[:cut])
        (folder / "validation.txt").write_bytes(content[cut:])
        self.train = self._write("train.ids", ids[:cut])
        self.validation = self._write("validation.ids", ids[cut - 1 :])
        self.validation_bytes = self._write("validation.bytes", content[cut - 1 :])

    def _write(self, name: str, ids: bytes) -> str:
        path = self.folder / name
        path.write_bytes(array.array("q", list(ids)).tobytes())
        return str(path)


def train_ours(name: str, size: Size, text: Text, options: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    gpu = options.device == "cuda"
    steps = options.steps or (1000 if gpu else 260)
    arguments = {
        "config": config_path(options.config),
        "data.files": text.folder / "train.txt",
        "data.validation_files": text.folder / "validation.txt",
        "data.cache_dir": text.folder / "cache",
        "data.tokenizer": "bytes",  # as the validation text is given to it
        "data.vocab_size": "null",
        "model.gpt.context_length": size.context,
        "data.batch_size": size.batch,
        "model.gpt.num_layers": size.layers,
        "model.gpt.num_heads": size.heads,
        "model.gpt.embed_dim": size.width,
        **one_device(options.device),
        "trainer.max_steps": steps,
        "trainer.val_check_interval": 1_000_000_000,
        "trainer.default_root_dir": text.folder / "runs",
        "name": f"{name}-{turn.number}",
        "seed_everything": turn.number,
    }
    _, *extras = name.split("+")
    if extras:
        arguments["model.compile"] = str(compile_mode(extras)).lower()
    measured = {"validation": text.validation_bytes, "evaluations": min(options.evaluations, steps)}
    return run_training("LearningCurve", measured, arguments, options.train_options, turn.cache)


def train_peer(name: str, size: Size, text: Text, options: argparse.Namespace, turn: Turn) -> dict[str, Any]:
    gpu = options.device == "cuda"
    steps = options.peer_steps or (5000 if gpu else 2000)
    dropout = (0.2 if gpu else 0.0) if options.dropout is None else options.dropout
    settings = {"device": options.device, "steps": steps, "seed": turn.number}
    settings |= {"checkout": options.nanogpt, "dropout": dropout}
    arguments = {
        "contender": name,
        "size": size.to_dict(),
        "train": text.train,
        "validation": text.validation,
        "evaluations": min(options.evaluations, steps),
        "options": settings,
    }
    return run_job("training:learning_curve", arguments, turn.cache)


def highest_low(results: dict[str, list[dict[str, Any]]]) -> float:
    """The loss that the peer reaches with every seed: that of the first contender that is not ours."""
    peer = next(rounds for name, rounds in results.items() if name.startswith("nanogpt"))
    return max(min(point["loss"] for point in result["curve"]) for result in peer)


def rows(results: dict[str, list[dict[str, Any]]], target: float, flops: float) -> list[dict[str, Any]]:
    for rounds in results.values():
        for result in rounds:
            result |= reached(result["curve"], target, result["warm_up_seconds"])
            result["lowest_loss"] = min(point["loss"] for point in result["curve"])
            result["seconds_per_step"] = result["curve"][-1]["seconds"] / result["steps"]
    made = []
    ours = fastest_of_ours(results)
    for name, rounds in results.items():
        first = rounds[0]
        step_seconds = median(rounds, "seconds_per_step")
        made.append(
            {
                "contender": name,
                **{key: first[key] for key in ("parameters", "tokens_per_step", "precision", "steps")},
                "evaluation_precision": "float32",
                "validation_tokens": first["validation_tokens"],
                "target": target,
                "lowest_loss": median(rounds, "lowest_loss"),
                "steps_to_target": median(rounds, "steps_to_target"),
                "seconds": median(rounds, "seconds"),
                "seconds_of_seeds": [result["seconds"] for result in rounds],
                "cold_seconds": first["cold_seconds"],
                "milliseconds_per_step": 1000 * step_seconds,
                "mfu": first["flops_per_token"] * first["tokens_per_step"] / step_seconds / flops,
                "times_faster": ours and times_faster(ours, rounds),
                "times_faster_cold": ours and times_faster(ours[:1], rounds[:1], "cold_seconds"),
                "curves": [result["curve"] for result in rounds],
            }
        )
    return check(made, "validation_tokens")


def reached(curve: list[dict[str, float]], target: float, warm_up_seconds: float) -> dict[str, float | None]:
    """When an evaluation first shows the target or less; None where none does."""
    for point in curve:
        if point["loss"] <= target:
            return {
                "steps_to_target": point["step"],
                "seconds": point["seconds"],
                "cold_seconds": point["seconds"] + warm_up_seconds,
            }
    return dict.fromkeys(("steps_to_target", "seconds", "cold_seconds"))
