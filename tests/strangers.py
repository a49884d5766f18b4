"""What a person can do with a run, or a checkpoint, that came from a stranger."""

import hashlib
import importlib
from pathlib import Path

RUN = "runs/run"
ONE_STEP = ("--name=new", "--trainer.max_steps=13")


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


# Every program that opens what a stranger wrote, and what a person types. A new one is one line.
ENTRIES = {
    "resume": ("train", f"--resume={RUN}", "--trainer.max_steps=13"),
    "start": ("train", f"--config={RUN}/config.yaml", f"--ckpt_path={RUN}/checkpoints/best.ckpt", *ONE_STEP),
    "validate": ("train", "validate", f"--ckpt_path={RUN}"),
    "generate": ("scripts.generate", "--checkpoint", RUN, "--max_new_tokens", "5"),
    "walk": ("scripts.walk", "--checkpoint", RUN, "--prompt", "the text"),
    "read a prompt": ("scripts.inspect_attention", "--checkpoint", RUN, "--prompt", "the text"),
    "inspect": ("scripts.inspect_attention", "--run", RUN),
    "compare": ("scripts.inspect_attention", "--run", RUN, "--compare", RUN),
    "table": ("scripts.inspect_attention", "--run", RUN, "--measure", "lens", "--output", "table.csv"),
    "report": ("scripts.report", "--run", RUN),
    "live": ("scripts.inspect_attention", "--live", "--run", RUN),
    "evaluate": ("scripts.evaluate", "--checkpoint", RUN),
    "export": ("scripts.convert_huggingface", "export", RUN, "exported"),
}


def call(entry: tuple[str, ...]) -> int:
    """The exit status of a program, run in this process."""
    module, *arguments = entry
    try:
        return importlib.import_module(module).main(arguments)
    except SystemExit as end:
        return end.code


def files_below(folder: Path) -> dict[str, str]:
    """A digest of every file's content."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
