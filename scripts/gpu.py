"""Checks and times GlassGPT on this machine's GPU. `make gpu` runs it.

Each check runs in a process of its own. If one fails, its result holds the last lines that it printed, and the others
still run. The last line printed is a JSON object with all results: please send it to the project. Compare times only
with times of the same machine.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Timer
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

import torch

from model import open_run
from model.checkpoint import read_checkpoint
from model.gpt import GPT, GPTConfig
from model.kernels import has_fast_bfloat16
from model.mistakes import exit_status
from model.runs.results import read_metrics
from model.training.optimizer import OptimizerConfig, build_optimizer
from scripts.benchmark import LARGE, ROOT, SMALL, commit
from scripts.benchmarks.gpt2 import clock
from scripts.parser import Parser, choose_device

LIMIT = 300  # seconds, after which a check is killed
LINES = 20  # how many of its last lines the result of a failed check holds
TEXT = "def main(argv):\n    for i in range(10):\n        print(i)\n"

# The arguments of `python` for each check. {limits} makes a large run small on the CPU. {peer} is --nanogpt, if given.
TRAIN = "train.py --name={name} --trainer.default_root_dir={folder} --trainer.accelerator={device} --wandb=disabled"
DEBUG = f"{TRAIN} --config=configs/debug.yaml --trainer.max_steps=20"
PLAIN = f"{DEBUG} --model.compile=auto --recording.enabled=false --samples.max_new_tokens=0"
GPT2 = (
    f"{TRAIN} --config=configs/gpt2_124m.yaml --data.corpus=stdlib --data.dataset=null --data.dataset_config=null "
    "--data.tokenizer=bytes --data.batch_size=12 --trainer.accumulate_grad_batches=1 --trainer.val_check_interval=100 "
    "--trainer.limit_val_batches=2 --samples.max_new_tokens=0"
)
FUNCTION = "-c 'import sys; from scripts import gpu; gpu.{name}(*sys.argv[1:])'"
CHECKS = {
    "tests": "-m pytest -q tests/on_a_gpu.py",
    "debug": DEBUG,
    "measure_maps": f"{FUNCTION} {{folder}}/debug {{device}}",
    "default": f"{TRAIN} --trainer.max_steps=300 {{limits}}",
    "bf16-mixed": f"{PLAIN} --trainer.precision=bf16-mixed",
    "16-mixed": f"{PLAIN} --trainer.precision=16-mixed",
    "32-true": f"{PLAIN} --trainer.precision=32-true",
    "not compiled": f"{PLAIN} --model.compile=false",
    "without CUDA graphs": f"{PLAIN} --model.compile=true",
    "a save each step": f"{PLAIN} --checkpoints.every_n_steps=1",
    "6 steps": f"{PLAIN} --trainer.deterministic=true --trainer.max_steps=6",
    "3 steps": f"{PLAIN} --trainer.deterministic=true --trainer.max_steps=3",
    "resumed": "train.py --resume={folder}/3-steps --trainer.max_steps=6",
    "compare_weights": f"{FUNCTION} {{folder}}/6-steps {{folder}}/3-steps",
    "measure_parts": f"{FUNCTION} {{device}}",
    "gpt2_124m": f"{GPT2} --recording.enabled=false --trainer.max_steps=100 {{limits}}",
    "gpt2_124m recorded": f"{GPT2} --recording.every_n_steps=50 --trainer.max_steps=100 {{limits}}",
    "train": "scripts/benchmark.py train --rounds=1 --device={device} {peer}",
    "generate": "scripts/benchmark.py generate --rounds=1 --device={device} {peer}",
}
LIMITS = "--trainer.max_steps=2 --model.gpt.num_layers=1 --model.gpt.num_heads=2 --model.gpt.embed_dim=32"

Row = dict[str, Any]


@exit_status("gpu.py")
def main(argv: list[str] | None = None) -> None:
    parser = Parser(prog="gpu.py", description=__doc__)
    add = parser.add_argument
    add("--device", default="auto", metavar="NAME", help="cuda, mps, or cpu with small networks (default: a GPU)")
    add("--nanogpt", metavar="PATH", help="checkout of nanoGPT to compare speed with (default: no comparison)")
    add(
        "--only",
        nargs="+",
        choices=CHECKS,
        default=CHECKS,
        metavar="CHECK",
        help=f"run only these checks, in quotes if their names have spaces (default: all): {', '.join(CHECKS)}. "
        "measure_maps needs the run of debug, resumed that of 3 steps, and compare_weights the three runs before it",
    )
    options = parser.parse_args(argv)
    device = choose_device(options.device).type
    limits = LIMITS if device == "cpu" else ""
    peer = f"--nanogpt={options.nanogpt}" if options.nanogpt else ""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for check in options.only:
            name = check.replace(" ", "-")
            command = CHECKS[check].format(device=device, folder=folder, name=name, limits=limits, peer=peer)
            rows.append(run(check, shlex.split(command), Path(folder, name, "metrics.csv")))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)  # in case a later check crashes the machine
    device_name = torch.cuda.get_device_name() if device == "cuda" else device
    print(json.dumps({"device": device_name, "torch": torch.__version__, "commit": commit(), "rows": rows}))


def run(check: str, command: list[str], metrics: Path) -> Row:
    """Runs a check. Returns how it ended, and the JSON of its last line or the last values in the file `metrics`."""
    started = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | {"TORCH_LOGS": "recompiles,graph_breaks"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        limit = Timer(LIMIT, process.kill)  # unlike a timeout, this keeps what the check has printed
        limit.start()
        output = process.stdout.read()
        limit.cancel()
    lines = output.splitlines() or [""]
    row: Row = {
        "check": check,
        "status": process.returncode,
        "seconds": round(time.perf_counter() - started, 1),
        "graph_breaks": output.count("Graph break"),
        "recompiles": output.count("Recompiling"),
    }
    if process.returncode:
        row["said"] = lines[-LINES:]
    elif lines[-1].startswith("{"):
        row |= json.loads(lines[-1])
    else:
        for figures in read_metrics(metrics):
            row |= {name: value for name, value in figures.items() if "attention/" not in name}
    return row


# ---- checks that are functions in this file


def compare_weights(left: str, right: str) -> None:
    """Checks that two runs ended with the same weights, bit for bit."""
    weights = [read_checkpoint(Path(path, "checkpoints", "last.ckpt"))["state_dict"] for path in (left, right)]
    unequal = [name for name, weight in weights[0].items() if not weight.equal(weights[1][name])]
    print(json.dumps({"unequal": unequal}))
    sys.exit(bool(unequal))


def measure_maps(run_dir: str, device: str) -> None:
    """Checks that a device and the CPU give the same maps, within 1e-5. Times opening a run, reading and ablating."""
    row: Row = {}
    maps = []
    for name in ("cpu", device):
        started = time.perf_counter()
        glass = open_run(run_dir, device=name)
        maps.append(glass.read(TEXT).maps)
        glass.ablate(TEXT)
        row[f"seconds on {name}"] = time.perf_counter() - started
    row["difference"] = (maps[0] - maps[1]).abs().max().item()
    print(json.dumps(row))
    sys.exit(row["difference"] > 1e-5)


def measure_parts(device: str) -> None:
    """Lists the attention kernels that run for each kind of mask, and times one update by each optimizer."""
    size = SMALL if device == "cpu" else LARGE
    context = size["context_length"]
    tokens = torch.zeros(2, context, dtype=torch.long, device=device)
    row: Row = {}
    for name, window, ids in (("causal", None, None), ("window", context // 4, None), ("documents", None, tokens)):
        gpt = GPT(GPTConfig(**size, window=window)).to(device)
        autocast = torch.autocast(device, torch.bfloat16, enabled=has_fast_bfloat16(device))
        with torch.profiler.profile() as profile, autocast:
            gpt.loss(tokens, tokens, document_ids=ids).backward()
        kernels = [kernel.key for kernel in profile.key_averages()]
        row[name] = [kernel for kernel in kernels if "_attention" in kernel or "sdpa" in kernel]
    for algorithm in ("muon", "adamw"):
        optimizer = build_optimizer(gpt, OptimizerConfig(algorithm=algorithm))
        optimizer.step()  # allocates the optimizer's state
        started = clock(device)
        optimizer.step()
        row[f"seconds of {algorithm}"] = clock(device) - started
    print(json.dumps(row))


if __name__ == "__main__":
    sys.exit(main())
