"""What the machine does to a run becomes one sentence; every other error stays as it is."""

import errno

import pytest
import torch

from model.runs.mistakes import explain_machine

LOADER = "DataLoader worker (pid(s) 1, 2) exited unexpectedly. See the log.\nmore"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (MemoryError(), MemoryError, "out of memory: lower data.batch_size"),
        (torch.OutOfMemoryError("CUDA out of memory."), MemoryError, "out of memory: lower data.batch_size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: tried 9 bytes"), MemoryError, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: tried 9 bytes"), MemoryError, "out of memory"),
        (RuntimeError(LOADER), ChildProcessError, "(DataLoader worker (pid(s) 1, 2) exited unexpectedly), often"),
        *(
            (OSError(number, "full"), OSError, "full: make room")
            for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        ),
    ],
    ids=repr,
)
def test_a_sentence_ends_with_how_to_resume_where_there_is_a_checkpoint(tmp_path, error, kind, said):
    run = tmp_path / "my run"
    for has_checkpoint in (False, True):
        if has_checkpoint:
            (run / "checkpoints").mkdir(parents=True)
            (run / "checkpoints" / "last.ckpt").touch()
        given = OSError(*error.args) if isinstance(error, OSError) else error
        with pytest.raises(kind) as caught, explain_machine(run):
            raise given
        sentence = str(caught.value)
        assert said in sentence
        assert (f", then continue with --resume '{run}'" in sentence) == has_checkpoint


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("another"),
        ValueError("DataLoader worker"),
        OSError(errno.EACCES, "denied"),
        OSError(errno.ENOSPC, "full: make room"),
        OSError("without a number"),
    ],
    ids=repr,
)
def test_other_errors_pass_as_they_are(tmp_path, error):
    before = str(error)
    with pytest.raises(type(error)) as caught, explain_machine(tmp_path):
        raise error
    assert caught.value is error and str(error) == before
