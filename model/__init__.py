"""The network and all that uses it.

For notebooks: `open_run` opens a run, `compare` compares runs, and `check_attention` checks your attention.
"""


def __getattr__(name: str):
    """Imports these functions on first use: they need all packages, `import model.gpt` only torch."""
    if name == "open_run":
        from model.glass import open_run

        return open_run
    if name == "compare":
        from model.runs.comparison import compare

        return compare
    if name == "check_attention":
        from model.inspection.check_attention import check_attention

        return check_attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
