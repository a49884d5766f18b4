"""train.py answers a mistake with one sentence and exit status 2, and leaves nothing behind. No test here trains."""

import math
import os
import re
import runpy
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from data.corpora import CORPORA
from data.tokenizers import Tokenizer
from tests.command_lines import call, last_error, tells
from tests.gpts import CONFIGS, random_gpt, save_checkpoint
from tests.programs import REPOSITORY
from tests.watching import before_call
from train import main

TWICE = "{class_path: EarlyStopping, init_args: {monitor: val/loss}}"
# What a user types, and names and figures of the answer.
MISTAKES = {
    # the command line
    "validate": "validate",
    "--model.gpt.num_layer=3": "--model.gpt.num_layer=3",
    "--data.context_length=8": "--data.context_length=8",
    "--model.gpt.num_layers": "--model.gpt.num_layers one",
    "--model.gpt.num_layers=big": "model.gpt.num_layers big int",
    "--model.optimizer.betas=0.9,0.95": "model.optimizer.betas 0.9,0.95",
    "--model.compile=c": "model.compile c 'auto' 'reduce-overhead' bool",
    "--name -x": "--name",
    "--data.files a.txt b.txt": "b.txt quotes",
    "--config=misspelled.yaml": "misspelled.yaml lenght",
    "--config=plain.yaml": "plain.yaml model",
    "--config=nested.yaml": "nested.yaml config",
    "--config=empty.yaml": "empty.yaml options",
    "--config=twice.yaml": "twice.yaml option",
    "--config=utf16.yaml": "utf16.yaml",
    "--resume": "--resume one",
    "--resume=runs/a --model.init_from=runs/a": "--model.init_from",
    "--resume=runs/a --model '{init_from: runs/a}'": "--model.init_from",
    "--resume=runs/a --name=b": "--name",
    # the network, and how it learns
    "--model.gpt.context_length=100000": "context_length",
    "--model.gpt.context_length=4": "model.gpt.context_length",
    "--model.gpt.vocab_size=10": "model.gpt.vocab_size 10 257",
    "--model.gpt.embed_dim=10 --model.gpt.num_heads=3": "num_heads=3 embed_dim=10",
    "--model.gpt.embed_dim=12 --model.gpt.num_heads=6 --model.gpt.num_kv_heads=4": "num_kv_heads=4 num_heads=6",
    "--model.gpt.embed_dim=36 --model.gpt.num_heads=12": "embed_dim num_heads 3",
    "--model.gpt.window=0": "model.gpt.window 1 0",
    "--model.gpt.logit_soft_cap=0": "model.gpt.logit_soft_cap 0",
    "--model.optimizer.betas=[0.9,1.0]": "model.optimizer.betas[1] 0 1 1.0",
    "--model.optimizer.algorithm=sgd": "model.optimizer.algorithm 'muon' 'adamw' 'sgd'",
    "--model.schedule.decay_fraction=1.5": "model.schedule.decay_fraction 0 1 1.5",
    "--model.compile=reduce-overhead --trainer.accumulate_grad_batches=2": "trainer.accumulate_grad_batches 1",
    # the text
    "--data.files=short.txt --data.validation_fraction=0.05": "validation",
    "--data.files=[]": "data.corpus files --data.files",
    "--data.corpus=hub --data.files=null": "data.corpus hub --data.dataset",
    "--data.corpus=wiki --data.files=null": "data.corpus 'wiki' stdlib hub",
    "--data.validation_files=none.txt": "none.txt --data.validation_files",
    f"--data.files={'x' * 300}": "x" * 300,
    "--data.dataset=x/y": "data.files data.dataset",
    "--data.streaming=true": "data.streaming --data.max_tokens",
    "--data.tokenizer=gpt9": "'gpt9' bytes gpt2 bpe",
    "--data.tokenizer=bpe --data.vocab_size=5000000000": "data.vocab_size 257 4294967295",
    "--data.repeat_fraction=0.5 --data.document_masking=true": "data.repeat_fraction data.document_masking",
    **{f"--data.{name}=0": f"data.{name} 0" for name in ("batch_size", "validation_batch_size")},
    **{f"--data.{name}=1.1": f"data.{name} 1 1.1" for name in ("repeat_fraction", "random_repeat_fraction")},
    "--data.max_tokens=1": "data.max_tokens 2 1",
    "--data.validation_fraction=1": "data.validation_fraction 0 1",
    "--data.repeat_from=-1": "data.repeat_from 0 -1",
    # the run
    "--trainer.log_every_n_steps=0": "trainer.log_every_n_steps 1 0",
    "--trainer.accumulate_grad_batches=0": "trainer.accumulate_grad_batches 1 0",
    "--trainer.gradient_clip_val=-1": "trainer.gradient_clip_val 0 -1",
    "--trainer.val_check_interval=0": "trainer.val_check_interval 0",
    "--trainer.val_check_interval=0.5": "trainer.val_check_interval 0.5",
    "--trainer.val_check_interval=00:00:00:05": "trainer.val_check_interval 00:00:00:05",
    "--trainer.strategy=fsdp": "trainer.strategy auto ddp fsdp",
    "--trainer.strategy='{class_path: X}'": "trainer.strategy auto ddp",
    "--trainer.profiler=sample": "'simple', 'advanced', 'pytorch', 'xla'",
    "--trainer.max_steps=-1": "trainer.max_steps",
    "--trainer.callbacks+=lightning.None": "lightning.None",
    "--trainer.callbacks+=broken_of_tests.X": "broken_of_tests",
    "--trainer.callbacks+=EarlyStopping": "monitor",
    f"--trainer.callbacks='[{TWICE}, {TWICE}]'": "EarlyStopping",
    "--trainer.callbacks+='{class_path: Timer, init_args: {interval: x}}'": "interval",
    "--seed_everything=-1": "seed_everything -1",
    "--samples.top_k=0": "samples.top_k 0",
    "--recording.probe_tokens=4": "recording.probe_tokens 4",
    "--recording.probe_text=abc": "recording.probe_text 3",
    "--trainer.devices=-1": "devices",
    "--trainer.logger=MLFlowLogger": "mlflow",  # a package that is not installed
}


FILES = {"short.txt": "0123456789" * 3, "misspelled.yaml": "data: {lenght: 3}", "plain.yaml": "model: 3"}
FILES |= {"nested.yaml": "config: [own.yaml]", "empty.yaml": "", "broken_of_tests.py": "undefined"}
FILES |= {"twice.yaml": "data: {batch_size: 4}\ndata: {max_tokens: 99}"}


def test_every_mistake_gets_one_sentence_and_leaves_nothing(train, capsys):
    for name, content in FILES.items():
        Path(name).write_text(content)
    Path("utf16.yaml").write_text("seed_everything: 1", encoding="utf-16")  # as PowerShell writes it
    for typed, names in MISTAKES.items():
        assert train(*shlex.split(typed)) == 2, typed
        *before, error = capsys.readouterr().err.splitlines()
        assert error.startswith("train.py: ") and tells(error, names), typed
        assert "an error in the code" not in " ".join(before), typed
        assert not Path("runs").exists()


CANNOT_RESUME = {
    "--name=run": "runs/run --name --resume",
    "--resume=runs/run --model.gpt.num_layers=3": "num_layers 2 3",
    "--resume=runs/run --data.tokenizer=bpe --data.vocab_size=300": "vocab_size",
    "--resume=runs/run --model.optimizer.algorithm=torch.optim.AdamW": "runs/run --model.optimizer.algorithm muon",
    "--resume=runs/run --recording.probe_tokens=9": "runs/run recording.probe_text",
    "--resume=runs/run --data.files=other.txt": "runs/run recording.probe_text",
    "--model.init_from=runs/run --model.gpt='{num_layers: 6}'": "model.gpt.num_layers 6 2",  # the default, but typed
    "--model.init_from=diverged.ckpt": "model.init_from diverged.ckpt",
    "--model.init_from=runs/run --model.gpt.window=4": "model.gpt.window 4 None",
    "--model.init_from=runs/run --model.gpt.logit_soft_cap=null": "model.gpt.logit_soft_cap None 15.0",
    "--model.init_from=runs/run --data '{tokenizer: bpe, vocab_size: 300}'": "'bytes'",
}


def test_what_cannot_be_resumed_or_overwritten_gets_one_sentence(train, finished_run, capsys):
    files = [Path("runs/run", name) for name in ("config.yaml", "checkpoints/last.ckpt", "metrics.csv")]
    before = [file.read_bytes() for file in files]
    save_checkpoint(Path("diverged.ckpt"), random_gpt(replace(CONFIGS["gpt2"], vocab_size=257), std=math.inf))
    Path("other.txt").write_text("another text " * 500)
    for typed, expected in CANNOT_RESUME.items():
        assert train(*shlex.split(typed)) == 2
        assert tells(last_error(capsys), expected)
        assert [file.read_bytes() for file in files] == before


DAMAGED = {
    "checkpoints/last.ckpt": [b"", b"no archive"],
    "config.yaml": [
        b"",
        b"model: \xff",
        b"model: [",
        b"seed_everything: 1",
        b"3",
        b"{model: {}, data: {}, trainer: 1}",
    ],
    "metrics.csv": [b"step\n\xff\n", b"tokens\n1\n", b"step,a\n1,2,3\n"],
    "samples.jsonl": [b"{}\n", b"\xff\n", b"no JSON\n"],
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_of_a_resumed_run_is_named(train, finished_run, capsys, name):
    path = finished_run / name
    for content in DAMAGED[name]:
        path.write_bytes(content)
        assert train("--resume=runs/run", "--trainer.max_steps=13") == 2
        assert f"{path} is damaged" in last_error(capsys)
        assert path.read_bytes() == content


def test_help_begins_with_the_usual_commands_and_explains_every_option(capsys, parser):
    _, text, _ = call(main, capsys, "--help")
    screen, all_options = text.split("\noptions:\n")
    typed = {*re.findall(r"--[a-z_.]+", screen)}
    assert typed >= {"--config", "--resume", "--data.files", "--model.init_from"}
    for option in typed | {f"--{name}" for name, _ in parser.get_defaults().items()}:
        assert re.search(rf"{option}\b", all_options), option
    corpus = all_options.split("--data.corpus CORPUS")[1].split("\n  --")[0]
    for name in CORPORA:
        assert re.search(rf"\b{name}\b", corpus), f"mention {name} in the docstring of CorpusOptions"


def test_ctrl_c_while_text_is_tokenised_ends_the_program_and_leaves_nothing(small_options, here, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", *small_options, "--data.cache_dir=cache"])
    before_call(monkeypatch.setattr, Tokenizer, "encode_array", lambda *_: os.kill(os.getpid(), signal.SIGINT), 1)
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(SystemExit, match="130"):
        runpy.run_path(str(REPOSITORY / "train.py"), run_name="__main__")
    for handler in handlers.items():
        signal.signal(*handler)
    assert not Path("runs").exists() and not [*Path("cache").glob("*/*.bin")]
