"""The network, and what is built around it. For a notebook: `open_run`, and `check_attention` of your own."""

import os

# How long PyTorch's threads wait for each other before they give up their core. On Linux these are libgomp's, which
# reads this when torch is loaded, so the programs import something of model/ first. Its own 300,000 rounds are some ten
# milliseconds: beside another program a thread waits so long for one that has no core at all, and a step takes ten
# times as long. With fewer rounds than here (1,000) a step on a quiet machine takes a third longer, see
# scripts/benchmarks/LOG.md. The runtimes of macOS and Windows do not read it. What a person has set stays.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def __getattr__(name: str):
    """`from model import open_run` imports all rooms; `import model.gpt` needs torch alone."""
    if name == "open_run":
        from model.glass import open_run

        return open_run
    if name == "check_attention":
        from model.inspection.check_attention import check_attention

        return check_attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
