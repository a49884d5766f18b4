"""The network, and what is built around it. `open_run` is the way in for a notebook."""


def __getattr__(name: str):
    """`from model import open_run` imports all rooms; `import model.gpt` needs torch alone."""
    if name == "open_run":
        from model.glass import open_run

        return open_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
