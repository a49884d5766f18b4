"""Measures GlassGPT beside its peers, on this machine and in one invocation."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.benchmarks import default_run, generate, recording_tax, time_to_loss, train, trainer_tax
from scripts.benchmarks.processes import run_job
from scripts.benchmarks.report import Limits, append, record
from scripts.benchmarks.summary import markdown
from scripts.parser import Parser, at_least

DESCRIPTION = """\
Measures GlassGPT beside its peers: each contender in a process of its own, in turn, over several rounds, with what
the machine could do at most measured in the same run. Prints a table, and as the last line the same and more as JSON,
which is also appended to the file of results. Close everything else that computes: the figures are wall-clock time.

A peer comes from where you have it: git clone https://github.com/karpathy/nanoGPT, pip install transformers.

On a GPU, all in one go, the Trainer's tax at the size of nanoGPT's character config:
  text=tinyshakespeare.txt
  for benchmark in train generate "time_to_loss --data $text"; do
    python scripts/benchmark.py $benchmark --device cuda --nanogpt ../nanoGPT; done
  python scripts/benchmark.py trainer_tax --device cuda --configs configs/shakespeare_char.yaml --data $text -- \\
    --model.gpt.num_layers=6 --model.gpt.num_heads=6 --model.gpt.embed_dim=384 \\
    --data.batch_size=64 --model.gpt.context_length=256"""

BENCHMARKS = {
    "train": train,
    "time_to_loss": time_to_loss,
    "generate": generate,
    "trainer_tax": trainer_tax,
    "recording_tax": recording_tax,
    "default_run": default_run,
}


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 1 if a contender fails, 2 for a mistake, 130 for Ctrl-C."""
    options = build_parser().parse_args(argv)
    try:
        if options.benchmark == "table":
            print(markdown(options.results))
        else:
            measure(options)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 1
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The options; each help text names the unit and the default."""
    kept = Parser(add_help=False)
    results = Path("runs/benchmarks.jsonl")
    kept.add_argument(
        "--results", type=Path, default=results, metavar="FILE", help=f"where JSON is appended (default: {results})"
    )
    common = Parser(add_help=False, parents=[kept])
    add = common.add_argument
    add("--device", default="cpu", help="cpu or cuda; decides the default sizes (default: cpu)")
    seconds = at_least(0, float)
    add("--rounds", type=at_least(1), default=3, metavar="N", help="turns of each contender, each a seed (default: 3)")
    add("--limit_seconds", type=seconds, default=3.0, help="time for each of three limits of the machine (default: 3)")
    add(
        "--peak_tflops",
        type=at_least(0.001, float),
        metavar="N",
        help="what the maker states; MFU is a share of it then",
    )
    parser = Parser(prog="benchmark.py", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    subcommands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Parser)
    for name, module in BENCHMARKS.items():
        subparser = subcommands.add_parser(
            name, help=module.HELP, description=module.__doc__, parents=[common], allow_abbrev=False
        )
        module.add_options(subparser)
    table = "the newest figures of each benchmark as a table in Markdown"
    subcommands.add_parser("table", help=table, description=table, parents=[kept], allow_abbrev=False)
    return parser


def measure(options: argparse.Namespace) -> None:
    """Runs one benchmark, prints what it found and appends it to the results.

    Raises:
        ValueError, OSError: for a person's mistake.
        RuntimeError: if a contender fails.
    """
    if options.device not in ("cpu", "cuda"):
        raise ValueError(
            f"--device must be cpu or cuda, not {options.device}; CUDA_VISIBLE_DEVICES=1 chooses the second GPU"
        )
    nanogpt = getattr(options, "nanogpt", None)
    if nanogpt is not None:
        if not Path(nanogpt, "model.py").is_file():
            raise FileNotFoundError(f"--nanogpt {nanogpt} is no checkout of nanoGPT: it has no model.py")
        options.nanogpt = nanogpt = str(Path(nanogpt).resolve())
    stated = options.peak_tflops and 1e12 * options.peak_tflops
    if options.device == "cuda":
        run_job("limits:check_gpu", {})
    limits = Limits(options.device, options.limit_seconds, stated)
    report = BENCHMARKS[options.benchmark].run(options, limits)
    given = {name: value for name, value in vars(options).items() if name not in ("benchmark", "results", "nanogpt")}
    line = record(options.benchmark, report, limits, given, nanogpt)
    print(limits, report.table(), json.dumps(line), sep="\n\n", flush=True)
    append(line, options.results)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contender that runs is ended with it
    sys.exit(main())
