"""Exit statuses and sentences of every command line, without training."""

import errno
import io
import multiprocessing
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import jsonargparse
import pytest
import torch

import model.checks
from model.runs.mistakes import exit_status, explain_machine, parse, sentence
from tests import programs
from tests.command_lines import tells


@dataclass
class Part:
    length: int = 1
    rate: float | None = None
    kind: Literal["a", "b"] | int = "a"
    pair: tuple[float, float] = (1, 2)


PARSED = {
    "--part.lenght=3": "--part.lenght",
    "--config '{part: {lenght: 3}}'": "lenght",
    "--config '{prat: {length: 3}}'": "prat",
    "--part.length=big": "part.length big int",
    "--part.pair=0.9,0.95": "part.pair 0.9,0.95",
    "--part.rate=fast": "part.rate fast float",
    "--part.kind=c": "part.kind c 'a' 'b' int",
    "--part.length": "--part.length one",
    "--config=none.yaml": "config none.yaml",
    "--name a.txt b.txt": "b.txt",
}


@pytest.mark.parametrize("typed", PARSED)
def test_what_jsonargparse_says_is_the_sentence_and_names_option_and_value(typed):
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--name", type=str)
    parser.add_class_arguments(Part, "part")
    with pytest.raises(ValueError) as caught:
        parse(parser, shlex.split(typed))
    said = sentence(caught.value)
    assert "\n" not in said and tells(said, PARSED[typed]), said


@exit_status("tool.py")
def tool(error: BaseException | None):
    """A program that raises an error, where there is one; gives its exit status."""
    if error:
        raise error


@pytest.mark.parametrize("kind", [model.checks.Mistake, model.checks.Missing])
def test_a_mistake_is_one_sentence_and_status_2(capsys, kind):
    assert tool(kind("two\n  lines")) == 2
    assert capsys.readouterr() == ("", "tool.py: two lines\n")


@pytest.mark.parametrize("kind", [KeyError, ValueError, TypeError, OSError, RuntimeError, BrokenPipeError])
def test_any_other_error_is_one_in_code_and_passes(kind):
    with pytest.raises(kind):
        tool(kind("a bug"))


def test_ctrl_c_is_status_130(capsys):
    for error, status, output in ((None, 0, ""), (KeyboardInterrupt(), 130, "\n")):
        assert tool(error) == status
        assert capsys.readouterr() == (output, "")


def test_a_character_that_the_terminal_lacks_stops_nothing(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert exit_status("tool.py")(lambda: print("runs/é"))() == 0
    assert written.getvalue() == b"runs/?\n"


def test_a_sentence_that_quotes_a_file_is_cut():
    assert sentence(ValueError("x" * 1000)) == "x" * 1000
    assert sentence(ValueError("x" * 600 + "y" * 600)) == "x" * 500 + " ... " + "y" * 500
    assert sentence(ValueError("a\x1b[31m title\x07\x9b b\n\tä")) == r"a\x1b[31m title\x07\x9b b ä"


@pytest.mark.parametrize(
    ("body", "status"), [("print('x')", 0), ("print('x' * 10**6)", 0), ("raise Mistake('a pipe')", 2)]
)
def test_a_closed_standard_output_is_no_error(body, status):
    """Such as in `python scripts/generate.py | head -1`."""
    source = "import sys\nfrom model.runs.mistakes import Mistake, exit_status\n"
    source += f"@exit_status('x')\ndef main():\n    {body}\n"
    source += "status = main()\nsys.stderr.write(f'status {status}')"
    program = programs.start("-c", source, stderr=subprocess.PIPE)
    program.stdout.close() if status == 0 else program.stdout.read()
    error = program.stderr.read()
    assert error.endswith(f"status {status}") and "Traceback" not in error
    assert program.wait() == 0


def test_help_does_not_import_what_is_slow():
    source = """
import sys
from scripts import benchmark, convert_huggingface, generate, inspect_attention, walk
for script in (benchmark, convert_huggingface, generate, inspect_attention, walk):
    try:
        script.main(["--help"])
    except SystemExit:
        assert not {"torch", "lightning", "jsonargparse", "datasets", "matplotlib"} & set(sys.modules)
"""
    programs.run("-c", source)


def cut_off() -> EOFError:
    """What a connection raises whose other process has ended."""
    ours, other = multiprocessing.Pipe()
    other.close()
    with pytest.raises(EOFError) as caught:
        ours.recv()
    return caught.value


FULL = [OSError(code, "full") for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)]
MACHINE = {
    "memory data.batch_size": [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: tried 9 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory: tried 9 bytes"),
    ],
    "data.num_workers": [RuntimeError("DataLoader worker (pid(s) 1, 2) exited unexpectedly"), cut_off()],
    "full room": FULL,
}


@pytest.mark.parametrize("said", MACHINE)
def test_what_the_machine_lacks_is_said_and_how_to_resume_where_there_is_a_checkpoint(tmp_path, said):
    run = tmp_path / "my run"
    (run / "checkpoints").mkdir(parents=True)
    for checkpoint in (None, "last.ckpt", "best.ckpt"):
        for path in (run / "checkpoints").iterdir():
            path.unlink()
        if checkpoint:
            (run / "checkpoints" / checkpoint).touch()
        for error in MACHINE[said]:
            with pytest.raises(model.checks.Mistake) as caught, explain_machine(run):
                raise error
            assert tells(str(caught.value), said)
            assert (f"python train.py --resume '{run}'" in str(caught.value)) == bool(checkpoint)


def test_a_full_disk_under_a_mistake_is_said_too(tmp_path):
    """test_saving.py fills one."""
    with pytest.raises(model.checks.Mistake) as caught, explain_machine(tmp_path):
        raise model.checks.Mistake("a.txt: full") from FULL[0]
    assert tells(str(caught.value), "a.txt full room")


OTHERS = [RuntimeError("another"), ValueError("DataLoader worker (pid 1)"), OSError("without a number")]
OTHERS += [RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback")]  # an error in code
OTHERS += [OSError(errno.EACCES, "denied"), model.checks.Mistake("full: make room")]


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_pass_as_they_are(tmp_path, error):
    before = str(error)
    with pytest.raises(type(error)) as caught, explain_machine(tmp_path):
        raise error
    assert caught.value is error and str(error) == before
