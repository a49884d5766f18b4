"""Which mistake an error becomes: what the system refuses is not blamed on a file."""

import errno
import os

import pytest

from model.mistakes import Mistake, file_errors, parsing


@pytest.mark.parametrize("number", ["EACCES", "EROFS", "ENOSPC", "EMFILE"])
@pytest.mark.parametrize("context", [file_errors, parsing])
def test_an_error_of_the_system_names_its_path_and_is_no_damage(number, context):
    code = getattr(errno, number)
    with pytest.raises(Mistake) as caught, context("texts.jsonl"):
        raise OSError(code, os.strerror(code), "/home/me/.cache")
    message = str(caught.value)
    assert "damaged" not in message and os.strerror(code) in message and "/home/me/.cache" in message


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_lack_of_memory_is_no_damage(error):
    """A user deletes a file that is called damaged."""
    with pytest.raises(Mistake, match="memory to open maps"), parsing("maps"):
        raise error


@pytest.mark.parametrize(
    "error", [OSError("not a gzip file"), OSError(errno.EINVAL, "Invalid argument"), KeyError("a")]
)
def test_any_other_error_of_parsing_is_damage(error):
    with pytest.raises(Mistake, match="maps is damaged"), parsing("maps"):
        raise error
