"""Measures GlassGPT beside its peers on this machine.

Each contender runs in a process of its own, in turn, over several rounds, and the machine's limits are measured in the
same run. Prints a table, and as the last line the same and more as JSON, which is also appended to the file of results.
The figures are wall-clock time: close everything else that computes.

The peers are not part of this project: git clone https://github.com/karpathy/nanoGPT, pip install transformers.
"""

from __future__ import annotations

import argparse
import inspect
import json
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.benchmarks import plans, results
from scripts.benchmarks.contenders import ROOT, call, run
from scripts.parser import Parser, at_least

RESULTS = Path("runs/benchmarks.jsonl")
PACKAGES = ("torch", "lightning", "transformers", "numpy")


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 1 if a contender fails, 2 for a mistake, 130 for Ctrl-C."""
    options = build_parser().parse_args(argv)
    try:
        print(results.markdown(options.results) if options.benchmark == "table" else measure(options))
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, RuntimeError) as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 1 if isinstance(error, RuntimeError) else 2
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The options; each help text names the unit and the default."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="benchmark.py", description=__doc__, formatter_class=raw)
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Parser)
    number, seconds, steps = at_least(1), at_least(0, float), at_least(plans.WARM_UP + 1)

    def subcommand(name: str, described: Any) -> Callable:
        """Adds a subcommand that a docstring describes; returns what adds an option to it."""
        text = inspect.getdoc(described)
        settings = {"help": text.splitlines()[0], "description": text, "formatter_class": raw, "allow_abbrev": False}
        add = subparsers.add_parser(name, **settings).add_argument
        add("--results", type=Path, default=RESULTS, metavar="FILE", help=f"where JSON is kept (default: {RESULTS})")
        return add

    def benchmark(function: Callable, rounds: int) -> Callable:
        add = subcommand(function.__name__, function)
        add("--device", choices=("cpu", "cuda"), default="cpu", help="CUDA_VISIBLE_DEVICES chooses the GPU")
        add("--nanogpt", metavar="PATH", help="checkout of nanoGPT (default: it does not take part)")
        add("--rounds", type=number, default=rounds, metavar="N", help=f"turns of each contender (default: {rounds})")
        add("--limit_seconds", type=seconds, default=2.0, help="to measure each of the machine's limits (default: 2)")
        return add

    def add_recipe(add: Callable, config: str) -> None:
        add("--config", default=config, metavar="YAML", help=f"what is trained (default: {config})")
        add("train_options", nargs="*", metavar="-- OPTION", help="for train.py, after a --; paths from the repository")

    def add_contenders(add: Callable, names: list[str], default: str) -> None:
        add(
            "--contenders", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)} (default: {default})"
        )

    add = benchmark(plans.train, rounds=3)
    default = "{cpu}; on a GPU {cuda}"
    sizes = f"LAYERSxHEADSxWIDTH/BATCHxCONTEXT/VOCABULARY (default: {default.format(**plans.SIZES)})"
    add("--sizes", nargs="+", metavar="SIZE", help=sizes)
    add_contenders(add, plans.TRAINED, default.format(**plans.TRAINED_BY_DEFAULT))
    add("--seconds", type=seconds, default=5.0, help="of training in each round, at least (default: 5)")

    add = benchmark(plans.generate, rounds=3)
    add("--batches", nargs="+", type=number, default=[1, 16], metavar="N", help="texts at once (default: 1 16)")
    add("--new_tokens", nargs="+", type=number, default=[128], metavar="N", help="length in tokens (default: 128)")
    add("--model", default="6x6x384", metavar="LAYERSxHEADSxWIDTH", help="(default: 6x6x384)")
    add("--context", type=number, default=1024, help="of the models, for prompt and text (default: 1024)")
    add("--dtype", choices=("float32", "bfloat16"), help="of weights and cache (default: float32; on a GPU bfloat16)")
    add_contenders(add, plans.WRITERS, "all")

    add = benchmark(plans.time_to_loss, rounds=1)
    add_recipe(add, "configs/shakespeare_char.yaml")
    add("--data", metavar="FILE", help="ASCII text, read by characters; its last tenth validates")
    add("--size", help="LAYERSxHEADSxWIDTH/BATCHxCONTEXT (default: with --data nanoGPT's, otherwise the config's)")
    add("--steps", type=steps, help="of our whole schedule (default: 260; on a GPU 1000)")
    add("--peer_steps", type=steps, help="of the peer's (default: nanoGPT's, 2000; on a GPU 5000)")
    add("--peer_learning_rate", type=seconds, default=0.001, help="of gpt2+adamw (default: nanoGPT's, 0.001)")
    add("--evaluations", type=number, default=20, help="in each training, evenly spaced (default: 20)")
    add("--target", type=at_least(0.001, float), metavar="NATS", help="loss per token (default: the peer's lowest)")
    add_contenders(add, plans.LEARNERS, "glassgpt and its peer")

    add = benchmark(plans.overhead, rounds=1)
    add_recipe(add, "configs/default.yaml")
    add("--seconds", type=seconds, default=45.0, help="of stretches in each round (default: 45)")
    add("--stretch", type=number, default=10, help="steps in a stretch (default: 10)")
    add("--steps", type=number, default=60, help="of the training that records maps (default: 60)")

    subcommand("table", results)
    return parser


def measure(options: argparse.Namespace) -> str:
    """Runs one benchmark and appends its record to the file of results; returns what to print.

    Raises:
        ValueError, OSError: for a person's mistake.
        RuntimeError: if a contender fails, or the contenders did not do the same work.
    """
    if options.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ValueError(
                "--device cuda: PyTorch finds no GPU here; leave the option out to measure on the processor"
            )
    if options.nanogpt is not None:
        if not Path(options.nanogpt, "model.py").is_file():
            raise FileNotFoundError(f"--nanogpt {options.nanogpt} is not a checkout of nanoGPT: it has no model.py")
        options.nanogpt = str(Path(options.nanogpt).resolve())
    notes: list[str] = []
    rows = getattr(plans, options.benchmark)(options, notes)
    limits = run(call("machine:measure", device=options.device, seconds=options.limit_seconds))
    rows = [results.add_rates(row, limits) for row in rows]
    text = "\n\n".join([results.describe(limits), results.table(rows), *notes])
    versions = {package: version(package) for package in PACKAGES if find_spec(package)}
    hidden = ("benchmark", "results", "nanogpt")
    record = {
        "benchmark": options.benchmark,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": results.commit(ROOT),
        "machine": limits.pop("machine"),
        "limits": limits,
        "versions": versions | {"nanogpt": options.nanogpt and results.commit(Path(options.nanogpt))},
        "options": {name: value for name, value in vars(options).items() if name not in hidden},
        "rows": rows,
        "notes": notes,
    }
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return f"{text}\n\n{json.dumps(record)}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contender that is running is ended too
    sys.exit(main())
