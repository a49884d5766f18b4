"""Files from strangers are data: every program that opens a hostile file refuses it with one sentence.

Nothing in the file is run, no more memory is taken than its size accounts for, and nothing is written.
tests/model/test_checkpoint.py has more hostile checkpoints.
"""

import importlib
import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data.tokenizers import byte_level
from tests.command_lines import call, refused
from tests.strangers import Calls, limited_memory

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="limits the memory as Linux does")]

RUN = "runs/run"
ONE_STEP = ("--name=new", "--trainer.max_steps=13")
# The command line of every program that opens a stranger's files. A new program is one line.
ENTRIES = {
    "resume": ("train", f"--resume={RUN}", "--trainer.max_steps=13"),
    "start": ("train", f"--config={RUN}/config.yaml", f"--model.init_from={RUN}/checkpoints/best.ckpt", *ONE_STEP),
    "generate": ("scripts.generate", "--checkpoint", RUN, "--max_new_tokens", "5"),
    "walk": ("scripts.walk", "--checkpoint", RUN, "--prompt", "the text"),
    "read a prompt": ("scripts.inspect_attention", "--checkpoint", RUN, "--prompt", "the text"),
    "inspect": ("scripts.inspect_attention", "--run", RUN),
    "table": ("scripts.inspect_attention", "--run", RUN, "--output", "maps.csv"),
    "evaluate": ("scripts.evaluate", "--checkpoint", RUN),
    "export": ("scripts.convert_huggingface", "export", RUN, "exported"),
    "compare": ("scripts.compare", RUN),
}
# The programs that open each file of a run.
CHECKPOINT = ["resume", "start", "generate", "walk", "read a prompt"]
CONFIG = ["resume", "start", "inspect", "compare"]
OF_A_RUN = ["resume"]  # other programs get the config from the user, who may mean what it says
ATTENTION = ["resume", "inspect"]
MAPS = ["inspect"]
METRICS = ["resume", "inspect"]


def answer(entry, capfd, ask=call, run=RUN):
    """Returns what `call`, or `refused`, returns for a program."""
    module, *arguments = (argument.replace(RUN, run) for argument in ENTRIES[entry])
    return ask(importlib.import_module(module).main, capfd, *arguments)


def files_below(folder):
    """The content of every file in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


PWN = Calls(os.mkdir, "pwned")


def change(**entries):
    """Changes entries of the checkpoints."""

    def write(run):
        for path in (run / "checkpoints").glob("*.ckpt"):
            torch.save(torch.load(path, weights_only=True) | entries, path)

    return write


def tokenizer(**entries):
    return change(tokenizer=byte_level().to_dict() | entries)


def edit(name, change):
    return lambda run: (run / name).write_text(change((run / name).read_text()))


def text(name, content):
    return edit(name, lambda _: content)


def config(extra):
    """Changes an option of the Trainer in config.yaml."""
    return edit("config.yaml", lambda content: content.replace("  callbacks: null\n", extra))


def link(name):
    """Makes a file of the run a link to a file outside, which must be neither read nor written."""

    def write(run):
        path, outside = run / name, Path("outside").absolute()
        shutil.move(path, outside)
        path.symlink_to(outside)

    return write


def instead(name, make):
    """Replaces a file by a pipe, which would block forever, or by a link to itself, which a write would notice."""

    def write(run):
        (run / name).unlink()
        make(run / name)

    return write


def maps(**arrays):
    def write(run):
        path = max((run / "attention").glob("*.npz"))
        with np.load(path) as file:
            np.savez_compressed(path, **({name: file[name] for name in file} | arrays), allow_pickle=True)

    return write


LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(30))
LONG = {"tokens": [[0] * 10**6], "labels": [[""] * 10**6], "document_ids": None, "attention_window": None}
LONG_PROBES = {"text": LONG, "repeated": LONG}

HOSTILE = {
    "pickle": (CHECKPOINT, lambda run: [p.write_bytes(pickle.dumps(PWN)) for p in run.glob("checkpoints/*")]),
    "pickle in a zip": (CHECKPOINT, change(extra=PWN)),
    "long pattern": (CHECKPOINT, tokenizer(pattern="(" * 9999 + "a" + "{9}){9}" * 9999)),
    "python in YAML": (CONFIG, text("config.yaml", "model: !!python/object/apply:os.mkdir [pwned]\ndata: {}\n")),
    "lists of lists in YAML": (CONFIG, text("config.yaml", LAUGHS + "model: *a30\ndata: {}\ntrainer: {}\n")),
    "deep YAML": (CONFIG, text("config.yaml", "[\n" * 300_000)),
    "deep code": (["resume", "inspect", "compare"], text("code.json", "[" * 100_000)),
    "class_path Popen": (
        [*OF_A_RUN, "start"],
        config("  callbacks:\n  - class_path: subprocess.Popen\n    init_args: {args: [mkdir, pwned]}\n"),
    ),
    "class_path in the run": (OF_A_RUN, config("  callbacks: runs.run.evil.Evil\n")),
    "pipe for a config": (["resume", "inspect", "compare"], instead("config.yaml", os.mkfifo)),
    "pipe for a probe": (["inspect"], instead("attention/probe.json", os.mkfifo)),
    "link to itself": (["resume", "inspect"], instead("samples.jsonl", lambda path: path.symlink_to(path.name))),
    "link to a config": (["resume", "inspect"], link("config.yaml")),
    "link to a checkpoint": (["resume"], link("checkpoints/last.ckpt")),
    "link to maps": ([*ATTENTION, "generate"], link("attention")),
    "infinite step": ([*METRICS, "compare"], text("metrics.csv", "step,train/loss\ninf,1\n")),
    "deep samples": (METRICS, text("samples.jsonl", "[" * 100_000 + "\n")),
    "infinite sample": (METRICS, text("samples.jsonl", '{"step": Infinity, "prompt": "", "text": ""}\n')),
    "deep scores": ([*ATTENTION, "compare"], text("attention/scores.jsonl", "[" * 100_000 + "\n")),
    "long probe": (
        ATTENTION,
        edit("attention/probe.json", lambda content: json.dumps(json.loads(content) | {"probes": LONG_PROBES})),
    ),
    "objects as maps": (MAPS, maps(text=np.array([PWN], dtype=object))),
    "deep figures": (MAPS, maps(figures=np.array(b"[" * 100_000))),
}


EVIL = """
import os
os.mkdir("pwned")
from lightning.pytorch.callbacks import Callback as Evil
"""


@pytest.fixture
def run(finished_run, monkeypatch):
    """A finished run with a module that makes the folder "pwned" if it is imported."""
    monkeypatch.syspath_prepend(Path.cwd())
    (finished_run / "evil.py").write_text(EVIL)
    return finished_run


@pytest.mark.parametrize("name", HOSTILE)
def test_every_program_refuses_a_hostile_file(name, run, tmp_path, capfd):
    entries, write = HOSTILE[name]
    write(run)
    before = files_below(tmp_path)
    for entry in entries:
        capfd.readouterr()
        with limited_memory():
            error = answer(entry, capfd, ask=refused)
        assert len(error) < 1200 and "alloc" not in error, (entry, error)
        assert files_below(tmp_path) == before, entry
        assert not Path("pwned").exists()


def test_every_program_accepts_the_unchanged_run(run, trained, capfd):
    """Otherwise the refusals above could have another reason."""
    for entry in ENTRIES:
        shutil.copytree(trained(), run, dirs_exist_ok=True)
        shutil.rmtree("runs/new", ignore_errors=True)
        assert answer(entry, capfd)[0] == 0, entry


def test_no_name_of_a_folder_or_tokenizer_controls_the_terminal(run, capfd):
    tokenizer(name="by\x1b[31mtes\u202e\x9b")(run)
    red = run.rename("runs/r\x1b[31med")
    for entry in ("resume", "generate", "walk", "inspect", "evaluate"):  # the first is refused: another tokenizer
        _, out, err = answer(entry, capfd, run=str(red))
        written = out + err
        assert not set("\x1b\u202e\x9b") & set(written) and r"\x1b[31m" in written, (entry, written)
