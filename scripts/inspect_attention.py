"""Shows what a GPT attends to: the maps recorded while it was trained, or those of a prompt of yours."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.parser import Parser, sentence, writing
from scripts.prompting import open_checkpoint, prompt_text

if TYPE_CHECKING:
    from data.tokenizers import Tokenizer
    from model.inspection.archive import Probe
    from model.inspection.page import Captures

DESCRIPTION = """\
Writes one HTML page of attention maps that opens without a network, or a PNG, layers down and heads across.

  --run runs/NAME                            the maps recorded during training, step by step
  --checkpoint runs/NAME --prompt "def f("   the maps of one model on a text of yours
  --output maps.png                          a picture instead of a page, in both cases
  --compare runs/OTHER                       a second run or checkpoint beside the first

With neither --run nor --checkpoint it is the newest run under runs/."""

PERIOD = 32  # random tokens of the repeated probe, where the context has room for twice as many


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status: 0, 2 for a mistake, 130 when interrupted."""
    arguments = build_parser().parse_args(argv)
    try:
        output = inspect(arguments)
    except KeyboardInterrupt:
        print()
        return 130
    except (ValueError, OSError) as error:
        print(f"inspect_attention.py: {sentence(error)}", file=sys.stderr)
        return 2
    print(f"wrote {output}" + ("" if output.suffix == ".png" else "; open it in a browser"))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The options; each help text names the unit and the default."""
    parser = Parser(
        prog="inspect_attention.py",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--run", type=Path, metavar="PATH", help="run folder whose recorded maps are shown (default: the newest)")
    add("--checkpoint", type=Path, metavar="PATH", help="checkpoint file or run folder that reads --prompt")
    add("--prompt", metavar="TEXT", help="text to read, at most a context long; - reads it from standard input")
    add(
        "--compare",
        type=Path,
        metavar="PATH",
        help="another run, or with --prompt another checkpoint, beside the first",
    )
    add(
        "--output",
        type=Path,
        metavar="PATH",
        help=".html or .png file to write (default: attention.html, in the run's folder or for a prompt here)",
    )
    picture = parser.add_argument_group("for a PNG")
    picture.add_argument("--step", type=int, metavar="N", help="training step whose maps are drawn (default: the last)")
    picture.add_argument("--head", metavar="LAYER.HEAD", help="draw only this one, counted from 0 (default: all)")
    picture.add_argument(
        "--probe",
        choices=("text", "repeated"),
        help="draw the maps of the text, or of random tokens that come twice (default: text)",
    )
    picture.add_argument("--scores", action="store_true", help="draw every head's scores over the steps, not maps")
    return parser


def inspect(arguments: argparse.Namespace) -> Path:
    """Writes what was asked for and returns where it is.

    Raises:
        ValueError, OSError: with a sentence for the person.
    """
    check(arguments)
    if arguments.prompt is None:
        run = newest_run() if arguments.run is None else find_run(arguments.run)
        shown = [recorded(run), *([recorded(find_run(arguments.compare))] if arguments.compare else [])]
        output = arguments.output or run / "attention.html"
    else:
        prompt = prompt_text(arguments.prompt)
        shown = read_prompt([arguments.checkpoint, *([arguments.compare] if arguments.compare else [])], prompt)
        output = arguments.output or Path("attention.html")
    if output.suffix == ".png":
        draw(shown[0], output, arguments)
    else:
        from model.files import write_atomically
        from model.inspection.page import attention_page

        page = attention_page(shown, " and ".join(captures.name for captures in shown))
        with writing(output):
            write_atomically(output, page.encode())
    return output


def check(arguments: argparse.Namespace) -> None:
    """Finds mistakes before anything is loaded. Raises ValueError, or FileNotFoundError for the output's folder."""
    if arguments.run and (arguments.checkpoint or arguments.prompt is not None):
        raise ValueError(
            "--run shows recorded maps and takes no prompt: write --checkpoint in its place, with --prompt"
        )
    if arguments.checkpoint and arguments.prompt is None:
        raise ValueError(
            f'--checkpoint needs a text to read, such as --prompt "def main("; '
            f"for the maps recorded in training write --run {arguments.checkpoint}"
        )
    if arguments.prompt == "":
        raise ValueError("--prompt is empty: give it at least two tokens, so that there is something to attend to")
    output = arguments.output
    if output and output.suffix not in (".html", ".png"):
        raise ValueError(f"--output {output} must end in .html, for a page, or .png, for a picture")
    if output and not output.parent.is_dir():
        raise FileNotFoundError(f"--output {output}: there is no folder {output.parent}")
    if output and output.is_dir():
        raise ValueError(f"--output {output} is a folder: name a file in it")
    if output and output.suffix == ".png":
        if arguments.compare:
            raise ValueError("a PNG shows one model: to --compare, write a page, --output NAME.html")
        return
    for name in ("step", "head", "probe", "scores"):
        if getattr(arguments, name) not in (None, False):
            raise ValueError(f"--{name} chooses what a PNG shows (the page shows all): add --output NAME.png")


def find_run(path: Path) -> Path:
    """The run folder that a person means by itself or by anything in it. Raises FileNotFoundError."""
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}: give a run's folder, such as runs/NAME")
    for folder in (path, *path.absolute().parents[:3]):
        if (folder / "attention" / "scores.jsonl").exists():
            return folder
    raise FileNotFoundError(
        f"{path} has no recorded maps (attention/scores.jsonl): "
        f"look at its checkpoint with --checkpoint {path} --prompt TEXT, or train with the recording on"
    )


def newest_run(runs_dir: Path = Path("runs")) -> Path:
    """The run that recorded last. Raises FileNotFoundError if none did."""
    recordings = list(runs_dir.glob("*/attention/scores.jsonl"))
    if not recordings:
        raise FileNotFoundError(f"there are no recorded maps under {runs_dir}/ yet: train with python train.py")
    return max(recordings, key=lambda path: path.stat().st_mtime).parents[1]


def recorded(run: Path) -> Captures:
    from model.inspection.archive import AttentionArchive
    from model.inspection.page import Captures

    return Captures.of(AttentionArchive.open(run / "attention"), run.resolve().name)


def read_prompt(checkpoints: list[Path | None], prompt: str) -> list[Captures]:
    """What each model attends to in the prompt, and in random tokens that come twice."""
    from model.checkpoint import find_checkpoint
    from model.inspection.archive import Probe
    from model.inspection.page import Captures
    from model.inspection.recorder import take_snapshot

    paths = [find_checkpoint(path) for path in checkpoints]
    loaded = [open_checkpoint(path) for path in paths]
    context = min(gpt.config.context_length for gpt, _, _ in loaded)
    _, first_tokenizer, _ = loaded[0]
    repeated = repeated_probe(paths[0], first_tokenizer, context)
    result = []
    for path, (gpt, tokenizer, step) in zip(paths, loaded, strict=True):
        tokens = tokenizer.encode(prompt)
        if not 2 <= len(tokens) <= context:
            raise ValueError(
                f"a prompt must be 2 to {context} tokens long (the model's context), but this one is {len(tokens)}"
            )
        if tokenizer.fingerprint != first_tokenizer.fingerprint:
            raise ValueError(f"{paths[0]} and {path} cannot be compared: their tokenizers differ")
        probes = {"text": Probe(tokens, [tokenizer.label(token) for token in tokens]), "repeated": repeated}
        snapshot, maps = take_snapshot(gpt, probes, step)
        arrays = {name: weights.numpy() for name, weights in maps.items()}
        load = {snapshot.step: arrays}.__getitem__
        result.append(Captures(model_name(path), probes, [snapshot], load, [snapshot.step]))
    return result


def repeated_probe(checkpoint: Path, tokenizer: Tokenizer, context: int) -> Probe:
    """Random tokens that come twice: those of the checkpoint's run, which the model has met, or else any."""
    from model.inspection.archive import AttentionArchive
    from model.inspection.recorder import draw_repeated_probe

    try:
        archive = AttentionArchive.open(checkpoint.absolute().parents[1] / "attention")
        if archive.tokenizer == tokenizer.fingerprint and len(archive.probes["repeated"].tokens) <= context:
            return archive.probes["repeated"]
    except (OSError, ValueError, KeyError):
        pass  # no recorded run, or a damaged one: the prompt can be read without it
    period = min(PERIOD, (context - 1) // 2)
    return draw_repeated_probe(range(tokenizer.vocab_size), period, tokenizer.label, first=tokenizer.end_of_text)


def model_name(checkpoint: Path) -> str:
    return checkpoint.absolute().parents[1].name if checkpoint.parent.name == "checkpoints" else checkpoint.stem


def draw(captures: Captures, output: Path, arguments: argparse.Namespace) -> None:
    """The PNG: maps of one step as a grid, or all scores over the steps."""
    import numpy as np

    from model.inspection.heads import SCORES
    from model.inspection.images import attention_grid, score_curves
    from model.inspection.page import formation_steps

    steps = [snapshot.step for snapshot in captures.snapshots]
    if not (steps if arguments.scores else captures.steps):
        raise ValueError(f"{captures.name} has no recorded maps")
    if arguments.scores:
        if len(steps) < 2:
            raise ValueError(f"{captures.name} has been looked at once only: --scores needs a run with several steps")
        scores = {name: np.stack([snapshot.scores[name] for snapshot in captures.snapshots]) for name in SCORES}
        with writing(output):
            score_curves(steps, scores, output, captures.name, formation_steps(captures))
        return
    step = captures.steps[-1] if arguments.step is None else arguments.step
    if step not in steps:
        near = min(steps, key=lambda other: abs(other - step))
        raise ValueError(f"--step {step} was not recorded in {captures.name}: the nearest that was is {near}")
    probe = arguments.probe or "text"
    if step not in captures.steps:
        raise FileNotFoundError(f"the maps of step {step} in {captures.name} have been removed: choose another --step")
    maps = captures.load(step)
    layers, heads = chosen_head(arguments.head, *maps[probe].shape[:2])
    title = f"{captures.name}, step {step}: rows attend to columns"
    with writing(output):
        attention_grid(maps[probe], captures.probes[probe].labels, output, title, layers=layers, heads=heads)


def chosen_head(name: str | None, layers: int, heads: int) -> tuple[list[int] | None, list[int] | None]:
    """From LAYER.HEAD to which layers and heads to draw, None for all. Raises ValueError."""
    if name is None:
        return None, None
    match = re.fullmatch(r"(\d+)\.(\d+)", name)
    if not match or int(match[1]) >= layers or int(match[2]) >= heads:
        raise ValueError(f"--head must be LAYER.HEAD, from 0.0 to {layers - 1}.{heads - 1}, not {name}")
    return [int(match[1])], [int(match[2])]


if __name__ == "__main__":
    sys.exit(main())
