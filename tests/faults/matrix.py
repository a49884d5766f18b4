"""The fault matrix, `make faults`: makes everything go wrong that can, and shows that nothing is lost.

In every case the person saw one sentence or the training went on; files from before could be read; and a resumed run
ended in the same bits as one that was never disturbed, unless the person was told otherwise.
"""

import errno
import http.server
import os
import random
import resource
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import wandb
import yaml
from tests.faults.processes import Started, run
from torch.utils._pytree import tree_leaves

from data.datamodule import TextDataModule
from model.checkpoint import read_checkpoint
from model.inspection.archive import AttentionArchive
from model.runs.folder import resume_point
from model.runs.results import read_metrics, read_samples
from model.training.module import GPTModule
from tests.faults.hub import TEXTS, Hub
from tests.small_runs import EVENTFUL, assert_same, assert_same_run, final_state
from tests.watching import before_call, before_change

pytestmark = pytest.mark.usefixtures("here")
torch.set_num_threads(1)  # a process that has computed with more cannot be forked
RUN = Path("runs/run")
TRAIN, RESUME = ["train.py", "--name=run"], ["train.py", "--resume=runs/run"]


def go_on(options: list[str]) -> tuple[list[str], int]:
    """What a person types next, and the step that it goes on from; meanwhile every file of the run can be read."""
    checkpoints = {path.name: read_checkpoint(path) for path in RUN.glob("checkpoints/[!.]*")}
    for name, state in checkpoints.items():
        assert all(value.isfinite().all() for value in tree_leaves(state) if isinstance(value, torch.Tensor)), name
    if (RUN / "metrics.csv").exists():
        steps = [row["step"] for row in read_metrics(RUN / "metrics.csv")]
        assert steps == sorted(set(steps)), steps
    read_samples(RUN / "samples.jsonl")
    if (RUN / "attention/scores.jsonl").exists():
        maps()
    if checkpoints:
        return RESUME, checkpoints[resume_point(RUN)[1].name]["global_step"]
    if RUN.exists():
        run(RESUME, ends=[2])
        shutil.rmtree(RUN)
    return options, -1


def disturb(options: list[str], whole: Path, prepare) -> Started:
    """Trains with `prepare` in the process: the run ends well or in one sentence, and at last in the same bits."""
    ended = run([*TRAIN, *options], prepare, ends=(0, 2))
    run(go_on([*TRAIN, *options])[0])
    assert_same_run(whole, RUN)
    return ended


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
def test_killed_at_random_moments(small_options, trained, record_property, signum, seed):
    """Ten times each: when it is about to write its n-th file, or a little later."""
    eventful = [*EVENTFUL, "--trainer.max_steps=30"]
    options = [*TRAIN, *small_options, *eventful, f"--data.num_workers={seed % 2}"]
    command, step, killed, draw = options, -1, 0, random.Random(f"{signum} {seed}")
    while killed < 10:
        # A terminal sends Ctrl-C to all processes of the run, loaders included; others may end its main one alone.
        kill = os.killpg if signum == signal.SIGINT or draw.random() < 0.5 else os.kill
        delay = draw.choice([0, draw.uniform(0, 0.002), draw.uniform(0, 0.05)])
        later = threading.Timer(delay, lambda kill=kill: kill(os.getpid(), signum))
        moment = partial(before_change, ["runs"], lambda _, later=later: later.start(), draw.randint(1, 60))
        if has_finished := run(command, moment, ends=(0, -signum, 128 + signum)).exitcode == 0:
            assert_same_run(trained(*eventful), RUN)
            shutil.rmtree(RUN)
        before, (command, step) = step, go_on(options)
        assert step >= before or has_finished, f"the run was at step {before} and can be resumed from {step}"
        killed += not has_finished
    run(command)
    assert_same_run(trained(*eventful), RUN)
    record_property("cases", killed)


@pytest.mark.parametrize("part", range(6))
def test_disk_full(small_options, trained, record_property, pytestconfig, part):
    """When a file is opened, or some bytes later: each file that a run writes, or with --short some of them."""
    options = [*small_options, "--data.cache_dir=runs/cold", "--attention.picture=true"]
    opened = partial(before_change, ["runs"], events=["open"])
    files = disturb(options, trained(), partial(opened, partial(print, "opened"))).output.count("opened")
    cases = [(number, room) for number in range(1, files + 1) for room in (0, 40, 400)]
    cases = random.Random(part).sample(cases, 4) if pytestconfig.getoption("--short") else cases[part::6]
    for number, room in cases:
        shutil.rmtree("runs")
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))  # this process alone
        ended = disturb(options, trained(), partial(opened, lambda _, limit=limit: limit(), number))
        assert "File too large" in ended.output or (room and not ended.mistake), (number, room, ended.output)
        assert not ended.mistake or "runs/" in ended.mistake, (number, room)
    record_property("cases", len(cases))


CONFIG = "--config=runs/run/config.yaml"
READ_ONLY = [  # the folder, what is typed, and words of the sentence where it needs to write
    ("runs", f"train.py {CONFIG} --name=new", "runs/new: Read-only file system"),
    ("runs", "train.py --resume=runs/run --trainer.max_steps=13", "Read-only file system"),
    ("cold", f"train.py {CONFIG} --name=new --data.cache_dir=cold", "data.cache_dir"),
    ("runs", "scripts/report.py --run=runs/run", "runs/run/report.html: Read-only file system"),
    ("runs", "scripts/inspect_attention.py --run=runs/run --output=runs/run/a.html", "Read-only"),
    ("runs", "scripts/inspect_attention.py --run=runs/run --output=runs/run/a.png", "Read-only"),
    ("runs", "train.py validate --ckpt_path=runs/run", ""),
    ("runs", "scripts/generate.py --checkpoint=runs/run --max_new_tokens=3", ""),
    ("full", f"train.py {CONFIG} --name=new --data.cache_dir=full", ""),
]


@pytest.mark.parametrize(("folder", "typed", "expected"), READ_ONLY)
def test_read_only_folder(finished_run, folder, typed, expected):
    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    options = yaml.safe_load((RUN / "config.yaml").read_text())["data"]
    TextDataModule(**options | {"cache_dir": "full"}).cache.prepare()
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    ended = run(typed.split(), partial(before_change, [folder], refuse), ends=[2 if expected else 0])
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == before
    assert expected in ended.mistake and not (expected and Path("runs/new").exists())


def kill_children(named: bytes, *_) -> None:
    for child in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        if named in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)
            print("killed", child)
    time.sleep(1)  # in which it is noticed


DIVERGED = "lower the learning rates"
STOPS = {  # what happens in a batch, and words of the sentence
    "out of memory": (lambda *_: torch.empty(2**60, dtype=torch.uint8), "lower data.batch_size"),
    "out of memory of a GPU": (Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")), "lower data.batch_size"),
    "loader process killed": (partial(kill_children, b""), "lower data.num_workers"),
    "nan weight": (lambda module, *_: module.gpt.token_embedding.weight.data[0, 0].fill_(torch.nan), DIVERGED),
    "infinite weights": (lambda module, *_: [one.data.fill_(torch.inf) for one in module.parameters()], DIVERGED),
    "nan gradient": (lambda module, *_: module.gpt.head.weight.register_hook(lambda grad: grad * torch.nan), DIVERGED),
}


@pytest.mark.parametrize("step", range(1, 13))
@pytest.mark.parametrize("every", ["null", 1])
@pytest.mark.parametrize("fault", STOPS)
def test_stopped_in_a_batch(small_options, trained, fault, every, step):
    """No checkpoint holds a number that is not finite, and the sentence says how to go on from the one before."""
    action, expected = STOPS[fault]
    options = [f"--checkpoints.every_n_steps={every}", f"--data.num_workers={2 * fault.startswith('loader')}"]
    stop = partial(before_call, setattr, GPTModule, "training_step", action, step)
    said = disturb([*small_options, *options], trained(), stop).mistake
    has_checkpoint = step > (1 if every == 1 else 4)
    assert expected in said and (expected == DIVERGED or ("--resume runs/run" in said) == has_checkpoint), said


@pytest.mark.parametrize("cache", ["cold", "full"])
@pytest.mark.parametrize("call", [1, 3, 10, 30, 100])
@pytest.mark.parametrize("jump", [-3600.0, -1.9e9, 1e9])
def test_clock_that_jumps(small_options, trained, jump, call, cache):
    """Set back by an hour or 60 years, or forward, while the run is trained or its text tokenised."""
    now = time.time
    jumps = partial(before_call, setattr, time, "time", lambda: setattr(time, "time", lambda: now() + jump), call)
    options = [*small_options, "--data.cache_dir=cold"] if cache == "cold" else small_options
    assert not disturb(options, trained(), jumps).mistake
    assert "tokenising" not in run(RESUME).output  # which opens the cache again


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("how", ["started twice", "resumed while it is trained", "resumed twice"])
def test_two_runs_with_one_name(small_options, trained, how, seed):
    """One of the two is trained, and is the run that it is alone; the other leaves no mark."""
    command = [*TRAIN, *small_options]
    if how != "started twice":
        signum = signal.SIGKILL if how == "resumed twice" else signal.SIGSTOP  # as if its machine were slow
        stop = partial(before_change, ["runs"], lambda _: signal.raise_signal(signum), 77 + 5 * seed)
        first = Started(command, stop)  # which has written its first checkpoint by then
        assert os.waitid(os.P_PID, first.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT).si_status == signum
        command = RESUME
    one = first if how == "resumed while it is trained" else Started(command)
    time.sleep(random.Random(seed).uniform(0, 0.05))
    other = run(command, ends=(0, 2))
    os.kill(one.pid, signal.SIGCONT)
    assert {one.end(0, 2).exitcode, other.exitcode} == {0, 2}, (one.output, other.output)
    assert "runs/run" in one.mistake + other.mistake
    assert_same_run(trained(), RUN)


WANDB = {
    "killed while the run trains": (GPTModule, "training_step", partial(kill_children, b"wandb-core"), 6),
    "killed while it ends": (wandb.sdk.wandb_run.Run, "finish", partial(kill_children, b"wandb-core")),
    "its folder is a file": (wandb, "init", lambda **_: (RUN / "wandb").write_text("a file")),
}


@pytest.mark.parametrize("when", WANDB)
def test_weights_and_biases_fails(small_options, trained, when):
    """The run does not."""
    ended = disturb([*small_options, "--wandb=offline"], trained(), partial(before_call, setattr, *WANDB[when]))
    assert not ended.mistake and ("killed" in ended.output or "Weights & Biases failed" in ended.output), ended.output


@pytest.fixture
def hub(here, monkeypatch):
    """Programs that are started from now on take it for the Hub, and find their cache empty."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.once = {"busy_at_first": "busy"}
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HOME", str(here / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "hub"))  # has read HF_HOME already
        yield
        server.shutdown()


NOBODY = "http://127.0.0.1:9"
HUB = ["--data.corpus=hub", "--data.files=null", "--data.cache_dir=cache"]
STREAMED = ["--data.streaming=true", "--data.max_tokens=30000"]
NO_PAUSES = partial(setattr, time, "sleep", lambda seconds: None)


@pytest.mark.parametrize(("owner", "options"), [("fine", []), ("fine", STREAMED), ("slow", []), ("busy_at_first", [])])
def test_hub_that_answers(small_options, hub, monkeypatch, owner, options):
    """The tokens are those of the text, the run ends, and later runs need no hub."""
    command = [*TRAIN, *small_options, *HUB, f"--data.dataset={owner}/texts", *options]
    run(command, NO_PAUSES)
    monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    run([*command, "--name=again"], NO_PAUSES)
    limits = {"streaming": True, "max_tokens": 30_000} if options else {}
    cached = TextDataModule(dataset=f"{owner}/texts", tokenizer="bytes", cache_dir="cache", **limits).cache.open()
    for tokens, texts in zip((cached.train, cached.validation), TEXTS.values(), strict=True):
        text, whole = cached.tokenizer.decode(tokens.read(0, tokens.num_tokens)), "<|endoftext|>".join(["", *texts, ""])
        assert whole.startswith(text) if options else text == whole


OWNERS = {"missing": "no data set 'missing/texts' on the Hugging Face Hub", "gated": "login"}
OWNERS |= dict.fromkeys(["busy", "dropped", "unreachable", "cut"], "cannot reach the Hugging Face Hub")


@pytest.mark.parametrize("options", [[], STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("owner", OWNERS)
def test_hub_that_refuses(small_options, hub, monkeypatch, owner, options):
    """One sentence, and nothing left of the run."""
    if owner == "unreachable":
        monkeypatch.setenv("HF_ENDPOINT", NOBODY)
    ended = run([*TRAIN, *small_options, *HUB, f"--data.dataset={owner}/texts", *options], NO_PAUSES, ends=[2])
    assert OWNERS[owner] in ended.mistake and not Path("runs").exists()


def tokens(_: Path = RUN) -> list:
    """What is trained on after the cache is opened, and made or repaired where it must be."""
    cached = TextDataModule(files=["words.txt"], tokenizer="bytes", cache_dir="cache").cache.prepare()
    parts = [(part.read(0, part.num_tokens).tolist(), part.num_bytes) for part in (cached.train, cached.validation)]
    return [cached.tokenizer.to_dict(), parts]


def maps(_: Path = RUN) -> list:
    """Of every step that the run has recorded; the details are read too."""
    archive = AttentionArchive.open(RUN / "attention")
    found = [(archive.maps(step), archive.details(step))[0] for step in archive.steps]
    return [(name, values.tobytes()) for at_step in found for name, values in at_step.items()]


def resumed(path: Path) -> list:
    """What a copy of the run is trained to, if no warning says that the file has changed."""
    shutil.copytree(RUN, "runs/copy", dirs_exist_ok=True)
    files = ["--data.files=words.txt"] if path.name == "words.txt" else []
    ended = run(["train.py", "--resume=runs/copy", "--trainer.max_steps=13", *files], ends=(0, 2))
    if ended.mistake or "not as this run wrote it" in ended.output or "training text is not the one" in ended.output:
        raise ValueError(f"{RUN}: {ended.output}")
    return [(RUN / "config.yaml").read_bytes(), final_state("runs/copy")]


# What reads a file, by its path. One changed byte must not change what is read without a word.
EXACT = dict.fromkeys(["runs/run/checkpoints/last.ckpt", "runs/run/checkpoints/best.ckpt"], read_checkpoint)
EXACT |= dict.fromkeys(["cache/*/train.bin", "cache/*/validation.bin"], tokens)
EXACT |= {"runs/run/attention/step_*.npz": maps, "runs/run/config.yaml": resumed, "words.txt": resumed}
# Where another figure or letter may be shown, as no weight hangs on it.
SHOWN = {f"runs/run/attention/{name}": maps for name in ("step_*.json", "scores.jsonl", "probe.json")}
SHOWN |= {"cache/*/tokens.json": tokens}
SHOWN |= {"runs/run/metrics.csv": read_metrics, "runs/run/samples.jsonl": read_samples}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("path", [*EXACT, *SHOWN])
def test_changed_byte(finished_run, small_text, record_property, pytestconfig, path, seed):
    """It is repaired, or a sentence or a warning says so, or what is read is the same."""
    shutil.copy2(small_text, "words.txt")
    tokens()
    read, file, draw = (EXACT | SHOWN)[path], max(Path().glob(path)), random.Random(f"{path} {seed}")
    whole, expected = file.read_bytes(), read(file)
    places = 5 if read is resumed and pytestconfig.getoption("--short") else 50
    for place in draw.choices(range(len(whole)), k=places):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ draw.randrange(1, 256)]) + whole[place + 1 :])
        try:
            found = read(file)
            assert path in SHOWN or assert_same(found, expected, f"byte {place} of {file}") is None
        except (ValueError, OSError) as error:
            assert "runs/run" in str(error), (place, error)
        file.write_bytes(whole)
    record_property("cases", places)
