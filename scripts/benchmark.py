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
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.benchmarks import plans, results
from scripts.benchmarks.contenders import ROOT, WARM_UP, call, run
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
    formatter = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = Parser(prog="benchmark.py", description=__doc__, **formatter)
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK", parser_class=Parser)
    number, seconds, steps = at_least(1), at_least(0, float), at_least(WARM_UP + 1)

    def subcommand(name: str, text: str, config: str | None = None) -> Callable:
        """Adds a subcommand; returns what adds an option to it."""
        summary = text.splitlines()[0]
        add = subparsers.add_parser(name, help=summary, description=text, allow_abbrev=False, **formatter).add_argument
        add("--results", type=Path, default=RESULTS, metavar="FILE", help=f"where JSON is kept (default: {RESULTS})")
        if config:
            add("--config", default=config, metavar="YAML", help=f"what is trained (default: {config})")
            add(
                "train_options",
                nargs="*",
                metavar="-- OPTION",
                help="of train.py, after a --, seen from the repository",
            )
        return add

    def benchmark(
        function: Callable, rounds: int, names: Sequence[str] = (), usual: str = "all", **of_training
    ) -> Callable:
        """Adds a function of plans.py; its contenders are `names`, by default the `usual` ones."""
        add = subcommand(function.__name__, inspect.getdoc(function), **of_training)
        add(
            "--device",
            choices=("cpu", "cuda"),
            default="cpu",
            help="CUDA_VISIBLE_DEVICES chooses the GPU (default: cpu)",
        )
        add("--nanogpt", metavar="PATH", help="checkout of nanoGPT (default: it does not take part)")
        add("--rounds", type=number, default=rounds, metavar="N", help=f"turns of each contender (default: {rounds})")
        add("--limit_seconds", type=seconds, default=2.0, help="to measure each of the matrix rates (default: 2)")
        if names:
            text = f"of {', '.join(names)} (default: {usual})"
            add("--contenders", nargs="+", choices=names, metavar="NAME", help=text)
        return add

    by_device = "{cpu}; on a GPU {cuda}".format
    add = benchmark(plans.train, 3, plans.TRAINED, by_device(**plans.TRAINED_BY_DEFAULT))
    sizes = f"LAYERSxHEADSxWIDTH/BATCHxCONTEXT/VOCABULARY (default: {by_device(**plans.SIZES)})"
    add("--sizes", nargs="+", metavar="SIZE", help=sizes)
    add("--seconds", type=seconds, default=5.0, help="of training in each round, at least (default: 5)")

    add = benchmark(plans.generate, 3, plans.WRITERS)
    add("--batches", nargs="+", type=number, default=[1, 16], metavar="N", help="texts at once (default: 1 16)")
    add("--new_tokens", nargs="+", type=number, default=[128], metavar="N", help="length in tokens (default: 128)")
    add("--model", default="6x6x384", metavar="LAYERSxHEADSxWIDTH", help="(default: 6x6x384)")
    add("--context", type=number, default=1024, help="of the models, for prompt and text (default: 1024)")
    add("--dtype", choices=("float32", "bfloat16"), help="of weights and cache (default: float32; on a GPU bfloat16)")

    peers = "glassgpt and its peer"
    add = benchmark(plans.time_to_loss, 1, plans.LEARNERS, peers, config="configs/shakespeare_char.yaml")
    add("--data", metavar="FILE", help="ASCII text, read by characters; its last tenth validates")
    add("--size", help="LAYERSxHEADSxWIDTH/BATCHxCONTEXT (default: with --data nanoGPT's, otherwise the config's)")
    add("--steps", type=steps, help="of our whole schedule (default: 260; on a GPU 1000)")
    add("--peer_steps", type=steps, help="of the peer's (default: nanoGPT's, 2000; on a GPU 5000)")
    add("--peer_learning_rate", type=seconds, default=0.001, help="of gpt2+adamw (default: nanoGPT's, 0.001)")
    add("--evaluations", type=number, default=20, help="in each training, evenly spaced (default: 20)")
    add("--target", type=at_least(0.001, float), metavar="NATS", help="loss per token (default: the peer's lowest)")

    add = benchmark(plans.overhead, 1, config="configs/default.yaml")
    add("--seconds", type=seconds, default=45.0, help="of stretches in each round (default: 45)")
    add("--stretch", type=number, default=10, help="steps in a stretch (default: 10)")
    add("--steps", type=number, default=60, help="of the training that records maps (default: 60)")

    subcommand("table", inspect.getdoc(results))
    return parser


def measure(options: argparse.Namespace) -> str:
    """Runs one benchmark and appends its record to the file of results; returns what to print.

    Raises ValueError or OSError for a mistake, RuntimeError if a contender fails or does other work than the rest.
    """
    if options.device == "cuda":
        import torch  # only here, as it takes seconds

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no GPU here; leave it out to measure on the processor")
    if options.nanogpt is not None:
        if not Path(options.nanogpt, "model.py").is_file():
            raise FileNotFoundError(f"--nanogpt {options.nanogpt} is not a checkout of nanoGPT: it has no model.py")
        options.nanogpt = str(Path(options.nanogpt).resolve())
    notes: list[str] = []
    rows = list(getattr(plans, options.benchmark)(options, notes))
    limits = run(call("machine:measure", device=options.device, seconds=options.limit_seconds))
    rows = [results.add_rates(row, limits) for row in rows]
    text = "\n\n".join([results.describe(limits), results.table(rows), *notes])
    versions = {name: version(name) for name in PACKAGES if find_spec(name)}
    versions["nanogpt"] = options.nanogpt and results.commit(Path(options.nanogpt))
    hidden = ("benchmark", "results", "nanogpt")
    record = {
        "benchmark": options.benchmark,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": results.commit(ROOT),
        "machine": limits.pop("machine"),
        "limits": limits,
        "versions": versions,
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
