"""Measures three implementations of GPT-2's architecture: GlassGPT, nanoGPT and, for writing only, transformers. And
what of GlassGPT grows with the size of the work.

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
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from data.tokenizers import byte_level
from model import open_run
from model.exchange.huggingface import GPT2_FAMILY, GPT2_OPTIONS
from model.generation import generate
from model.gpt import GPT, GPTConfig, in_eval_mode
from model.inspection.recording import take_snapshot
from model.kernels import has_fast_bfloat16, keep_freed_memory
from model.losses import next_token_loss
from model.runs.results import write_report
from model.training.hardware import compile_options, device_name
from model.training.optimizer import OptimizerConfig, build_optimizer
from model.training.schedule import ScheduleConfig, learning_rate_factor
from train import main as train_main

WARM_UP = 3  # steps at the beginning, in which PyTorch may compile
SECONDS = 5.0  # `measure_step` measures steps for at least this time
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
Writer = tuple[nn.Module, Callable[..., Tensor]]  # a network, and write(prompt, max_new_tokens=...) -> prompt and text


class Learner(NamedTuple):
    """A network, its loss and its optimizer. loss: from (tokens, targets), each (B, T), to the mean in nats."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer
    precision: str


def main(content: str) -> None:
    """Runs a job, given as JSON, and prints its result as the last line, also as JSON.

    Exits with the status of train.py if that fails: 2 if it refuses an option.
    """
    job = Namespace(**json.loads(content))
    print(json.dumps(globals()[job.function](job)))


# ---- training


def measure_step(job: Namespace) -> Row:
    """Measures the time of a training step, after a warm-up. Tokens are random: a step takes as long on any text."""
    tokens = job.batch_size * job.size["context_length"]
    text = torch.randint(job.size["vocab_size"], (100 * tokens,))
    learner = build_learner(job)
    for step in train(learner, text, job):
        if step == WARM_UP:
            started = clock(job.device)
        elif step > WARM_UP and time.perf_counter() - started >= SECONDS:
            break
    elapsed = clock(job.device) - started
    milliseconds = 1000 * elapsed / (step - WARM_UP)
    row = {"milliseconds_per_step": milliseconds, "tokens": tokens, **describe(learner.model, learner.precision)}
    if job.device == "cuda":
        row["peak_gigabytes"] = torch.cuda.max_memory_allocated() / 1e9
    return row


def clock(device: str) -> float:
    """Waits until the device has done all its work, and returns the time in seconds."""
    torch.get_device_module(device).synchronize()
    return time.perf_counter()


def learn_characters(job: Namespace) -> Row:
    """Returns the learning curve on the characters of the file `data`: of our train.py, or of nanoGPT in `train`."""
    if job.contender == "glassgpt":
        return train_by_recipe(job)
    text, validation = split(read(job.data).unique(return_inverse=True)[1])  # one token for each distinct character
    learner = build_learner(job)
    curve = Curve(job.steps, learner.model, learner.loss, validation.to(job.device), job.size["context_length"])
    for step in train(learner, text, job):
        curve.after(step)
    return {"curve": curve.points, **describe(learner.model, learner.precision)}


def train_by_recipe(job: Namespace) -> Row:
    """Runs train.py with configs/shakespeare_char.yaml and the options of `job`. Returns the learning curve."""
    options = [
        "--config=configs/shakespeare_char.yaml",
        *(f"--model.gpt.{name}={value}" for name, value in job.size.items() if name != "vocab_size"),
        f"--data.files={job.data}",
        f"--data.batch_size={job.batch_size}",
        f"--seed_everything={job.seed}",
        f"--trainer.max_steps={job.our_steps}",
        f"--trainer.accelerator={job.device}",
        "--wandb=disabled",
        *job.train_options,
        # Last, so that the user cannot change them: how the text is read, and that only LearningCurve validates.
        "--data.tokenizer=bytes",
        f"--data.validation_fraction={VALIDATION_FRACTION}",
        "--trainer.val_check_interval=null",
        "--trainer.limit_val_batches=1",
        "--trainer.callbacks=scripts.benchmarks.gpt2.LearningCurve",
        f"--trainer.callbacks.data={job.data}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        run_training(folder, options)
    return LearningCurve.result


def run_training(folder: str, options: list[str]) -> None:
    """Runs train.py, and exits with its status if it fails."""
    if status := train_main([f"--trainer.default_root_dir={folder}", *options]):
        sys.exit(status)


def build_learner(job: Namespace) -> Learner:
    """Builds the contender's network and optimizer. If it is ours, also calls `keep_freed_memory`, as train.py does."""
    torch.manual_seed(job.seed)
    on_gpu = job.device == "cuda"
    if job.contender == "nanogpt":
        torch.set_float32_matmul_precision("high" if on_gpu else "highest")  # nanoGPT's train.py allows TF32
        model = build_nanogpt(job, bias=False).to(job.device)
        optimizer = model.configure_optimizers(WEIGHT_DECAY, LEARNING_RATE, BETAS, job.device)
        call = torch.compile(model) if on_gpu else model
        precision = "bfloat16" if on_gpu and torch.cuda.is_bf16_supported() else "float32"
        return Learner(model, lambda tokens, targets: call(tokens, targets)[1], optimizer, precision)
    keep_freed_memory()
    model = GPT(gpt2_config(job.size, bias=False)).to(job.device)
    optimizer = build_optimizer(model, OptimizerConfig("adamw", weight_decay=WEIGHT_DECAY, betas=BETAS))
    options = compile_options("auto", torch.device(job.device), adds_gradients=False)
    loss = partial(loss_of, model)
    if options is not None:
        loss = torch.compile(loss, **options)
    return Learner(model, loss, optimizer, "bfloat16" if has_fast_bfloat16(job.device) else "float32")


def loss_of(gpt: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    return next_token_loss(gpt, gpt.features(tokens), targets)


def train(learner: Learner, text: Tensor, job: Namespace) -> Iterator[int]:
    """Trains as nanoGPT does, on random windows of `text` (N,). After each update, yields the number of updates."""
    context = job.size["context_length"]
    for step in range(job.steps):
        for group in learner.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * learning_rate_factor(step, job.steps, SCHEDULE)
        starts = torch.randint(len(text) - context, (job.batch_size, 1))
        rows = text[starts + torch.arange(context + 1)].to(job.device, non_blocking=True)
        with torch.autocast(job.device, torch.bfloat16, enabled=learner.precision == "bfloat16"):
            loss = learner.loss(*inputs_and_targets(rows))
        loss.backward()
        nn.utils.clip_grad_norm_(learner.model.parameters(), GRADIENT_CLIP)
        learner.optimizer.step()
        learner.optimizer.zero_grad(set_to_none=True)
        yield step + 1


def inputs_and_targets(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Splits windows (B, T + 1) into inputs and targets, each (B, T)."""
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def read(path: str) -> Tensor:
    """Returns the bytes of a file as tokens (N,)."""
    return torch.tensor(list(Path(path).read_bytes()))


def split(text: Tensor) -> tuple[Tensor, Tensor]:
    """Splits a text (N,) for training and validation. The validation text begins with the last token of the other."""
    cut = int((1 - VALIDATION_FRACTION) * len(text))
    return text[:cut], text[cut - 1 :]


class Curve:
    """Measures the validation loss, and the time so far, at EVALUATIONS steps of a training.

    Args:
        steps: number of steps in the training.
        loss: from (tokens, targets) to the mean in nats.
        text: (N,), the text to validate on.
        context: number of tokens in a window.
    """

    def __init__(self, steps: int, model: nn.Module, loss: Callable[..., Tensor], text: Tensor, context: int):
        self.model = model
        self.loss = loss
        self.windows = text.unfold(0, context + 1, context)  # a last window that is not full is left out
        self.due = {WARM_UP, *(steps * number // EVALUATIONS for number in range(1, EVALUATIONS + 1))}
        self.points: list[dict[str, float]] = []
        self.seconds = 0.0

    def after(self, step: int) -> None:
        """Evaluates, with the clock stopped, if an evaluation is due after `step`. Call this after every batch."""
        if step not in self.due:
            return
        self.due.remove(step)  # a step may have several batches
        device = self.windows.device.type
        if step > WARM_UP:
            self.seconds += clock(device) - self.started
            seconds = self.seconds * step / (step - WARM_UP)
            self.points.append({"step": step, "seconds": seconds, "loss": self.mean_nats()})
        self.started = clock(device)

    @torch.no_grad()
    def mean_nats(self) -> float:
        nats = 0.0
        with in_eval_mode(self.model.modules()):
            for rows in self.windows.split(128):
                nats += self.loss(*inputs_and_targets(rows)).item() * len(rows)
        return nats / len(self.windows)


class LearningCurve(Callback):
    """Measures the Curve of a run of train.py on the bytes of the file `data`. `result` is the row of the last run."""

    result: ClassVar[Row]

    def __init__(self, data: str):
        self.data = data

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        gpt = module.gpt
        text = split(read(self.data))[1].to(module.device)
        self.curve = Curve(trainer.max_steps, gpt, partial(loss_of, gpt), text, gpt.config.context_length)
        # Training adds its points to this list.
        LearningCurve.result = {"curve": self.curve.points, **describe(gpt, trainer.precision)}

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self.curve.after(trainer.global_step)


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


def build_writer(job: Namespace) -> Writer:
    """Builds the contender's network, and the function with which it continues a prompt."""
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
    options = ["--config=configs/debug.yaml", "--trainer.max_steps=1", "--trainer.limit_val_batches=1", "--name=run"]
    with tempfile.TemporaryDirectory() as folder:
        run_training(folder, [*options, *job.train_options])
        run = Path(folder, "run")
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

    def numpy_alone(text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8)

    encode = byte_level().encode_array if job.contender == "glassgpt" else numpy_alone
    return {"seconds": seconds_of(partial(encode, text), job), "machine": machine(job.device)}


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
    """Describes what was measured: the network's size, the precision of its matrix products, and the machine.

    If the network uses a weight twice, the size counts it once.
    """
    device = next(network.parameters()).device.type
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return {"parameters": parameters, "precision": precision, "machine": machine(device)}


def machine(device: str) -> dict[str, Any]:
    return {"device": device_name(torch.device(device)), "threads": torch.get_num_threads()}
