"""What a file that came from a stranger may try, and a limit for the memory that reading it takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Calls:
    """In a pickle, a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def doubled(times: int) -> list:
    """2^times values in a pickle of a few bytes."""
    value = [0]
    for _ in range(times):
        value = [value, value]
    return value


@contextmanager
def limited_memory(more: int = 2**30) -> Iterator[None]:
    """Within, this process can take `more` bytes than it has, and no more: allocations fail then. Linux only."""
    import resource  # Windows has none

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
