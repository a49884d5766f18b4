"""GPT-2's architecture by four authors: ours and nanoGPT's train, and with transformers' and llama.cpp's they write.

nanoGPT's model.py is run from the person's checkout. Its train.py trains as soon as it is imported, so its loop is
written here anew, with the settings that it publishes, and trains ours too. llama.cpp writes with our weights.

scripts/benchmark.py starts a process of this file for each contender. `job` says what it does: `contender`, `size`
(fields of GPTConfig), `checkout` (nanoGPT's folder), `device`, `seed`, `batch_size`, and what a function reads.
Letters: B sequences in a batch, T tokens of context, N tokens of a text.
"""

from __future__ import annotations

import importlib
import itertools
import json
import runpy
import sys
import tempfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from model.exchange.gguf import to_gguf
from model.generation import generate
from model.gpt import GPT, GPTConfig
from model.kernels import has_fast_bfloat16, keep_freed_memory
from model.runs.mistakes import exit_status
from model.training.hardware import missing_compiler
from model.training.optimizer import OptimizerConfig, build_optimizer
from model.training.schedule import ScheduleConfig, learning_rate_factor
from scripts.benchmarks.measuring import WARM_UP, Curve, Row, describe, leave_result, mean_nats, synchronized_time

ROOT = Path(__file__).resolve().parents[2]

# Of nanoGPT's train.py and config/train_shakespeare_char.py, which its README's command for CPUs starts from too.
LEARNING_RATE, WEIGHT_DECAY, BETAS, GRADIENT_CLIP = 1e-3, 0.1, (0.9, 0.99), 1.0
SCHEDULE = ScheduleConfig(warmup_steps=100, decay="cosine", final_factor=0.1)  # its warm-up is slower by 1%
# What nanoGPT calls fields of GPTConfig.
NANOGPT_NAMES = {"num_layers": "n_layer", "num_heads": "n_head", "embed_dim": "n_embd", "context_length": "block_size"}
# loss: tokens, targets (B, T) -> mean nats; fast_loss: the same, compiled where that is asked for
Learner = namedtuple("Learner", "model, loss, fast_loss, optimizer, precision")
SAMPLING = {"temperature": 0.8, "top_k": 200}  # as in its sample.py


def measure_step(job: Namespace) -> Row:
    """Time of a step on random tokens, after a warm-up: what a step costs does not depend on the text."""
    device, tokens = job.device, job.batch_size * job.size["context_length"]
    text = torch.randint(job.size["vocab_size"], (100 * tokens,))
    learner = build_learner(job)
    stride = 10 if device == "cuda" else 1  # waiting for a GPU at every step would keep Python from running ahead
    for step in train(learner, text, job, steps=2000):
        if step == WARM_UP:
            started = synchronized_time(device)
        elif step > 5 and step % stride == 0 and (elapsed := synchronized_time(device) - started) >= job.seconds:
            break
    milliseconds = 1000 * elapsed / (step - WARM_UP)
    return {"milliseconds_per_step": milliseconds, "tokens": tokens, **describe(learner.model, learner.precision)}


def learn_characters(job: Namespace) -> Row:
    """The learning curve of a contender on the characters of `data`, split as nanoGPT's prepare.py does."""
    characters = torch.frombuffer(bytearray(Path(job.data).read_bytes()), dtype=torch.uint8)
    ids, cut = characters.unique(return_inverse=True)[1], int(0.9 * len(characters))
    learner, curve = build_learner(job), Curve(job.device, job.steps, job.evaluations)
    batches = windows(ids[cut - 1 :].to(job.device), job.size["context_length"])  # its first token is training's last

    def losses() -> Iterator[tuple[Tensor, Tensor]]:
        for tokens, targets in batches:
            yield learner.loss(tokens, targets) * targets.numel(), torch.tensor(targets.numel())

    for step in itertools.islice(train(learner, ids[:cut], job, job.steps), job.steps):
        curve.after(step, lambda: mean_nats(learner.model, losses()))
    learned = {"curve": curve.points, "validation_bytes": len(ids) - cut}
    return learned | describe(learner.model, learner.precision)


def windows(text: Tensor, context: int) -> list[tuple[Tensor, Tensor]]:
    """Batches in which every token of `text` (N,) but the first is a target once; the last window may be shorter."""
    whole = (len(text) - 1) // context * context
    tokens, targets = (part.view(-1, context).split(128) for part in (text[:whole], text[1 : whole + 1]))
    rest = [(text[None, whole:-1], text[None, whole + 1 :])] if whole < len(text) - 1 else []
    return [*zip(tokens, targets, strict=True), *rest]


def build_learner(job: Namespace) -> Learner:
    """A network and what trains it; sets up this process for that. Raises ValueError if this machine cannot compile."""
    torch.manual_seed(job.seed)
    device, is_compiled = torch.device(job.device), job.contender.endswith("+compile")
    if is_compiled and (missing := missing_compiler(device)):
        raise ValueError(f"{job.contender} cannot be compiled: {missing} is missing")
    if job.contender.startswith("nanogpt"):
        torch.set_float32_matmul_precision("high")  # TF32 on GPUs that have it
        model = build_nanogpt(job, dropout=job.dropout, bias=False).to(device)
        optimizer = model.configure_optimizers(WEIGHT_DECAY, LEARNING_RATE, BETAS, device.type)
        precision = "bfloat16" if device.type == "cuda" else "float32"
    else:
        keep_freed_memory()
        model = GPT(gpt2_config(job.size, dropout=job.dropout)).to(device)
        optimizer = build_optimizer(model, OptimizerConfig("adamw", weight_decay=WEIGHT_DECAY, betas=BETAS))
        precision = "bfloat16" if has_fast_bfloat16(device.type) else "float32"

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return model(tokens, targets)[1] if job.contender.startswith("nanogpt") else model.loss(tokens, targets)

    return Learner(model, loss, torch.compile(loss) if is_compiled else loss, optimizer, precision)


def train(learner: Learner, text: Tensor, job: Namespace, steps: int) -> Iterator[int]:
    """nanoGPT's training on windows of `text` (N,) drawn at random, endless; yields the number of updates."""
    model, _, fast_loss, optimizer, precision = learner
    context = job.size["context_length"]

    def draw() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(text) - context, (job.batch_size, 1))
        rows = text[starts + torch.arange(context + 1)]
        if job.device == "cuda":
            rows = rows.pin_memory().to(job.device, non_blocking=True)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    batch = draw()
    for step in itertools.count():
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * learning_rate_factor(step, steps, SCHEDULE)
        with torch.autocast(job.device, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = fast_loss(*batch)
        batch = draw()  # while an accelerator is still at work
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield step + 1


def measure_writing(job: Namespace) -> Row:
    """Seconds to write `new_tokens` after each prompt of the batch, once, after a shorter text to warm up."""
    network, write = build_writer(job)
    network.to(job.device, getattr(torch, job.dtype)).eval()
    prompt = torch.randint(job.size["vocab_size"], (job.batch_size, job.prompt_tokens), device=job.device)
    warm_up = job.new_tokens if job.device == "cuda" else min(4, job.new_tokens)  # a graph has one length
    write(prompt, max_new_tokens=warm_up)
    started = synchronized_time(job.device)
    text = write(prompt, max_new_tokens=job.new_tokens)
    seconds, tokens = synchronized_time(job.device) - started, job.batch_size * job.new_tokens
    if text.shape != (job.batch_size, job.prompt_tokens + job.new_tokens):
        raise RuntimeError(f"{job.contender} wrote {tuple(text.shape)}, not {tokens} tokens after the prompts")
    quantized = {"precision": "q8_0"} if job.contender.endswith("+q8_0") else {}
    return {"seconds": seconds, "tokens": tokens, **describe(network, job.dtype), **quantized}


def build_writer(job: Namespace) -> tuple[nn.Module, Callable]:
    """A network and what writes with it: (prompt, max_new_tokens=...) -> prompt and text."""
    torch.manual_seed(job.seed)
    if job.contender == "glassgpt":
        gpt = GPT(gpt2_config(job.size, bias=True))
        return gpt, partial(generate, gpt, **SAMPLING)
    if job.contender.startswith("llama.cpp"):  # which has the tanh form of GELU only
        gpt = GPT(gpt2_config(job.size, bias=True, activation="gelu"))
        return gpt, build_llama(gpt, quantized=job.contender.endswith("+q8_0"))
    if job.contender == "nanogpt":
        torch.set_float32_matmul_precision("high")
        gpt = build_nanogpt(job, dropout=0.0, bias=True)
        return gpt, partial(gpt.generate, **SAMPLING)
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = {"bos_token_id": None, "eos_token_id": None}  # nothing ends a text early
    names = NANOGPT_NAMES | {"context_length": "n_positions"}
    shape = {names.get(name, name): value for name, value in job.size.items()}
    # With the activation of the others; GPT-2's own takes more operations.
    gpt = GPT2LMHeadModel(GPT2Config(**shape, **ids, activation_function="gelu"))
    cache = {"use_cache": True, "cache_implementation": "static" if job.device == "cuda" else None}
    return gpt, partial(gpt.generate, do_sample=True, pad_token_id=0, **cache, **SAMPLING)


def build_llama(gpt: GPT, quantized: bool) -> Callable[..., Tensor]:
    """What writes one text with llama.cpp and the weights of `gpt`, `quantized` to 8 bits each, its q8_0."""
    llama_cpp, vocab_size = importlib.import_module("llama_cpp"), gpt.config.vocab_size
    model = {"vocab": {chr(0x4E00 + token): token for token in range(1, vocab_size)}, "merges": []}  # any names will do
    files = {"tokenizer.json": {"model": model, "added_tokens": [{"id": 0, "content": "<|endoftext|>"}]}}
    tokenizer = Namespace(name="bytes", vocab_size=vocab_size, end_of_text=0, huggingface_files=lambda: files)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/whole.gguf"
        to_gguf(gpt, path, tokenizer)
        if quantized:
            options = llama_cpp.llama_model_quantize_default_params()
            options.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
            whole, path = path, f"{folder}/small.gguf"
            llama_cpp.llama_model_quantize(whole.encode(), path.encode(), options)
        threads = {"n_threads": torch.get_num_threads(), "n_threads_batch": torch.get_num_threads()}
        llama = llama_cpp.Llama(path, n_ctx=gpt.config.context_length, verbose=False, **threads)
    sampling = {"temp": SAMPLING["temperature"], "top_k": SAMPLING["top_k"], "top_p": 1.0, "min_p": 0.0}

    def write(prompt: Tensor, max_new_tokens: int) -> Tensor:
        text = itertools.islice(llama.generate(prompt[0].tolist(), repeat_penalty=1.0, **sampling), max_new_tokens)
        return torch.cat((prompt, torch.tensor([[*text]])), dim=1)

    return write


def build_nanogpt(job: Namespace, **options: Any) -> nn.Module:
    """nanoGPT's GPT, with the `dropout` and `bias` of its GPTConfig."""
    nanogpt = runpy.run_path(str(Path(job.checkout, "model.py")), run_name="nanogpt")
    shape = {NANOGPT_NAMES.get(name, name): value for name, value in job.size.items()}
    return nanogpt["GPT"](nanogpt["GPTConfig"](**shape, **options))


def gpt2_config(size: dict[str, int], **changes: Any) -> GPTConfig:
    """Our GPT in GPT-2's architecture as nanoGPT builds it, by default without biases, with `changes`."""
    recipe = yaml.safe_load((ROOT / "configs" / "gpt2_124m.yaml").read_text(encoding="utf-8"))
    return GPTConfig(**recipe["model"]["gpt"] | size | {"activation": "gelu_exact", "bias": False} | changes)


@exit_status("a contender")
def main(function: str, job: str, folder: str) -> None:
    """Calls a function of this file and leaves its result in the folder; returns the exit status, 2 for a mistake."""
    leave_result(folder, globals()[function](Namespace(**json.loads(job))))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
