"""Which mistake an error becomes: what the system refuses is not blamed on a file, which a user would delete."""

import errno
import os

import pytest

from model.mistakes import Mistake, parsing

DAMAGE = "texts.jsonl is damaged"
ERRORS = [(OSError(errno.EINVAL, "Invalid argument"), DAMAGE), (OSError("no gzip file"), DAMAGE), (KeyError(1), DAMAGE)]
ERRORS += [(error("DefaultCPUAllocator: can't allocate memory"), "memory") for error in (MemoryError, RuntimeError)]
REFUSED = [OSError(code, os.strerror(code), ".cache") for code in (errno.EACCES, errno.EROFS, errno.ENOSPC)]


@pytest.mark.parametrize("error, said", [*ERRORS, *((error, rf"{error.strerror}.*\.cache") for error in REFUSED)])
def test_only_an_error_of_the_content_is_damage(error, said):
    with pytest.raises(Mistake, match=said) as caught, parsing("texts.jsonl"):
        raise error
    assert ("damaged" in str(caught.value)) == (said == DAMAGE)
