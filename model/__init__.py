"""The network, and what is built around it. For a notebook: `open_run`, and `check_attention` of your own."""


def __getattr__(name: str):
    """`from model import open_run` imports all rooms; `import model.gpt` needs torch alone."""
    if name == "open_run":
        from model.glass import open_run

        return open_run
    if name == "check_attention":
        from model.inspection.check_attention import check_attention

        return check_attention
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
