"""What each benchmark compares: its contenders, their work, and the rows that come of it.

A benchmark is a function (options, notes) -> rows, whose docstring is the help of its subcommand. `notes` gets what the
reader of the rows should know. Mistakes in the options are found before anything is measured, and without torch.
"""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.benchmarks.contenders import GPT2_RECIPE, WARM_UP, Row, alternate, call, compare, fit, parse_size, present

# "reduce-overhead" compiles with CUDA graphs.
TRAINED = ["glassgpt", "glassgpt+compile", "glassgpt+reduce-overhead", "nanogpt", "nanogpt+compile"]
TRAINED_BY_DEFAULT = {"cpu": "glassgpt nanogpt", "cuda": "glassgpt glassgpt+reduce-overhead nanogpt nanogpt+compile"}
# CPU: nanoGPT's README on a laptop, and its GPU config in smaller batches. GPU: its character config, and GPT-2 with
# the vocabulary rounded up to a multiple of 64, as nanoGPT trains it.
SIZES = {"cpu": "4x4x128/12x64/65 6x6x384/16x256/65", "cuda": "6x6x384/64x256/65 12x12x768/32x1024/50304"}

WRITERS = ["glassgpt", "nanogpt", "transformers"]
VOCABULARY, PROMPT_TOKENS = 65, 16

LEARNERS = ["glassgpt", "gpt2+adamw", "nanogpt", "nanogpt+compile"]
# Size, our steps, the peer's steps, nanoGPT's dropout: those of nanoGPT's README for a CPU, of its config for a GPU.
LEARNING = {"cpu": ("4x4x128/12x64", 260, 2000, 0.0), "cuda": ("6x6x384/64x256", 1000, 5000, 0.2)}

NO_VALIDATION = ("--trainer.val_check_interval=1000000000", "--trainer.limit_val_batches=1")
BARE = ("--attention.enabled=false", "--samples.max_new_tokens=0", "--trainer.max_steps=1000000000", *NO_VALIDATION)


def train(options: Namespace, notes: list[str]) -> Iterator[Row]:
    """Time of a training step: our GPT in GPT-2's architecture against nanoGPT, each in a bare loop.

    With the defaults 3 minutes on 2 CPU cores. A compiled contender takes a minute more for each size.
    MFU is FLOPs of training per second, divided by the machine's matrix rate.
    """
    names = present(options.contenders or TRAINED_BY_DEFAULT[options.device].split(), options.nanogpt, notes)
    works = {text: parse_size(text) for text in options.sizes or SIZES[options.device].split()}
    for text, (batch_size, size) in works.items():
        work = {"batch_size": batch_size, "size": size, "seconds": options.seconds, "dropout": 0.0}
        yield from compete(f"training step, {text}", "gpt2:measure_step", names, options, **work)


def generate(options: Namespace, notes: list[str]) -> Iterator[Row]:
    """Time to write text after 16 tokens: ours, nanoGPT, and GPT-2 of `transformers` with its cache.

    All have the same architecture and size, and random weights. With the defaults 4 minutes on 2 CPU cores. nanoGPT
    has no cache: 16 texts of 256 tokens take it 100 seconds, and of 1000 tokens half an hour.
    """
    longest = PROMPT_TOKENS + max(options.new_tokens)
    if longest > options.context:
        raise ValueError(f"--context {options.context} is too short for the {longest} tokens of prompt and text")
    names = present(options.contenders or WRITERS, options.nanogpt, notes)
    dtype = options.dtype or ("bfloat16" if options.device == "cuda" else "float32")
    for batch, new_tokens in itertools.product(options.batches, options.new_tokens):
        _, size = parse_size(f"{options.model}/{batch}x{options.context}/{VOCABULARY}")
        work = f"writing {batch} x {new_tokens} tokens, {options.model}"
        lengths = {"prompt_tokens": PROMPT_TOKENS, "new_tokens": new_tokens}
        arguments = {"batch_size": batch, "size": size, "dtype": dtype, **lengths}
        yield from compete(work, "gpt2:measure_writing", names, options, **arguments)


def compete(work: str, function: str, names: list[str], options: Namespace, **arguments: Any) -> list[Row]:
    """The rows of contenders that call `function`; they must do it with equally large networks."""
    where = {"device": options.device, "checkout": options.nanogpt, **arguments}
    results = alternate({name: call(function, contender=name, **where) for name in names}, options.rounds)
    return compare(work, results, same=("parameters", "tokens"))


def time_to_loss(options: Namespace, notes: list[str]) -> Iterator[Row]:
    """Time to a validation loss: `python train.py` with one of our recipes against a peer on the same text.

    With --data the peer is nanoGPT with its published settings, and the text is read by characters. Otherwise it is
    the same config with GPT-2's architecture and AdamW (gpt2+adamw), in train.py too, which also logs and records
    attention. The target is the peer's lowest loss, of the seed in which that is highest. Evaluation is one exact pass
    over the validation text in float32; the clock stops meanwhile. The first three steps, in which PyTorch may
    compile, count as long as the later ones.

    With the defaults one round takes 3 minutes on 2 CPU cores. To publish a figure take --rounds 3.
    """
    nanogpt = "nanogpt+compile" if options.device == "cuda" else "nanogpt"
    names = options.contenders or ["glassgpt", nanogpt if options.data else "gpt2+adamw"]
    names = present(names, options.nanogpt, notes)
    peers = [name for name in names if name != "glassgpt"]
    if not peers and options.target is None:
        raise ValueError("; ".join(["without a peer there is no loss to reach: set --target", *notes]))
    if not options.data and any(name.startswith("nanogpt") for name in names):
        raise ValueError("nanogpt reads a text by characters: name it with --data")
    shape, our_steps, peer_steps, dropout = LEARNING[options.device]
    path = Path(options.data or "").resolve()
    batch_size, size = parse_size(f"{options.size or shape}/{count_characters(path) if options.data else 1}")
    recipe = list(NO_VALIDATION)
    if options.data:
        recipe += [f"--data.files={path}", "--data.tokenizer=bytes", "--data.vocab_size=null"]
    if options.size or options.data:
        recipe += [f"--model.gpt.{name}={value}" for name, value in size.items() if name != "vocab_size"]
        recipe += [f"--data.batch_size={batch_size}"]
    commands = {}
    for name in names:
        steps = (options.steps or our_steps) if name == "glassgpt" else (options.peer_steps or peer_steps)
        work = {"evaluations": min(options.evaluations, steps // (WARM_UP + 1))}
        if name.startswith("nanogpt"):
            work |= {"batch_size": batch_size, "size": size, "data": str(path), "steps": steps, "dropout": dropout}
            where = {"device": options.device, "checkout": options.nanogpt}
            commands[name] = call("gpt2:learn_characters", contender=name, **work, **where)
            continue
        typed = [*recipe, *options.train_options, f"--trainer.max_steps={steps}"]
        if name == "gpt2+adamw":  # after what was typed for both, or it would no longer be this peer
            typed += [f"--config={GPT2_RECIPE}", f"--model.optimizer.learning_rate={options.peer_learning_rate}"]
        commands[name] = fit("LearningCurve", options.config, options.device, typed, **work)
    results = alternate(commands, options.rounds)
    target = options.target or max(min(point["loss"] for point in turn["curve"]) for turn in results[peers[0]])
    reaching = {name: [{**turn, **reached(turn, target)} for turn in turns] for name, turns in results.items()}
    work = f"training to {target:.3f} nats, {Path(options.config).stem}"
    yield from compare(work, reaching, same=("validation_tokens",))


def reached(result: Row, target: float) -> Row:
    """The lowest loss, and the first evaluation at which it is `target` or less; None if there is none."""
    lowest = min(point["loss"] for point in result["curve"])
    targets = result["curve"][0]["targets"]
    bits_per_byte = lowest * targets / math.log(2) / result["validation_bytes"]
    first = next((point for point in result["curve"] if point["loss"] <= target), {})
    time = {"seconds": first.get("seconds"), "steps_to_target": first.get("step")}
    return {
        "target": target,
        "lowest_loss": lowest,
        "bits_per_byte": bits_per_byte,
        "validation_tokens": targets,
        **time,
    }


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


def overhead(options: Namespace, notes: list[str]) -> Iterator[Row]:
    """What the Trainer costs beside a bare loop, and what recording attention costs.

    Stretches of the Trainer and of a bare loop alternate in one process, on the same model, optimizer and data, with
    maps, samples and validation off. The recording is timed in a whole `python train.py`, with validation and
    checkpoints: "with maps" is all of its time, "without maps" the same less the seconds inside the recorder. With the
    defaults 3 minutes on 2 CPU cores.
    """
    recorded = (f"--trainer.max_steps={options.steps}", "--attention.enabled=true")
    measured = {
        "training step": ("BesideBareLoop", BARE, {"stretch": options.stretch, "seconds": options.seconds}),
        f"{options.steps} steps": ("RecordingClock", recorded, {}),
    }
    for work, (callback, last, arguments) in measured.items():
        typed = [*options.train_options, *last]
        command = fit(callback, options.config, options.device, typed, **arguments)
        turns = alternate({work: command}, options.rounds)[work]
        results = {name: [row for turn in turns for row in turn[name]] for name in turns[0]}
        yield from compare(f"{work}, {Path(options.config).stem}", results)
