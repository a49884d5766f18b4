"""Exit statuses and sentences of every command line, without training."""

import errno
import io
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Literal

import jsonargparse
import pytest
import torch

from model.runs.mistakes import exit_status, explain_machine, parse, sentence, suggestion
from tests.small_runs import REPOSITORY


class Part:
    def __init__(
        self,
        length: int = 1,
        rate: float | None = None,
        kind: Literal["a", "b"] | int = "a",
        pair: tuple[float, float] = (1, 2),
    ):
        pass


# If one of these fails after an update of jsonargparse, its errors are worded differently: see the patterns in
# model/runs/mistakes.py.
PARSED = {
    "--part.lenght=3": "there is no option --part.lenght; did you mean --part.length?",
    "--lenght 3": "there is no option --lenght; did you mean --part.length?",
    "--config '{part: {lenght: 3}}'": "the config has an unknown key part.lenght; did you mean part.length?",
    "--config '{prat: {length: 3}}'": "the config has an unknown key prat.length; did you mean part.length?",
    "--part.length=big": "part.length cannot be 'big': expected int",
    "--part.pair=0.9,0.95": "part.pair cannot be '0.9,0.95': write it in brackets, [0.9, 0.95]",
    "--part.rate=fast": "part.rate cannot be 'fast': expected float or null",
    "--part.rate=true": "part.rate cannot be 'true': expected float or null",
    "--part.kind=c": "part.kind cannot be 'c': expected 'a', 'b' or int",
    "--part.length": "argument --part.length: expected one argument",
    "--config=none.yaml": f"config: File does not exist: '{Path.cwd() / 'none.yaml'}'; name one of configs/, or the "
    "config.yaml of a run",
    "--name a.txt b.txt": "b.txt follows no option: quote several values, as in --data.files 'my/*.txt' or "
    "'[a.txt, b.txt]'",
}


@pytest.mark.parametrize("typed", PARSED)
def test_jsonargparses_errors_become_sentences(typed):
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--name", type=str)
    parser.add_class_arguments(Part, "part")
    with pytest.raises(ValueError) as caught:
        parse(parser, shlex.split(typed))
    assert str(caught.value) == PARSED[typed]


MEANT = {
    "max_steps": "trainer.max_steps",
    "model.max_steps": "trainer.max_steps",
    "model.optimizer.lr": "model.optimizer.learning_rate",
    "learn_rate": "model.optimizer.learning_rate",
    "model.optimizer.lerning_rate": "model.optimizer.learning_rate",
    "resum": "resume",
    "vocab_sise": "data.vocab_size or --model.gpt.vocab_size",
    "trainer.every_n_steps": "attention.every_n_steps, --checkpoints.every_n_steps or --samples.every_n_steps",
}


def test_the_option_that_is_meant_is_suggested():
    options = ["resume", "trainer.max_steps", "trainer.min_steps", "model.optimizer.learning_rate"]
    options += ["data.vocab_size", "model.gpt.vocab_size"]
    options += [f"{group}.every_n_steps" for group in ("attention", "checkpoints", "samples")]
    for name, meant in MEANT.items():
        assert suggestion(name, options, "--") == f"; did you mean --{meant}?"
    assert suggestion("colour", options) == ""


@pytest.fixture
def tool(monkeypatch):
    """A program that raises an error, where there is one; gives its exit status."""
    monkeypatch.delenv("GLASSGPT_DEBUG", raising=False)

    @exit_status("tool.py")
    def main(error: BaseException | None):
        if error:
            raise error

    return main


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("two\n  lines"), "two lines"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "x.txt"), "x.txt: No such file or directory"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(tool, monkeypatch, capsys, error, said):
    assert tool(error) == 2
    assert capsys.readouterr() == ("", f"tool.py: {said}\n")
    monkeypatch.setenv("GLASSGPT_DEBUG", "1")
    with pytest.raises(type(error)):
        tool(error)


def test_an_error_of_the_program_keeps_its_traceback_and_ctrl_c_is_status_130(tool, capsys):
    with pytest.raises(KeyError):
        tool(KeyError("a bug"))
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
    named = sentence(OSError(errno.ENAMETOOLONG, "File name too long", "x" * 2000))
    assert len(named) < 1010 and named.endswith("x: File name too long")
    assert sentence(ValueError("a\x1b[31m title\x07\x9b b\n\tä")) == r"a\x1b[31m title\x07\x9b b ä"


@pytest.mark.parametrize(
    ("body", "status"), [("print('x')", 0), ("print('x' * 10**6)", 0), ("raise BrokenPipeError('a pipe')", 2)]
)
def test_only_a_closed_standard_output_is_no_error(body, status):
    """Such as in `python scripts/generate.py | head -1`."""
    source = f"import sys\nfrom model.runs.mistakes import exit_status\n@exit_status('x')\ndef main():\n    {body}\n"
    source += "status = main()\nsys.stderr.write(f'status {status}')"
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", source], cwd=REPOSITORY, text=True, **pipe) as process:
        process.stdout.close() if status == 0 else process.stdout.read()
        error = process.stderr.read()
    assert error.endswith(f"status {status}") and "Traceback" not in error
    assert process.returncode == 0


def test_help_does_not_import_what_is_slow():
    source = """
import sys
from scripts import benchmark, convert_huggingface, generate, inspect_attention, report, walk
for script in (benchmark, convert_huggingface, generate, inspect_attention, report, walk):
    try:
        script.main(["--help"])
    except SystemExit:
        assert not {"torch", "lightning", "jsonargparse", "datasets", "matplotlib"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", source], cwd=REPOSITORY, check=True, capture_output=True)


LOADER = "DataLoader worker (pid(s) 1, 2) exited unexpectedly. See the log.\nmore"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (MemoryError(), MemoryError, "out of memory: lower data.batch_size"),
        (torch.OutOfMemoryError("CUDA out of memory."), MemoryError, "out of memory: lower data.batch_size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: tried 9 bytes"), MemoryError, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: tried 9 bytes"), MemoryError, "out of memory"),
        (RuntimeError(LOADER), ChildProcessError, "(DataLoader worker (pid(s) 1, 2) exited unexpectedly), often"),
        *((OSError(code, "full"), OSError, "full: make room") for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
    ],
    ids=repr,
)
def test_a_sentence_ends_with_how_to_resume_where_there_is_a_checkpoint(tmp_path, error, kind, said):
    run = tmp_path / "my run"
    (run / "checkpoints").mkdir(parents=True)
    for checkpoint in (None, "last.ckpt", "previous.ckpt", "best.ckpt"):
        for path in (run / "checkpoints").iterdir():
            path.unlink()
        if checkpoint:
            (run / "checkpoints" / checkpoint).touch()
        given = OSError(*error.args) if isinstance(error, OSError) else error
        with pytest.raises(kind) as caught, explain_machine(run):
            raise given
        sentence = str(caught.value)
        assert said in sentence
        assert (f", then continue with --resume '{run}'" in sentence) == bool(checkpoint)


OTHERS = [RuntimeError("another"), ValueError("DataLoader worker"), OSError("without a number")]
OTHERS += [OSError(errno.EACCES, "denied"), OSError(errno.ENOSPC, "full: make room")]


@pytest.mark.parametrize("error", OTHERS, ids=repr)
def test_other_errors_pass_as_they_are(tmp_path, error):
    before = str(error)
    with pytest.raises(type(error)) as caught, explain_machine(tmp_path):
        raise error
    assert caught.value is error and str(error) == before
