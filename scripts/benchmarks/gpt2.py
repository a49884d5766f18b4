"""Measures three implementations of GPT-2's architecture: GlassGPT, nanoGPT and, for writing only, transformers.

Also measures how the time of GlassGPT's recordings, pages and tokenising grows with the size of the work.

nanoGPT's model.py is loaded from the user's checkout. Importing its train.py would start a training, so `train` here is
the same loop with nanoGPT's published settings. It trains nanoGPT's network and, in `measure_step`, ours.

scripts/benchmark.py starts a process for each contender in the root of the repository, and passes it a `job`. Every job
has `function` (the name of one in this file), `contender`, `device`, `size` (fields of GPTConfig), `checkout`
(nanoGPT's folder), `seed` and `batch_size`; some functions need more fields. For training on a GPU, our network and
nanoGPT's are compiled, each as its project does it.

Letters: B sequences in a batch, T tokens of context, N tokens of a text.
"""

import json
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from data.tokenizers import byte_level
from model import open_run
from model.exchange.huggingface import GPT2_FAMILY, GPT2_OPTIONS
from model.generation import generate
from model.gpt import GPT, GPTConfig, in_eval_mode
from model.inspection.recording import take_snapshot
from model.kernels import has_fast_bfloat16, keep_freed_memory
from model.losses import next_token_loss
from model.pages.learning import column_points, training_seconds
from model.runs.records import read_metrics
from model.runs.results import write_report
from model.runs.run import METRICS
from model.training.hardware import compile_options, device_name
from model.training.optimizer import OptimizerConfig, build_optimizer
from model.training.schedule import ScheduleConfig, learning_rate_factor
from train import main as train_main

WARM_UP = 3  # steps that `measure_step` leaves out, in which PyTorch may compile
SECONDS = 5.0  # it measures steps for at least this time
PROMPT_TOKENS = 16
EVALUATIONS = 20  # of each training, at evenly spaced steps
# From nanoGPT's train.py, prepare.py and config/train_shakespeare_char.py; its README trains with them on a CPU too.
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.1
BETAS = (0.9, 0.99)
GRADIENT_CLIP = 1.0
VALIDATION_FRACTION = 0.1
SCHEDULE = ScheduleConfig(warmup_steps=100, decay="cosine", final_factor=0.1)  # nanoGPT's warm-up rises 1% slower
# Fields of GPTConfig -> nanoGPT's names, which are the same as in transformers, with two exceptions.
NANOGPT_NAMES = GPT2_OPTIONS | {"context_length": "block_size", "dropout": "dropout"}
SAMPLING = {"temperature": 0.8, "top_k": 200}  # as in nanoGPT's sample.py

Row = dict[str, Any]
Curve = list[dict[str, float]]  # points with "step", "seconds" and "loss"


class Learner(NamedTuple):
    """A network, its loss and its optimizer. loss: from (tokens, targets), each (B, T), to the mean in nats."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer


def main(content: str) -> None:
    """Runs a job, given as JSON, and prints its result as the last line, also as JSON.

    Exits with the status of train.py if that fails: 2 if it refuses an option.
    """
    job = Namespace(**json.loads(content))
    row = globals()[job.function](job)
    machine = {"device": device_name(torch.device(job.device)), "threads": torch.get_num_threads()}
    print(json.dumps(row | {"machine": machine}))


# ---- training


def measure_step(job: Namespace) -> Row:
    """Measures the time of a training step, after a warm-up. Tokens are random: a step takes as long on any text."""
    tokens = job.batch_size * job.size["context_length"]
    text = torch.randint(job.size["vocab_size"], (100 * tokens,))
    learner = build_learner(job)
    for step in train(learner, text, sys.maxsize, job):
        if step == WARM_UP:
            started = clock(job.device)
        elif step > WARM_UP and time.perf_counter() - started >= SECONDS:
            break
    elapsed = clock(job.device) - started
    milliseconds = 1000 * elapsed / (step - WARM_UP)
    row = {"milliseconds_per_step": milliseconds, "tokens": tokens, **describe(learner.model, precision_of(job))}
    if job.device == "cuda":
        row["peak_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    return row


def clock(device: str) -> float:
    """Waits until the device has done all its work, and returns the time in seconds."""
    torch.get_device_module(device).synchronize()
    return time.perf_counter()


def learn_characters(job: Namespace) -> Row:
    """Returns the learning curve on the characters of the file `data`, by train.py or by nanoGPT's loop, and its model.

    A point of the curve has a step, its validation loss and the seconds of training until then, without evaluations.
    The steps before the first evaluation, in which PyTorch may compile, count as much as the average of the later ones.
    """
    (first, *later), described = (train_by_recipe if job.contender == "glassgpt" else train_nanogpt)(job)
    for point in later:
        point["seconds"] = (point["seconds"] - first["seconds"]) * point["step"] / (point["step"] - first["step"])
    return {"curve": later, **described}


def train_by_recipe(job: Namespace) -> tuple[Curve, Row]:
    """Trains by train.py with configs/shakespeare_char.yaml and the options of `job`."""
    interval = job.our_steps // EVALUATIONS
    options = [
        "--config=configs/shakespeare_char.yaml",
        *(f"--model.gpt.{name}={value}" for name, value in job.size.items() if name != "vocab_size"),
        f"--data.batch_size={job.batch_size}",
        f"--seed_everything={job.seed}",
        f"--trainer.max_steps={job.our_steps}",
        f"--trainer.accelerator={job.device}",
        *job.train_options,
        # Last, so that the user cannot change them: what text is read, and how the curve is measured.
        f"--data.files={job.data}",
        "--data.tokenizer=bytes",
        f"--data.validation_fraction={VALIDATION_FRACTION}",
        f"--trainer.val_check_interval={interval}",
        f"--trainer.log_every_n_steps={interval}",
        "--recording.enabled=false",
        "--samples.max_new_tokens=0",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = run_training(folder, options)
        rows = read_metrics(run / METRICS)
        gpt = open_run(run).gpt
    seconds = dict(training_seconds(rows))
    curve = [{"step": step, "seconds": seconds[step], "loss": loss} for step, loss in column_points(rows, "val/loss")]
    return curve, describe(gpt, precision_of(job))


def run_training(folder: str, options: list[str]) -> Path:
    """Runs train.py, and returns the run's folder in `folder`. Exits with the status of train.py if it fails."""
    places = [f"--trainer.default_root_dir={folder}", "--name=run", "--wandb=disabled"]
    if status := train_main([*options, *places, "--trainer.enable_progress_bar=false"]):
        sys.exit(status)
    return Path(folder, "run")


def train_nanogpt(job: Namespace) -> tuple[Curve, Row]:
    """Trains nanoGPT's network; evaluates it on all full windows of the validation text."""
    characters, text = torch.tensor(list(Path(job.data).read_bytes())).unique(return_inverse=True)
    job.size["vocab_size"] = len(characters)
    cut, length = int((1 - VALIDATION_FRACTION) * len(text)), job.size["context_length"] + 1
    windows = text[cut - 1 :].unfold(0, length, length - 1).to(job.device)
    learner = build_learner(job)
    curve, seconds, started = [], 0.0, clock(job.device)
    for step in train(learner, text[:cut], job.steps, job):
        if step % (job.steps // EVALUATIONS) == 0:
            seconds += clock(job.device) - started
            curve.append({"step": step, "seconds": seconds, "loss": mean_nats(learner, windows)})
            started = clock(job.device)
    return curve, describe(learner.model, precision_of(job))


@torch.no_grad()
def mean_nats(learner: Learner, windows: Tensor) -> float:
    nats = 0.0
    with in_eval_mode(learner.model.modules()):
        for rows in windows.split(128):
            nats += learner.loss(*inputs_and_targets(rows)).item() * len(rows)
    return nats / len(windows)


def build_learner(job: Namespace) -> Learner:
    """Builds the contender's network and optimizer. If it is ours, also calls `keep_freed_memory`, as train.py does."""
    torch.manual_seed(job.seed)
    on_gpu = job.device == "cuda"
    if job.contender == "nanogpt":
        torch.set_float32_matmul_precision("high" if on_gpu else "highest")  # nanoGPT's train.py allows TF32
        model = build_nanogpt(job, bias=False).to(job.device)
        optimizer = model.configure_optimizers(WEIGHT_DECAY, LEARNING_RATE, BETAS, job.device)
        call = torch.compile(model) if on_gpu else model
        return Learner(model, lambda tokens, targets: call(tokens, targets)[1], optimizer)
    keep_freed_memory()
    model = GPT(gpt2_config(job.size, bias=False)).to(job.device)
    optimizer = build_optimizer(model, OptimizerConfig("adamw", weight_decay=WEIGHT_DECAY, betas=BETAS))
    options = compile_options("auto", torch.device(job.device), adds_gradients=False)
    loss = partial(loss_of, model)
    if options is not None:
        loss = torch.compile(loss, **options)
    return Learner(model, loss, optimizer)


def precision_of(job: Namespace) -> str:
    """Returns the type of the matrix products of a training. nanoGPT uses bfloat16 on GPUs only."""
    may_be_fast = job.contender == "glassgpt" or job.device == "cuda"
    return "bfloat16" if may_be_fast and has_fast_bfloat16(job.device) else "float32"


def loss_of(gpt: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    return next_token_loss(gpt, gpt.features(tokens), targets)


def train(learner: Learner, text: Tensor, steps: int, job: Namespace) -> Iterator[int]:
    """Trains as nanoGPT does, on random windows of `text` (N,). After each update, yields the number of updates."""
    context = job.size["context_length"]
    for step in range(steps):
        for group in learner.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * learning_rate_factor(step, steps, SCHEDULE)
        starts = torch.randint(len(text) - context, (job.batch_size, 1))
        rows = text[starts + torch.arange(context + 1)].to(job.device, non_blocking=True)
        with torch.autocast(job.device, torch.bfloat16, enabled=precision_of(job) == "bfloat16"):
            loss = learner.loss(*inputs_and_targets(rows))
        loss.backward()
        nn.utils.clip_grad_norm_(learner.model.parameters(), GRADIENT_CLIP)
        learner.optimizer.step()
        learner.optimizer.zero_grad(set_to_none=True)
        yield step + 1


def inputs_and_targets(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Splits windows (B, T + 1) into inputs and targets, each (B, T)."""
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


# ---- writing


def measure_writing(job: Namespace) -> Row:
    """Measures the seconds to write `new_tokens` after each prompt of a batch, once, after a few tokens of warm-up."""
    torch.manual_seed(job.seed)
    network, write = build_writer(job)
    network.to(job.device).eval()
    prompt = torch.randint(job.size["vocab_size"], (job.batch_size, PROMPT_TOKENS)).to(job.device)
    write(prompt, max_new_tokens=min(4, job.new_tokens))
    seconds = seconds_of(partial(write, prompt, max_new_tokens=job.new_tokens), job)
    tokens = job.batch_size * job.new_tokens
    return {"seconds": seconds, "tokens": tokens, **describe(network, "float32")}


def build_writer(job: Namespace) -> tuple[nn.Module, Callable[..., Tensor]]:
    """Builds the contender's network, and write(prompt, max_new_tokens=...), which returns prompt and text."""
    if job.contender == "glassgpt":
        gpt = GPT(gpt2_config(job.size))
        return gpt, partial(generate, gpt, **SAMPLING)
    if job.contender == "nanogpt":
        gpt = build_nanogpt(job, bias=True)
        return gpt, partial(gpt.generate, **SAMPLING)
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        **{GPT2_OPTIONS[name]: value for name, value in job.size.items()},
        bos_token_id=None,  # so that no token can end a text early
        eos_token_id=None,
        activation_function="gelu",  # as in the other two; GPT-2's own, gelu_new, takes more operations
    )
    gpt = GPT2LMHeadModel(config)
    return gpt, partial(gpt.generate, do_sample=True, pad_token_id=0, use_cache=True, **SAMPLING)


# ---- what grows


def measure_run(job: Namespace) -> Row:
    """Measures a step, a recording and the page of a short run of configs/debug.yaml with the options of `job`."""
    options = ["--config=configs/debug.yaml", "--trainer.max_steps=1", "--trainer.limit_val_batches=1"]
    with tempfile.TemporaryDirectory() as folder:
        run = run_training(folder, [*options, *job.train_options])
        glass = open_run(run, device=job.device)
        record = partial(take_snapshot, glass.gpt, 0, glass.recorded)
        record()  # prepares the windows
        recording = seconds_of(record, job)
        page = seconds_of(partial(write_report, run, "ended"), job)
    job.size = asdict(glass.gpt.config)
    row = measure_step(job)
    step = row["milliseconds_per_step"] / 1000
    return row | {"recording_in_steps": recording / step, "page_in_steps": page / step}


def measure_tokenising(job: Namespace) -> Row:
    """Measures how long our tokenizer, or numpy alone, takes to turn a text into an array of bytes."""
    text = "def tokenise(text):\n" * 2**20
    encoders = {"glassgpt": byte_level().encode_array, "numpy": lambda text: np.frombuffer(text.encode(), np.uint8)}
    return {"seconds": seconds_of(partial(encoders[job.contender], text), job)}


def seconds_of(work: Callable[[], Any], job: Namespace) -> float:
    started = clock(job.device)
    work()
    return clock(job.device) - started


# ---- the networks


def build_nanogpt(job: Namespace, *, bias: bool) -> nn.Module:
    """Builds the class GPT from model.py in the checkout of nanoGPT."""
    nanogpt = runpy.run_path(str(Path(job.checkout, "model.py")), run_name="nanogpt")
    shape = {NANOGPT_NAMES[name]: value for name, value in job.size.items()}
    return nanogpt["GPT"](nanogpt["GPTConfig"](**{"dropout": 0.0} | shape, bias=bias))


def gpt2_config(size: dict[str, int], **changes: Any) -> GPTConfig:
    """Returns the config of our GPT for GPT-2's architecture as nanoGPT builds it, with some fields changed."""
    return GPTConfig(**GPT2_FAMILY | {"activation": "gelu_exact", "tie_embeddings": True} | size | changes)


def describe(network: nn.Module, precision: str) -> Row:
    """Describes what was measured: the network's size, which counts each weight once, and the precision of products."""
    return {"parameters": sum(weight.numel() for weight in network.parameters()), "precision": precision}


if __name__ == "__main__":
    main(sys.argv[1])
