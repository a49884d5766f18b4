"""Options of a run that takes a second, and comparisons of runs; for the tests that train and for tests/faults."""

import csv
import random
from pathlib import Path

import torch

from model.checkpoint import read_checkpoint
from model.files import content_of
from tests.programs import REPOSITORY

# Everything that a resume could get wrong: dropout's random numbers, accumulated gradients, Muon, AdamW, the sparse
# updates of tables, and rows, validations and saves at different steps.
EVENTFUL = ["--model.gpt.dropout=0.1", "--trainer.accumulate_grad_batches=2", "--checkpoints.every_n_steps=1"]
EVENTFUL += ["--model.gpt.ngram_sizes=[2,3]", "--model.gpt.ngram_buckets=64"]
EVENTFUL += ["--trainer.log_every_n_steps=3"]
# A run of 12 steps that validates and saves at every fourth.
SMALL = """--data.corpus=files --data.tokenizer=bytes --data.vocab_size=null --data.batch_size=4
    --model.gpt.context_length=16 --model.gpt.embed_dim=32 --recording.probe_tokens=8
    --trainer.max_steps=12 --trainer.val_check_interval=4 --trainer.limit_val_batches=1.0
    --trainer.log_every_n_steps=2 --samples.max_new_tokens=8"""


def small_text():
    """6 kB that a model can learn: words from a short list in random order."""
    draw = random.Random(0)
    words = ["the", "model", "reads", "a", "text", "and", "learns", "which", "word", "comes", "next"]
    return "\n".join(" ".join(draw.choices(words, k=8)) for _ in range(150))


def small_options(text, cache):
    """Options that make configs/debug.yaml a small run on `text`."""
    config = REPOSITORY / "configs/debug.yaml"
    return [f"--config={config}", f"--data.files={text}", f"--data.cache_dir={cache}", *SMALL.split()]


def csv_rows(path):
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def metrics(run_dir):
    """Rows of a run's metrics.csv, without the columns that depend on the machine's speed."""
    rows = csv_rows(Path(run_dir, "metrics.csv"))
    return [{k: v for k, v in row.items() if k not in ("tokens_per_second", "mfu")} for row in rows]


def column(run_dir, name):
    """A column of a run's metrics.csv: the figure of each step that has one."""
    return {int(row["step"]): float(row[name]) for row in csv_rows(Path(run_dir, "metrics.csv")) if row[name]}


def final_state(run):
    checkpoint = read_checkpoint(Path(run, "checkpoints", "last.ckpt"))
    return {key: checkpoint[key] for key in ("global_step", "state_dict", "optimizer_states")}


def assert_same(left, right, where="checkpoint"):
    """Asserts that two values are equal bit for bit, at any depth of nesting."""
    assert type(left) is type(right), where
    if isinstance(left, (list, tuple)):
        left, right = dict(enumerate(left)), dict(enumerate(right))
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same(left[key], right[key], f"{where}.{key}")
    else:
        assert left == right, where


def assert_same_run(left, right):
    assert_same(final_state(left), final_state(right))
    assert metrics(left) == metrics(right), "metrics.csv"
    for file in ("samples.jsonl", "attention/scores.jsonl"):
        assert content_of(Path(left, file)) == content_of(Path(right, file)), file
