"""The fault matrix: makes everything go wrong that can, and shows that nothing is lost and no weight is silently wrong.

    make faults                     all cases
    make faults ARGS=--short        some of each, in at most four minutes
    make faults ARGS="-k killed"

In every case the person saw one sentence or the training went on; files from before could be read; and a resumed run
ended in the same bits as one that was never disturbed, unless the person was told otherwise.
"""

import errno
import http.server
import io
import os
import random
import re
import resource
import shutil
import signal
import threading
import time
from contextlib import redirect_stderr, suppress
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch
import wandb
import yaml

import train
from data.datamodule import TextDataModule
from model.checkpoint import read_checkpoint
from model.inspection.archive import AttentionArchive
from model.runs.folder import resume_point
from model.runs.results import read_metrics, read_samples
from model.training.module import GPTModule
from scripts import generate, inspect_attention, prepare_data, report
from tests.faults.conftest import DISTURBED
from tests.faults.hub import NOBODY, TEXTS, Hub, use
from tests.faults.processes import Ended, Started, nth_write, run, run_well, watch_writes
from tests.small_runs import assert_same, assert_same_run
from tests.watching import before_call

pytestmark = pytest.mark.usefixtures("here")
RUN = Path("runs/run")
RESUME = ["--resume=runs/run"]


def check_mistake(ended: Ended, expected: str = "", program: str = "train") -> str:
    """One sentence with the `expected` words, exit status 2 and no traceback; gives the sentence."""
    assert ended.status == 2 and "Traceback" not in ended.output, (ended.status, ended.output[-2000:])
    said = ended.output.strip().splitlines()[-1]
    assert said.startswith(f"{program}.py: ") and expected in said, (expected, ended.output[-2000:])
    return said


def maps(_: Path = RUN) -> list:
    """Of every step that the run has recorded; the details are read too."""
    archive = AttentionArchive.open(RUN / "attention")
    found = [(archive.maps(step), archive.details(step))[0] for step in archive.steps]
    return [(name, values.tobytes()) for at_step in found for name, values in at_step.items()]


def go_on(options: list[str]) -> tuple[list[str], int]:
    """What a person types next, and from which step: the run is resumed, or begins again if it had no checkpoint.

    Every file of the run can be read, and every weight is finite.
    """
    if not RUN.exists():
        return options, -1
    for path in RUN.glob("checkpoints/[!.]*.ckpt"):
        state = read_checkpoint(path)
        moments = [values for optimizer in state["optimizer_states"] for values in optimizer["state"].values()]
        for values in (state["state_dict"], *moments):
            assert all(torch.as_tensor(value).isfinite().all() for value in values.values()), path
    if (RUN / "metrics.csv").exists():
        steps = [row["step"] for row in read_metrics(RUN / "metrics.csv")]
        assert steps == sorted(set(steps)), steps
    read_samples(RUN / "samples.jsonl")
    if (RUN / "attention/scores.jsonl").exists():
        maps()
    with suppress(FileNotFoundError):
        return RESUME, read_checkpoint(resume_point(RUN)[1])["global_step"]
    check_mistake(run(RESUME))
    assert not list(RUN.glob("checkpoints/[!.]*"))
    shutil.rmtree(RUN)
    return options, -1


def check_same_run(whole: Path) -> None:
    """runs/run ended in the same bits as the undisturbed run, and no half-written file is left beside its files."""
    assert_same_run(whole, RUN)
    assert not [path for path in Path().rglob(".*") if path.name.endswith((".aside", ".new"))]


def disturb(undisturbed, prepare, *options: str) -> Ended:
    """Trains the run with `prepare` in its process: it ends well or in one sentence, and in the same bits at last."""
    options = [*undisturbed.options, *options]
    ended = run(options, prepare)
    if ended.status:
        check_mistake(ended)
    run_well(go_on(options)[0])
    check_same_run(undisturbed.run)
    return ended


@pytest.mark.short(6)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda signum: signum.name)
def test_killed_at_random_moments(undisturbed, record_property, signum, seed):
    """Ten times each: when it is about to write its n-th file, or a little later."""
    draw, killed, step = random.Random(f"{signum} {seed}"), 0, -1
    command = options = [*undisturbed.options, *DISTURBED, f"--data.num_workers={seed % 2}"]
    while killed < 10:
        # A terminal sends Ctrl-C to all processes of the run, loaders included; others may end its main one alone.
        kill = os.killpg if signum == signal.SIGINT or draw.random() < 0.5 else os.kill
        delay = draw.choice([0, draw.uniform(0, 0.002), draw.uniform(0, 0.05)])
        later = threading.Timer(delay, lambda kill=kill: kill(os.getpid(), signum))
        ended = run(command, partial(nth_write, draw.randint(1, 60), later.start, "runs"))
        # Where the main process is gone, nobody keeps its loaders from complaining.
        assert signum == signal.SIGKILL or "Traceback" not in ended.output, ended.output
        if ended.status == 0:  # the moment never came
            check_same_run(undisturbed.eventful)
            shutil.rmtree(RUN)
            command, step = options, -1
            continue
        assert ended.status in (-signum, 128 + signum), (ended.status, ended.output)
        before, killed = step, killed + 1
        command, step = go_on(options)
        assert step >= before, f"the run was at step {before} and can be resumed from {step}"
    run_well(command)
    check_same_run(undisturbed.eventful)
    record_property("cases", killed)


@pytest.mark.parametrize("part", range(6))
def test_disk_full(undisturbed, record_property, pytestconfig, part):
    """When a file is opened, or some bytes later: each file that a run writes, or with --short some of them."""
    cold = ["--data.cache_dir=cold", "--attention.picture=true"]
    tell = partial(watch_writes, lambda event, path: print(f"{event}: {path}"), "runs", "cold")
    files = re.findall("^open: ", run_well([*undisturbed.options, *cold], tell).output, re.MULTILINE)
    cases = [(number, room) for number in range(1, len(files) + 1) for room in (0, 40, 400)]
    cases = random.Random(part).sample(cases, 4) if pytestconfig.getoption("--short") else cases[part::6]
    for number, room in cases:
        shutil.rmtree("runs")
        shutil.rmtree("cold")
        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))  # this process alone
        ended = disturb(undisturbed, partial(nth_write, number, limit, "runs", "cold", events=["open"]), *cold)
        assert "File too large" in ended.output or (room and not ended.status), (number, room, ended.output)
        assert not ended.status or re.search("cold|runs/run", ended.output.splitlines()[-1]), (number, room, ended)
    record_property("cases", len(cases))


NEW = "--config=runs/run/config.yaml --name=new"
READ_ONLY = [  # the folder, a program, what is typed, and the words of its sentence where it needs to write
    ("runs", train, f"{NEW} --data.cache_dir=cache", "runs/new: Read-only file system"),
    ("runs", train, "--resume=runs/run --trainer.max_steps=13", "Read-only file system"),
    ("cold", train, f"{NEW} --data.cache_dir=cold", "data.cache_dir"),
    ("cold", prepare_data, "--config=runs/run/config.yaml --data.cache_dir=cold", "cache_dir"),
    ("runs", report, "--run=runs/run", "runs/run/report.html: Read-only file system"),
    ("runs", inspect_attention, "--run=runs/run --output=runs/run/a.html", "Read-only"),
    ("runs", inspect_attention, "--run=runs/run --output=runs/run/a.png", "Read-only"),
    ("runs", train, "validate --ckpt_path=runs/run", ""),
    ("runs", generate, "--checkpoint=runs/run --max_new_tokens=3", ""),
    ("cache", train, f"{NEW} --data.cache_dir=cache", ""),
]


@pytest.mark.parametrize(("folder", "program", "typed", "expected"), READ_ONLY)
def test_read_only_folder(undisturbed, folder, program, typed, expected):
    def refuse(event: str, path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    shutil.copytree(undisturbed.folder, ".", dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()}
    ended = run(typed.split(), partial(watch_writes, refuse, folder), program.main)
    assert {path: path.read_bytes() for path in RUN.rglob("*") if path.is_file()} == before
    if expected:
        assert not Path("runs/new").exists()
        check_mistake(ended, expected, program.__name__.split(".")[-1])
    assert ended.status == 0 or expected, ended.output


def kill_children(named: bytes, *_) -> None:
    for child in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        if named in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(child, signal.SIGKILL)
            print("killed", child)
    time.sleep(1)  # in which it is noticed


def take_all_of_the_gpu(*_) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


DIVERGED = "lower the learning rates"
STOPS = {  # what happens in a batch, and words of the sentence
    "out of memory": (lambda *_: torch.empty(2**60, dtype=torch.uint8), "lower data.batch_size"),
    "out of memory of a GPU": (take_all_of_the_gpu, "lower data.batch_size"),
    "loader process killed": (partial(kill_children, b""), "lower data.num_workers"),
    "nan weight": (lambda module, *_: module.gpt.token_embedding.weight.data[0, 0].fill_(torch.nan), DIVERGED),
    "infinite weights": (lambda module, *_: [one.data.fill_(torch.inf) for one in module.parameters()], DIVERGED),
    "nan gradient": (lambda module, *_: module.gpt.head.weight.register_hook(lambda grad: grad * torch.nan), DIVERGED),
}


@pytest.mark.short(18)
@pytest.mark.parametrize("step", range(1, 13))
@pytest.mark.parametrize("every", ["null", 1])
@pytest.mark.parametrize("fault", STOPS)
def test_stopped_in_a_batch(undisturbed, fault, every, step):
    """No checkpoint holds a number that is not finite, and the sentence says how to go on from the one before."""
    action, expected = STOPS[fault]
    options = [f"--checkpoints.every_n_steps={every}", f"--data.num_workers={2 * fault.startswith('loader')}"]
    stop = partial(before_call, setattr, GPTModule, "training_step", action, step)
    said = check_mistake(disturb(undisturbed, stop, *options), expected)
    assert ("--resume runs/run" in said) == (step > (1 if every == 1 else 4)) or expected == DIVERGED, said


@pytest.mark.short(6)
@pytest.mark.parametrize("cache", ["cold", "full"])
@pytest.mark.parametrize("call", [1, 3, 10, 30, 100])
@pytest.mark.parametrize("jump", [-3600.0, -1.9e9, 1e9])
def test_clock_that_jumps(undisturbed, jump, call, cache):
    """Set back by an hour or 60 years, or forward, while the run is trained or its text tokenised."""

    def prepare() -> None:
        now, calls = time.time, count(1)
        time.time = lambda: now() + (jump if next(calls) >= call else 0)

    folder = "cold" if cache == "cold" else undisturbed.folder / "cache"
    assert disturb(undisturbed, prepare, f"--data.cache_dir={folder}").status == 0
    assert "tokenising" not in run_well(RESUME).output  # which opens the cache again


@pytest.mark.short(6)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("how", ["started twice", "resumed while it is trained", "resumed twice"])
def test_two_runs_with_one_name(undisturbed, how, seed):
    """One of the two is trained, and is the run that it is alone; the other leaves no mark."""
    command = undisturbed.options
    if how != "started twice":
        signum = signal.SIGKILL if how == "resumed twice" else signal.SIGSTOP  # as if its machine were slow
        later = 77 + 5 * seed  # the first checkpoint is written by then
        first = Started(command, partial(nth_write, later, partial(signal.raise_signal, signum), "runs"))
        assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1]) == (signum == signal.SIGSTOP)
        command = RESUME
    both = [first if how == "resumed while it is trained" else Started(command)]
    time.sleep(random.Random(seed).uniform(0, 0.05))
    second = run(command)
    os.kill(both[0].pid, signal.SIGCONT)
    both = [both[0].end(), second]
    assert sorted(one.status for one in both) == [0, 2], [one.output[-1000:] for one in both]
    check_same_run(undisturbed.run)
    check_mistake(next(one for one in both if one.status), "runs/run")


KILL = partial(kill_children, b"wandb-core")
WANDB = {
    "killed while the run trains": (GPTModule, "training_step", KILL, 6),
    "killed while it ends": (wandb.sdk.wandb_run.Run, "finish", KILL),
    "its folder is a file": (wandb, "init", lambda **_: (RUN / "wandb").write_text("a file")),
}


@pytest.mark.parametrize("when", WANDB)
def test_weights_and_biases_fails(undisturbed, when):
    """The run does not."""
    ended = disturb(undisturbed, partial(before_call, setattr, *WANDB[when]), "--wandb=offline")
    assert ended.status == 0
    assert "killed" in ended.output or "Weights & Biases failed" in ended.output, ended


@pytest.fixture(scope="module")
def hub():
    """The address of a hub."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def from_hub(undisturbed, owner: str, options: list[str]) -> list[str]:
    hub = ["--data.corpus=hub", "--data.files=null", f"--data.dataset={owner}/modules", "--data.cache_dir=cache"]
    return [*undisturbed.options, *hub, *options]


STREAMED = ["--data.streaming=true", "--data.max_tokens=30000"]


@pytest.mark.parametrize(("owner", "options"), [("fine", []), ("fine", STREAMED), ("slow", []), ("busy_at_first", [])])
def test_hub_that_answers(undisturbed, hub, owner, options):
    """The tokens are those of the text, the run ends, and later runs need no hub."""
    command = from_hub(undisturbed, owner, options)
    run_well(command, partial(use, hub))
    limits = {"streaming": True, "max_tokens": 30_000} if options else {}
    data = TextDataModule(dataset=f"{owner}/modules", tokenizer="bytes", cache_dir="cache", context_length=16, **limits)
    tokenized = data.cache.open()
    for split, tokens in (("train", tokenized.train), ("validation", tokenized.validation)):
        ids, end_of_text = tokens.read(0, tokens.num_tokens).tolist(), tokenized.tokenizer.end_of_text
        expected = [end_of_text, *(token for text in TEXTS[split] for token in [*text.encode(), end_of_text])]
        assert ids == expected[: len(ids)] and (len(ids) == len(expected) or options)
    run_well([*command, "--name=again"], partial(use, NOBODY))


OWNERS = {"missing": "no data set 'missing/modules' on the Hugging Face Hub", "gated": "login"}
OWNERS |= dict.fromkeys(["busy", "dropped", "unreachable", "cut"], "cannot reach the Hugging Face Hub")


@pytest.mark.parametrize("options", [[], STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("owner", OWNERS)
def test_hub_that_refuses(undisturbed, hub, owner, options):
    """One sentence, and nothing left of the run."""
    ended = run(from_hub(undisturbed, owner, options), partial(use, NOBODY if owner == "unreachable" else hub))
    check_mistake(ended, OWNERS[owner])
    assert not Path("runs").exists()


def tokens(_: Path) -> list:
    """What is trained on after the cache in this folder is opened, and repaired where it must be."""
    files = yaml.safe_load((RUN / "config.yaml").read_text())["data"]["files"]
    data = TextDataModule(files=files, tokenizer="bytes", cache_dir="cache")
    with redirect_stderr(io.StringIO()):  # where the progress is shown
        cached = data.cache.prepare()
    parts = [(part.read(0, part.num_tokens).tolist(), part.num_bytes) for part in (cached.train, cached.validation)]
    return [cached.tokenizer.to_dict(), parts]


# What reads a file, by its path. One changed byte must not change what is read without a word.
EXACT = dict.fromkeys(["runs/run/checkpoints/last.ckpt", "runs/run/checkpoints/best.ckpt"], read_checkpoint)
EXACT |= dict.fromkeys(["cache/*/train.bin", "cache/*/train.json", "cache/*/tokenizer.json"], tokens)
EXACT["runs/run/attention/step_*.npz"] = maps
# Where another figure or letter may be shown, as no weight hangs on it.
SHOWN = {f"runs/run/attention/{name}": maps for name in ("step_*.json", "scores.jsonl", "probe.json")}
SHOWN |= {"runs/run/metrics.csv": read_metrics, "runs/run/samples.jsonl": read_samples}
RESUMED = {  # the option of a resume, and its warning
    "runs/run/config.yaml": ("--trainer.max_steps=13", "config.yaml is not as this run wrote it"),
    "words.txt": ("--data.files=words.txt", "The training text is not the one"),
}


def changed_bytes(path: Path, seed: int, places: int):
    """Changes a byte of the file, yields where, and changes it back."""
    whole, draw = path.read_bytes(), random.Random(f"{path} {seed}")
    for _ in range(places):
        content, place = bytearray(whole), draw.randrange(len(whole))
        content[place] ^= draw.randrange(1, 256)
        path.write_bytes(content)
        yield f"byte {place} of {path}"
        path.write_bytes(whole)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("path", [*EXACT, *SHOWN])
def test_changed_byte(undisturbed, record_property, path, seed):
    shutil.copytree(undisturbed.folder, ".", dirs_exist_ok=True)
    read, file = (EXACT | SHOWN)[path], max(Path().glob(path))
    expected = read(file)
    for place in changed_bytes(file, seed, 50):
        try:
            found = read(file)
        except (ValueError, OSError) as error:
            assert "runs/run" in str(error), (place, error)
        else:
            assert path in SHOWN or assert_same(found, expected, place) is None
    record_property("cases", 50)


@pytest.mark.short(8)
@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("path", RESUMED)
def test_changed_byte_before_a_resume(undisturbed, record_property, path, seed):
    """A sentence refuses it, or a warning says what has changed, or nothing of the training has."""
    option, warning = RESUMED[path]
    shutil.copytree(undisturbed.folder, ".", dirs_exist_ok=True)
    for place in changed_bytes(Path(path), seed, 5):
        ended = run([*RESUME, "--trainer.max_steps=13", option])
        shutil.rmtree(RUN)
        shutil.copytree(undisturbed.run, RUN)
        if ended.status:
            check_mistake(ended)
        assert warning in ended.output or ended.status or path == "words.txt", place
    record_property("cases", 5)
