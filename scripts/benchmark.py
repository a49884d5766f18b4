"""Measures GlassGPT beside its peers on this machine.

Each contender runs in a process of its own, in turn, over several rounds, and the machine's limits are measured in the
same run. Prints a table, and as the last line the same and more as JSON, which is also appended to the file of results.
The figures are wall-clock time: close everything else that computes.

The peers are not part of this project: git clone https://github.com/karpathy/nanoGPT, pip install transformers.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from scripts.benchmarks import generate, overhead, results, time_to_loss, train
from scripts.benchmarks.contenders import ROOT, call, run
from scripts.parser import Parser, at_least

BENCHMARKS = {"train": train, "generate": generate, "time_to_loss": time_to_loss, "overhead": overhead}
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
    subcommands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Parser)
    modules = {**BENCHMARKS, "table": results}
    for name, module in modules.items():
        title = module.__doc__.splitlines()[0]
        subparser = subcommands.add_parser(
            name, help=title, description=module.__doc__, formatter_class=raw, allow_abbrev=False
        )
        add, seconds = subparser.add_argument, at_least(0, float)
        add(
            "--results", type=Path, default=RESULTS, metavar="FILE", help=f"where the JSON is kept (default: {RESULTS})"
        )
        if module is results:
            continue
        rounds = f"turns of each contender (default: {module.ROUNDS})"
        add("--device", default="cpu", help="cpu or cuda (default: cpu)")
        add("--nanogpt", metavar="PATH", help="checkout of nanoGPT (default: it does not take part)")
        add("--rounds", type=at_least(1), default=module.ROUNDS, metavar="N", help=rounds)
        add("--limit_seconds", type=seconds, default=2.0, help="to measure each of the machine's limits (default: 2)")
        module.add_options(subparser)
    return parser


def measure(options: argparse.Namespace) -> str:
    """Runs one benchmark and appends its record to the file of results; returns what to print.

    Raises:
        ValueError, OSError: for a person's mistake.
        RuntimeError: if a contender fails, or the contenders did not do the same work.
    """
    if options.device not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda, not {options.device}; CUDA_VISIBLE_DEVICES chooses the GPU")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: PyTorch finds no GPU here; leave the option out to measure on the processor")
    if options.nanogpt is not None:
        if not Path(options.nanogpt, "model.py").is_file():
            raise FileNotFoundError(f"--nanogpt {options.nanogpt} is not a checkout of nanoGPT: it has no model.py")
        options.nanogpt = str(Path(options.nanogpt).resolve())
    notes: list[str] = []
    rows = BENCHMARKS[options.benchmark].run(options, notes)
    limits = run(call("machine:measure", device=options.device, seconds=options.limit_seconds))
    rows = [results.add_rates(row, limits) for row in rows]
    text = "\n\n".join([results.describe(limits), results.table(rows), "\n".join(notes)])
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
    results.append(record, options.results)
    return f"{text}\n\n{json.dumps(record)}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contender that is running is ended too
    sys.exit(main())
