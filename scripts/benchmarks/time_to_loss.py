"""Time to a validation loss: `python train.py` with one of our recipes against a peer that trains on the same text.

With --data the peer is nanoGPT with its published settings, and the text is read by characters. Otherwise it is the
same config with GPT-2's architecture and AdamW (gpt2+adamw). The target is the peer's lowest loss, of the seed in which
that is highest. Evaluation is one exact pass over the validation text in float32; the clock stops meanwhile. The first
three steps, in which PyTorch may compile, count as long as the later ones.

With the defaults one round takes 3 minutes on 2 CPU cores. To publish a figure take --rounds 3.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from model.gpt import in_eval_mode
from scripts.benchmarks.contenders import Command, Row, Size, alternate, call, compare, fit, leave_result, present
from scripts.benchmarks.machine import synchronized_time
from scripts.benchmarks.train import CONTENDERS as BARE_LOOPS
from scripts.benchmarks.train import GPT2, build, num_parameters, train
from scripts.parser import at_least

ROUNDS, WARM_UP = 1, 3
CONTENDERS = ["glassgpt", "gpt2+adamw", *[name for name in BARE_LOOPS if name.startswith("nanogpt")]]
CONFIG = "configs/shakespeare_char.yaml"
NO_VALIDATION = ("--trainer.val_check_interval=1000000000", "--trainer.limit_val_batches=1")
# Size, our steps, the peer's steps, nanoGPT's dropout: those of nanoGPT's README for a CPU, of its config for a GPU.
DEFAULTS = {"cpu": ("4x4x128/12x64", 260, 2000, 0.0), "cuda": ("6x6x384/64x256", 1000, 5000, 0.2)}


def add_options(parser: argparse.ArgumentParser) -> None:
    add, steps = parser.add_argument, at_least(WARM_UP + 1)
    add("--data", metavar="FILE", help="ASCII text, read by characters; its last tenth validates")
    add("--config", default=CONFIG, metavar="YAML", help=f"our recipe (default: {CONFIG})")
    add("--size", help="LAYERSxHEADSxWIDTH/BATCHxCONTEXT (default: with --data nanoGPT's, otherwise the config's)")
    add("--steps", type=steps, help="of our whole schedule (default: 260; on a GPU 1000)")
    add("--peer_steps", type=steps, help="of the peer's (default: nanoGPT's, 2000; on a GPU 5000)")
    add(
        "--peer_learning_rate", type=at_least(0, float), default=0.001, help="of gpt2+adamw (default: nanoGPT's, 0.001)"
    )
    add("--evaluations", type=at_least(1), default=20, help="in each training, evenly spaced (default: 20)")
    add("--target", type=at_least(0.001, float), metavar="NATS", help="loss per token (default: the peer's lowest)")
    add("--contenders", nargs="+", choices=CONTENDERS, metavar="NAME", help=f"of {', '.join(CONTENDERS)}")
    add("train_options", nargs="*", metavar="-- OPTION", help="for train.py, after a --; paths from the repository")


def run(options: argparse.Namespace, notes: list[str]) -> list[Row]:
    nanogpt = "nanogpt+compile" if options.device == "cuda" else "nanogpt"
    names = options.contenders or ["glassgpt", nanogpt if options.data else "gpt2+adamw"]
    names = present(names, options.nanogpt, notes)
    peers = [name for name in names if name != "glassgpt"]
    if not peers and options.target is None:
        raise ValueError("; ".join(["without a peer there is no loss to reach: set --target", *notes]))
    results = alternate(commands(names, options), options.rounds)
    target = options.target or max(min(point["loss"] for point in turn["curve"]) for turn in results[peers[0]])
    for turn in [turn for turns in results.values() for turn in turns]:
        turn |= reached(turn, target)
    notes.append("glassgpt and gpt2+adamw are train.py, which also logs and records attention.")
    work = f"training to {target:.3f} nats, {Path(options.config).stem}"
    return [{"work": work, "target": target, **row} for row in compare(results, same=("validation_tokens",))]


def commands(names: list[str], options: argparse.Namespace) -> dict[str, Command]:
    """The command of each contender; ValueError or FileNotFoundError for a mistake in the options."""
    shape, our_steps, peer_steps, dropout = DEFAULTS[options.device]
    recipe, vocab = list(NO_VALIDATION), 1
    if options.data:
        path = Path(options.data).resolve()
        vocab = count_characters(path)
        recipe += [f"--data.files={path}", "--data.tokenizer=bytes", "--data.vocab_size=null"]
    elif any(name.startswith("nanogpt") for name in names):
        raise ValueError("nanogpt reads a text by characters: name it with --data")
    size = Size.parse(f"{options.size or shape}/{vocab}")
    if options.size or options.data:
        recipe += [f"--model.gpt.num_layers={size.layers}", f"--model.gpt.num_heads={size.heads}"]
        recipe += [f"--model.gpt.embed_dim={size.width}", f"--model.gpt.context_length={size.context}"]
        recipe += [f"--data.batch_size={size.batch}"]
    made = {}
    for name in names:
        steps = (options.steps or our_steps) if name == "glassgpt" else (options.peer_steps or peer_steps)
        evaluations = min(options.evaluations, steps // (WARM_UP + 1))
        if name.startswith("nanogpt"):
            work = {"size": size, "data": str(path), "steps": steps, "evaluations": evaluations}
            settings = {"device": options.device, "checkout": options.nanogpt, "dropout": dropout}
            made[name] = call("time_to_loss:train_nanogpt", contender=name, **work, **settings)
        else:
            typed = [*recipe, *options.train_options, f"--trainer.max_steps={steps}"]
            if name != "glassgpt":  # after what was typed for both, or it would no longer be this peer
                typed += [f"--config={GPT2}", f"--model.optimizer.learning_rate={options.peer_learning_rate}"]
            callback = "time_to_loss.LearningCurve"
            made[name] = fit(callback, options.config, options.device, typed, evaluations=evaluations)
    return made


def count_characters(path: Path) -> int:
    """The number of different characters; ValueError or FileNotFoundError if the text cannot be used."""
    if not path.is_file():
        raise FileNotFoundError(f"--data {path}: there is no such file")
    content = path.read_bytes()
    if not content.isascii():
        raise ValueError(f"--data {path} is not all ASCII: its bytes, which ours reads, are not its characters")
    if len(content) < 1000:
        raise ValueError(f"--data {path} has {len(content)} characters: at least 1000 are needed")
    return len(set(content))


def reached(result: Row, target: float) -> Row:
    """The lowest loss, and the first evaluation at which it is `target` or less; None if there is none."""
    lowest = min(point["loss"] for point in result["curve"])
    targets = result["curve"][0]["targets"]
    bits_per_byte = lowest * targets / math.log(2) / result["validation_bytes"]
    first = next((point for point in result["curve"] if point["loss"] <= target), {})
    time = {"seconds": first.get("seconds"), "steps_to_target": first.get("step")}
    return {"lowest_loss": lowest, "bits_per_byte": bits_per_byte, "validation_tokens": targets, **time}


class Curve:
    """The validation loss over the time of training."""

    def __init__(self, device: str, steps: int, evaluations: int):
        self.device = device
        self.due = {steps * number // evaluations for number in range(1, evaluations + 1)}
        self.points: list[dict[str, float]] = []
        self.step, self.seconds = 0, 0.0

    def after(self, step: int, evaluate: Callable[[], Row]) -> None:
        """To be called after every step; evaluates if that is due, with the clock stopped."""
        if step == self.step:  # gradients are still being accumulated
            return
        self.step = step
        if step == WARM_UP:
            self.started = synchronized_time(self.device)
        if step in self.due:
            self.seconds += synchronized_time(self.device) - self.started
            seconds = self.seconds * step / (step - WARM_UP)
            self.points.append({"step": step, "seconds": seconds, **evaluate()})
            self.started = synchronized_time(self.device)


@torch.no_grad()
def mean_nats(nats: Callable[..., Tensor], model: nn.Module, batches: Iterable[tuple]) -> Row:
    """The mean `loss` over all targets of `batches`, in float32 and in eval mode, and the number of `targets`.

    Args:
        nats: summed nats of a batch: tokens (B, T), targets (B, T), where negative ones do not count, and what follows.
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    total, count = 0.0, 0
    with in_eval_mode(model):
        for batch in batches:
            total += nats(*batch).item()
            count += (batch[1] >= 0).sum().item()
    torch.set_float32_matmul_precision(precision)
    return {"loss": total / count, "targets": count}


class LearningCurve(Callback):
    """Measures `python train.py`. The ends of documents do not count in the loss, for nanoGPT's text has none."""

    def __init__(self, output: str, evaluations: int):
        self.output, self.evaluations = output, evaluations

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        self.curve = Curve(module.device.type, trainer.max_steps, self.evaluations)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
        def evaluate() -> Row:
            batches = map(trainer.strategy.batch_to_device, trainer.datamodule.val_dataloader())
            return mean_nats(nats, module.gpt, (without_ends(batch) for batch in batches))

        def without_ends(batch: dict[str, Tensor]) -> tuple:
            ends = batch["targets"] == trainer.datamodule.tokenizer.end_of_text
            return batch["tokens"], batch["targets"].masked_fill(ends, -100), batch.get("document_ids")

        def nats(tokens: Tensor, targets: Tensor, document_ids: Tensor | None) -> Tensor:
            return module.gpt.loss(tokens, targets, document_ids=document_ids, reduction="sum")

        self.curve.after(trainer.global_step, evaluate)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        text = {"validation_bytes": trainer.datamodule.validation_bytes}
        leave_result(self.output, {"curve": self.curve.points, **text, **describe(trainer, module)})


def describe(trainer: Trainer, module: LightningModule) -> Row:
    """What was trained, in which precision of matrix products."""
    precision = "bfloat16" if "bf16" in str(trainer.precision) else "float32"
    return {"parameters": num_parameters(module.gpt), "precision": precision}


def train_nanogpt(
    contender: str, size: list[int], data: str, steps: int, evaluations: int, device: str, seed: int, **options: Any
) -> Row:
    """The learning curve of nanoGPT on the characters of `data`, split as its prepare.py does."""
    size = Size(*size)
    _, ids = np.unique(np.frombuffer(Path(data).read_bytes(), np.uint8), return_inverse=True)
    ids, cut = torch.from_numpy(ids), int(0.9 * len(ids))
    torch.manual_seed(seed)
    learner = build(contender, size, device, **options)
    batches = windows(ids[cut - 1 :].to(device), size.context)  # the first target has the last training token before it
    curve = Curve(device, steps, evaluations)

    def nats(tokens: Tensor, targets: Tensor) -> Tensor:
        return learner.model(tokens, targets)[1] * (targets >= 0).sum()

    for step in itertools.islice(train(learner, ids[:cut], size, device, steps), steps):
        curve.after(step, lambda: mean_nats(nats, learner.model, batches))
    return {"curve": curve.points, "validation_bytes": len(ids) - cut, **learner.describe()}


def windows(text: Tensor, context: int) -> list[tuple[Tensor, Tensor]]:
    """Every token of `text` (N,) but the first as a target once, in windows side by side; -1 fills the last one up."""
    missing = -(len(text) - 1) % context
    tokens = F.pad(text[:-1], (0, missing)).view(-1, context)
    targets = F.pad(text[1:], (0, missing), value=-1).view(-1, context)
    return list(zip(tokens.split(128), targets.split(128), strict=True))
