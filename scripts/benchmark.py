"""Measures GlassGPT beside its peers on this machine."""

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

from scripts.benchmarks import generate, overhead, results, time_to_loss, train
from scripts.benchmarks.contenders import ROOT, call, run
from scripts.parser import Parser, at_least

DESCRIPTION = """\
Measures GlassGPT beside its peers: each contender in a process of its own, in turn, over several rounds, with the
machine's limits measured in the same run. Prints a table, and as the last line the same and more as JSON, which is
also appended to the file of results. The figures are wall-clock time: close everything else that computes.

The peers are not part of this project: git clone https://github.com/karpathy/nanoGPT, pip install transformers."""

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
    kept = Parser(add_help=False)
    kept.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help=f"of results (default: {RESULTS})")
    parser = Parser(prog="benchmark.py", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    subcommands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Parser)
    for name, module in BENCHMARKS.items():
        title = module.__doc__.splitlines()[0]
        subparser = subcommands.add_parser(
            name, help=title, description=module.__doc__, parents=[kept], allow_abbrev=False
        )
        add, seconds = subparser.add_argument, at_least(0, float)
        rounds = f"turns of each contender (default: {module.ROUNDS})"
        add("--device", default="cpu", help="cpu or cuda (default: cpu)")
        add("--nanogpt", metavar="PATH", help="checkout of nanoGPT (default: it does not take part)")
        add("--rounds", type=at_least(1), default=module.ROUNDS, metavar="N", help=rounds)
        add("--limit_seconds", type=seconds, default=2.0, help="to measure each of the machine's limits (default: 2)")
        module.add_options(subparser)
    title = "The results so far as Markdown: a table for each machine and commit."
    subcommands.add_parser("table", help=title, description=title, parents=[kept], allow_abbrev=False)
    return parser


def measure(options: argparse.Namespace) -> str:
    """Runs one benchmark and appends its record to the file of results; returns what to print.

    Raises:
        ValueError, OSError: for a person's mistake.
        RuntimeError: if a contender fails, or the contenders did not do the same work.
    """
    if options.device not in ("cpu", "cuda"):
        raise ValueError(f"--device must be cpu or cuda, not {options.device}; CUDA_VISIBLE_DEVICES chooses the GPU")
    if options.nanogpt is not None:
        if not Path(options.nanogpt, "model.py").is_file():
            raise FileNotFoundError(f"--nanogpt {options.nanogpt} is not a checkout of nanoGPT: it has no model.py")
        options.nanogpt = str(Path(options.nanogpt).resolve())
    if options.device == "cuda":
        run(call("machine:check_gpu"))
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
