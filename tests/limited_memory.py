"""Fails what takes more memory than it should, at once and wherever it is taken."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
