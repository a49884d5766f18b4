"""The fault matrix, `make faults`: disturbs runs in every way and shows that nothing is lost.

In every case the user gets one sentence or training continues; earlier files stay readable; and a resumed run ends in
the same bits as an undisturbed one, unless the user was told otherwise. Signals go to real programs, all other faults
to `main` in this process. FAULTS=5 draws five times as many moments.
"""

import errno
import http.server
import os
import random
import resource
import shutil
import signal
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
import wandb
from torch.utils._pytree import tree_leaves

from data.datamodule import TextDataModule
from model.checkpoint import read_checkpoint
from model.inspection.recording import Recording
from model.runs.records import read_lines, read_metrics
from model.runs.run import Run
from model.training.module import GPTModule
from scripts import generate, inspect_attention
from tests import programs
from tests.command_lines import call
from tests.faults.hub import TEXTS, Hub
from tests.small_runs import EVENTFUL, assert_same, assert_same_run
from tests.watching import before_call, before_change, kill_wandb, signal_at
from train import main

RUN = Path("runs/run")
SEEDS = range(int(os.environ.get("FAULTS", "1")))
TRAIN, RESUME = ["train.py", "--name=run"], ["train.py", "--resume=runs/run"]
MAINS = {"train.py": main, "generate.py": generate.main, "inspect_attention.py": inspect_attention.main}


def mistake_of(status, written):
    """Returns the sentence of a program that ended with status 2, else "". Fails if it wrote a traceback."""
    assert "Traceback" not in written or status == -signal.SIGKILL, written[-2000:]
    assert status or not [path for path in Path().rglob(".*") if path.suffix in (".aside", ".new")]
    return written.strip().splitlines()[-1] if status == 2 else ""


@pytest.fixture
def run(here, capsys):
    """Calls a command's main function in this process; returns its sentence, if any, and all that it wrote."""

    def run(command, *statuses):
        capsys.readouterr()  # drops what was written before this command
        status, written, error = call(MAINS[command[0]], capsys, *command[1:])
        assert status in (statuses or (0,)), error[-2000:]
        return mistake_of(status, written + error), written + error

    return run


@pytest.fixture
def disturb(run, trained):
    """Trains in this process with the fault that `prepare` patches in; returns what `run` returns.

    Then continues as a user does, and asserts that the run ends in the bits of an undisturbed one.
    """

    def disturb(options, prepare):
        with pytest.MonkeyPatch.context() as patch:
            prepare(patch)
            told = run([*TRAIN, *options], 0, 2)
        run(go_on(run, [*TRAIN, *options])[0])
        assert_same_run(trained(), RUN)
        return told

    return disturb


def go_on(run, options):
    """Returns what a user types next, and the step from which it continues. Asserts that every file can be read."""
    checkpoints = {path.name: read_checkpoint(path) for path in RUN.glob("checkpoints/[!.]*")}
    for name, state in checkpoints.items():
        assert all(value.isfinite().all() for value in tree_leaves(state) if isinstance(value, torch.Tensor)), name
    steps = [row["step"] for row in read_metrics(RUN / "metrics.csv")]
    assert steps == sorted(set(steps)), steps
    read_lines(RUN / "samples.jsonl")
    if (RUN / "attention/scores.jsonl").exists():
        maps()
    if checkpoints:
        return RESUME, checkpoints[Run(RUN).resumed.name]["global_step"]
    if RUN.exists():
        run(RESUME, 2)
        shutil.rmtree(RUN)
    return options, -1


def end(program, *statuses):
    written = programs.end(program, *statuses)
    return mistake_of(program.returncode, written)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
def test_killed_at_random_moments(small_options, trained, run, signum, seed):
    """Kills each run four times: when it is about to write its n-th file, or a little later."""
    eventful = [*EVENTFUL, "--trainer.max_steps=30"]
    options = [*TRAIN, *small_options, *eventful]
    command, step, killed, draw = options, -1, 0, random.Random(f"{signum} {seed}")
    while killed < 4:
        # A terminal sends Ctrl-C to all processes of a run; other signals may reach the main one only.
        to_group = signum == signal.SIGINT or draw.random() < 0.5
        delay = draw.choice([0.0, draw.uniform(0, 0.002), draw.uniform(0, 0.05)])
        moment = programs.calling(signal_at, draw.randint(1, 60), int(signum), delay, to_group)
        program = programs.start(*command, before=moment)
        end(program, 0, -signum, 128 + signum)
        if has_finished := program.returncode == 0:
            assert_same_run(trained(*eventful), RUN)
            shutil.rmtree(RUN)
        before, (command, step) = step, go_on(run, options)
        assert step >= before or has_finished, f"the run was at step {before} and can be resumed from {step}"
        killed += not has_finished
    run(command)
    assert_same_run(trained(*eventful), RUN)


def limited_files(patch, number, room):
    """From the n-th file that is opened in runs/ on, no file can grow beyond `room` bytes."""
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE)
    before, over = resource.getrlimit(resource.RLIMIT_FSIZE), []
    over.append(before_change(["runs"], lambda _: limit((room, before[1])), number, events=["open"]))
    patch.setattr(patch, "undo", lambda: [limit(before), over[0]()])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("room", [0, 40, 400])
def test_disk_full(small_options, run, disturb, room, seed):
    """The disk is full when a file is opened, or some bytes later, for some of the files that a run writes."""
    options = [*small_options, "--data.cache_dir=runs/cold"]
    opened = []
    stop = before_change(["runs"], opened.append, events=["open"])
    run([*TRAIN, *options])
    stop()
    numbers = random.Random(f"{room} {seed}").sample(range(1, len(opened) + 1), 6)
    for number in numbers:
        shutil.rmtree("runs")
        mistake, written = disturb(options, lambda patch, number=number: limited_files(patch, number, room))
        assert "File too large" in written or (room and not mistake), (number, room, written)
        assert not mistake or "runs/" in mistake, (number, room)


CONFIG = "--config=runs/run/config.yaml"
READ_ONLY = [  # the folder, what is typed, and words of the sentence if it needs to write there
    ("runs", f"train.py {CONFIG} --name=new", "runs/new: Read-only file system"),
    ("runs", "train.py --resume=runs/run --trainer.max_steps=13", "Read-only file system"),
    ("cold", f"train.py {CONFIG} --name=new --data.cache_dir=cold", "data.cache_dir"),
    ("runs", "inspect_attention.py --run=runs/run --output=runs/run/a.html", "Read-only"),
    ("runs", "generate.py --checkpoint=runs/run --max_new_tokens=3", ""),
    ("full", f"train.py {CONFIG} --name=new --data.cache_dir=full", ""),
]


@pytest.mark.parametrize("folder, typed, expected", READ_ONLY)
def test_read_only_folder(finished_run, run, folder, typed, expected):
    def refuse(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    run(f"train.py {CONFIG} --name=other --data.cache_dir=full".split())
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    stop = before_change([folder], refuse)
    try:
        mistake, _ = run(typed.split(), 2 if expected else 0)
    finally:
        stop()
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == before
    assert expected in mistake and not (expected and Path("runs/new").exists())


DIVERGED = "lower the learning rates"
STOPS = {  # the fault in a batch, and words of the sentence
    "out of memory": (lambda *_: torch.empty(2**60, dtype=torch.uint8), "lower data.batch_size"),
    "nan weight": (lambda module, *_: module.gpt.token_embedding.weight.data[0, 0].fill_(torch.nan), DIVERGED),
    "nan gradient": (
        lambda module, *_: module.gpt.lm_head.weight.register_hook(lambda g: g * torch.nan),
        DIVERGED,
    ),
}


# Runs that save with the validation of step 4, and runs that save after every step.
@pytest.mark.parametrize("every, step, is_saved", [("null", 2, False), ("null", 9, True), (1, 1, False), (1, 12, True)])
@pytest.mark.parametrize("fault", STOPS)
def test_stopped_in_a_batch(small_options, disturb, fault, every, step, is_saved):
    """No checkpoint holds a number that is not finite, and the sentence says how to resume from the last one."""
    action, expected = STOPS[fault]
    sentence, _ = disturb(
        [*small_options, f"--checkpoints.every_n_steps={every}"],
        lambda patch: before_call(patch.setattr, GPTModule, "training_step", action, step),
    )
    assert expected in sentence and ("--resume runs/run" in sentence) == (is_saved and expected != DIVERGED), sentence


# Faults in another program: before which call, and what happens.
KILLS = {
    "wandb while the run trains": (GPTModule, "training_step", kill_wandb, 6),
    "wandb while it ends": (wandb.sdk.wandb_run.Run, "finish", kill_wandb),
}


def before(what):
    before_call(setattr, *KILLS[what])


@pytest.mark.parametrize("when", KILLS)
def test_weights_and_biases_fails(small_options, trained, here, when):
    """The run continues."""
    written = programs.run(*TRAIN, *small_options, "--wandb=offline", before=programs.calling(before, when))
    assert "Traceback" not in written and "killed" in written, written
    assert_same_run(trained(), RUN)


@pytest.fixture
def hub(here, monkeypatch):
    """Programs that are started from now on use this server as the Hub, with an empty cache."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(here / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "hub"))  # it has already read HF_HOME
        yield
        server.shutdown()


NOBODY = "http://127.0.0.1:9"
HUB = ["--data.corpus=hub", "--data.files=null", "--data.cache_dir=cache"]
STREAMED = ["--data.streaming=true", "--data.max_tokens=30000"]
NO_PAUSES = {"before": "import time; time.sleep = lambda seconds: None"}


@pytest.mark.parametrize("options", [[], STREAMED], ids=["whole", "streamed"])
def test_hub_that_answers(small_options, hub, monkeypatch, options):
    """The run ends, its tokens are those of the text, and later runs need no hub."""
    command = [*TRAIN, *small_options, *HUB, "--data.dataset=fine/texts", *options]
    programs.run(*command, **NO_PAUSES)
    monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    programs.run(*command, "--name=again", **NO_PAUSES)
    limits = {"streaming": True, "max_tokens": 30_000} if options else {}
    cached = TextDataModule(dataset="fine/texts", tokenizer="bytes", cache_dir="cache", **limits).cache.open()
    for tokens, texts in zip((cached.train, cached.validation), TEXTS.values(), strict=True):
        text, whole = cached.tokenizer.decode(tokens.read(0, tokens.num_tokens)), "<|endoftext|>".join(["", *texts, ""])
        assert whole.startswith(text) if options else text == whole


OWNERS = {"missing": "'missing/texts' doesn't exist on the Hub", "gated": "login"}
OWNERS |= {owner: f"cannot read data set '{owner}/texts'" for owner in ("unreachable", "cut")}


@pytest.mark.parametrize("options", [[], STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("owner", OWNERS)
def test_hub_that_refuses(small_options, hub, monkeypatch, owner, options):
    """The user gets one sentence, and nothing is left of the run."""
    if owner == "unreachable":
        monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    program = programs.start(*TRAIN, *small_options, *HUB, f"--data.dataset={owner}/texts", *options, **NO_PAUSES)
    assert OWNERS[owner] in end(program, 2) and not Path("runs").exists()


def maps(_=RUN):
    """The maps of every step that the run has recorded. Reads the figures too."""
    recording = Recording.open(RUN / "attention")
    found = [(recording.maps(step), recording.readings(step))[0] for step in recording.steps]
    return [(name, values.tobytes()) for at_step in found for name, values in at_step.items()]


# How each file is read. One changed byte must not change what is read without a message.
EXACT = dict.fromkeys(["checkpoints/last.ckpt", "checkpoints/best.ckpt"], read_checkpoint)
EXACT |= {"attention/step_*.npz": maps}
# Files in which a changed figure or letter may go unnoticed: no weight depends on them.
SHOWN = dict.fromkeys(["attention/scores.jsonl", "attention/probe.json"], maps)
SHOWN |= {"metrics.csv": read_metrics, "samples.jsonl": read_lines}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("path", [*EXACT, *SHOWN])
def test_changed_byte(finished_run, path, seed):
    """A sentence names the file, or what is read is the same."""
    read, file, draw = (EXACT | SHOWN)[path], max(RUN.glob(path)), random.Random(f"{path} {seed}")
    whole, expected = file.read_bytes(), read(file)
    for place in draw.choices(range(len(whole)), k=100):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ draw.randrange(1, 256)]) + whole[place + 1 :])
        try:
            found = read(file)
            assert path in SHOWN or assert_same(found, expected, f"byte {place} of {file}") is None
        except ValueError as error:
            assert "runs/run" in str(error), (place, error)
        file.write_bytes(whole)
