"""What a first run on a GPU should check and time, as one JSON object in the last line: make gpu

Every check is a process of its own. One that fails is a row with its last lines, and the others go on. Of the time that
options take, compare the figures of one machine only. Please send the object to the project.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

import torch

from model import open_run
from model.checkpoint import read_checkpoint
from model.gpt import GPT, GPTConfig
from model.kernels import has_fast_bfloat16
from model.runs.results import read_metrics
from model.training.optimizer import OptimizerConfig, build_optimizer
from scripts.benchmark import LARGE, ROOT, SMALL, commit
from scripts.benchmarks.gpt2 import clock
from scripts.parser import Parser, choose_device

LIMIT = 300  # seconds of a check
LINES = 20  # of a check that failed
TEXT = "def main(argv):\n    for i in range(10):\n        print(i)\n"

# What follows `python`. {limits}: makes a large run small where there is only a processor. {peer}: nanoGPT's place.
TRAIN = "train.py --name={name} --trainer.default_root_dir={folder} --trainer.accelerator={device} --wandb=disabled"
DEBUG = f"{TRAIN} --config=configs/debug.yaml --trainer.max_steps=20"
PLAIN = f"{DEBUG} --attention.enabled=false --samples.max_new_tokens=0"
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
    "compiled": f"{PLAIN} --model.compile=true",
    "reduce-overhead": f"{PLAIN} --model.compile=reduce-overhead",
    "a save each step": f"{PLAIN} --checkpoints.every_n_steps=1",
    "6 steps": f"{PLAIN} --trainer.deterministic=true --trainer.max_steps=6",
    "3 steps": f"{PLAIN} --trainer.deterministic=true --trainer.max_steps=3",
    "resumed": "train.py --resume={folder}/3-steps --trainer.max_steps=6",
    "compare_weights": f"{FUNCTION} {{folder}}/6-steps {{folder}}/3-steps",
    "measure_parts": f"{FUNCTION} {{device}}",
    "gpt2_124m": f"{GPT2} --attention.enabled=false --trainer.max_steps=100 {{limits}}",
    "gpt2_124m recorded": f"{GPT2} --attention.every_n_steps=50 --trainer.max_steps=100 {{limits}}",
    "train": "scripts/benchmark.py train --rounds=1 --device={device} {peer}",
    "generate": "scripts/benchmark.py generate --rounds=1 --device={device} {peer}",
}
LIMITS = "--trainer.max_steps=2 --model.gpt.num_layers=1 --model.gpt.num_heads=2 --model.gpt.embed_dim=32"

Row = dict[str, Any]


def main(argv: list[str] | None = None) -> None:
    parser = Parser(prog="gpu.py", description=__doc__)
    parser.add_argument("--device", default="auto", metavar="NAME", help="cuda, mps or, at small sizes, cpu")
    parser.add_argument("--nanogpt", metavar="PATH", help="checkout of nanoGPT, to compare with")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=CHECKS, metavar="CHECK", help=", ".join(CHECKS))
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
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)  # in case that a later one takes the machine down
    device_name = torch.cuda.get_device_name() if device == "cuda" else device
    print(json.dumps({"device": device_name, "torch": torch.__version__, "commit": commit(), "rows": rows}))


def run(check: str, command: list[str], metrics: Path) -> Row:
    """What a check found: the JSON of its last line, or else the last value of each column of the run's metrics.csv."""
    environment = os.environ | {"TORCH_LOGS": "recompiles,graph_breaks"}
    started = time.perf_counter()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, text=True, **pipes) as process:
        limit = Timer(LIMIT, process.kill)
        limit.start()
        written = process.stdout.read()
        limit.cancel()
    seconds = round(time.perf_counter() - started, 1)
    lines = written.splitlines() or [""]
    row: Row = {"check": check, "status": process.returncode, "seconds": seconds}
    row |= {"graph_breaks": written.count("Graph break"), "recompiles": written.count("Recompiling")}
    if process.returncode:
        row["said"] = lines[-LINES:]
    elif lines[-1].startswith("{"):
        row |= json.loads(lines[-1])
    else:
        for figures in read_metrics(metrics):
            row |= {name: value for name, value in figures.items() if "attention/" not in name}
    return row


# ---- checks that are a function, in a process of its own


def compare_weights(left: str, right: str) -> None:
    """Whether two runs end in the same weights, bit for bit."""
    weights = [read_checkpoint(Path(path, "checkpoints", "last.ckpt"))["state_dict"] for path in (left, right)]
    unequal = [name for name, weight in weights[0].items() if not weight.equal(weights[1][name])]
    print(json.dumps({"unequal": unequal}))
    sys.exit(bool(unequal))


def measure_maps(run_dir: str, device: str) -> None:
    """How far the maps of a device are from the processor's, and the seconds that they and the ablation take."""
    found = {}
    maps = []
    for name in ("cpu", device):
        started = time.perf_counter()
        glass = open_run(run_dir, device=name)
        maps.append(torch.as_tensor(glass.read(TEXT).maps).cpu())
        glass.ablate(TEXT)
        found[f"seconds on {name}"] = time.perf_counter() - started
    found["difference"] = (maps[0] - maps[1]).abs().max().item()
    print(json.dumps(found))
    sys.exit(found["difference"] > 1e-5)


def measure_parts(device: str) -> None:
    """Which attention kernels run with and without a mask, and the seconds of an update by each optimizer."""
    size = SMALL if device == "cpu" else LARGE
    context = size["context_length"]
    tokens = torch.zeros(2, context, dtype=torch.long, device=device)
    found: Row = {}
    for name, window, ids in (("causal", None, None), ("window", context // 4, None), ("documents", None, tokens)):
        gpt = GPT(GPTConfig(**size, window=window)).to(device)
        autocast = torch.autocast(device, torch.bfloat16, enabled=has_fast_bfloat16(device))
        with torch.profiler.profile() as profile, autocast:
            gpt.loss(tokens, tokens, document_ids=ids).backward()
        found[name] = [one.key for one in profile.key_averages() if "_attention" in one.key or "sdpa" in one.key]
    for algorithm in ("muon", "adamw"):
        optimizer = build_optimizer(gpt, OptimizerConfig(algorithm=algorithm))
        optimizer.step()  # makes its state
        started = clock(device)
        optimizer.step()
        found[f"seconds of {algorithm}"] = clock(device) - started
    print(json.dumps(found))


if __name__ == "__main__":
    main()
