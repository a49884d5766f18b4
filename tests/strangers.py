"""Parts of hostile files, and a memory limit for tests that read them."""

import resource
from contextlib import contextmanager
from pathlib import Path


class Calls:
    """Pickled, it becomes a call of a function, which unpickling runs."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def doubled(times):
    """2^times values that a pickle holds in a few bytes."""
    value = [0]
    for _ in range(times):
        value = [value, value]
    return value


@contextmanager
def limited_memory(more=2**30):
    """Limits this process to `more` bytes beyond what it holds now; larger allocations fail. Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
