"""Shows a model's attention maps as a page for the browser, a picture or a table.

  --run runs/NAME                            the page of a run: how it learned, its maps, the model to type to
  --checkpoint runs/NAME --prompt "def f("   the page of a model, opened with your own text
  --output maps.svg                          a picture instead of a page: layers down, heads across
  --output maps.csv                          the weights instead
  --experiments                              what can be tried with the model, what it predicts, and what came of it

With neither --run nor --checkpoint it is the newest run under runs/.
"""

from __future__ import annotations

import argparse
import functools
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.mistakes import Mistake, listed
from model.runs.exit_status import exit_status
from model.runs.run import ATTENTION, HEAD_SCORES, REPORT, Run
from scripts.parser import Parser, prompt_text

if TYPE_CHECKING:
    from model.inspection.recording import Recording

    Shown = tuple[Recording, Callable[[], str], Path]  # with what makes its page, and the page's usual place

PAGE, PICTURES, TABLE = ".html", (".png", ".svg", ".pdf"), ".csv"
ENDINGS = (PAGE, *PICTURES, TABLE)
TITLE_CHARS = 60  # of a prompt in its page's title


@exit_status("inspect_attention.py")
def main(argv: list[str] | None = None) -> None:
    arguments = build_parser().parse_args(argv)
    check(arguments)

    if arguments.experiments:
        print(experiments_table(arguments.run or arguments.checkpoint))
        return
    shown, page, usual = of_run(arguments.run) if arguments.prompt is None else of_prompt(arguments)
    output = arguments.output or usual
    write(shown, output, arguments, page)
    for sentence in shown.problems.values():
        print(f"warning: {shown.name}: {sentence[0].lower()}{sentence[1:]}", file=sys.stderr)
    said = "; open it in a browser" if ending(output) == PAGE else ""
    if arguments.open:
        opened = webbrowser.open(output.resolve().as_uri())
        said = " and opened it in the browser" if opened else "; there is no browser here to open it in"
    print(f"wrote {output}{said}")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="inspect_attention.py", description=__doc__)
    add, model = parser.add_argument, parser.add_mutually_exclusive_group()
    words = "run folder whose recorded maps are shown (default: the newest)"
    model.add_argument("--run", type=Path, metavar="PATH", help=words)
    words = "checkpoint file or run folder that reads --prompt"
    model.add_argument("--checkpoint", type=Path, metavar="PATH", help=words)
    words = "text to read, of a long one the end that fits the context; - reads it from standard input"
    add("--prompt", metavar="TEXT", help=words)
    words = f"file: {', '.join(ENDINGS)} (default: report.html in the run's folder, or attention.html for a prompt)"
    add("--output", type=Path, metavar="PATH", help=words)
    words = "training steps: with --prompt such as 0,500,1500, of which the run has a checkpoint (default: the "
    words += "best one's); for a picture or a table of recorded maps one step (default: the last)"
    add("--steps", type=step_list, metavar="N,N,...", help=words)
    words = "for a picture or a table: only these heads, counted from 0, such as 0.1 1.0 (default: all)"
    add("--head", nargs="+", metavar="LAYER.HEAD", help=words)
    add("--open", action="store_true", help="open the written file in the browser")
    words = "print the experiments that hold for the model: text, change, prediction, and what was measured"
    add("--experiments", action="store_true", help=words)
    return parser


def step_list(text: str) -> list[int]:
    """For `type=` of an option: different steps in ascending order."""
    if not all(step.strip().isdecimal() for step in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be steps such as 0,500,1500, not {text!r}")
    return sorted(set(map(int, text.split(","))))


def ending(output: Path) -> str:
    """Which kind of file it is: of .SVG too, as some systems write it."""
    return output.suffix.lower()


def check(arguments: argparse.Namespace) -> None:
    """Finds mistakes before anything is loaded."""
    output, has_prompt = arguments.output, arguments.prompt is not None
    is_page = output is None or ending(output) == PAGE
    if output is not None and ending(output) not in ENDINGS:
        raise Mistake(f"--output {output} must end in {' or '.join(ENDINGS)}")
    if arguments.experiments:
        typed = [name for name in ("output", "prompt", "steps", "head") if getattr(arguments, name) is not None]
        typed += ["open"] * arguments.open
        if typed:
            unused = listed([f"--{name}" for name in typed])
            raise Mistake(f"--experiments prints a table of the whole model: leave out {unused}")
    elif arguments.run and has_prompt:
        raise Mistake("--run shows recorded maps and takes no prompt: write --checkpoint in its place, with --prompt")
    elif arguments.checkpoint and not has_prompt:
        raise Mistake(
            f'--checkpoint needs a text to read, such as --prompt "def main("; '
            f"for the maps recorded in training write --run {arguments.checkpoint}"
        )
    if is_page and arguments.head:
        raise Mistake(f"--head is for an --output that ends in {', '.join(ENDINGS[1:])}: the page has all heads")
    if arguments.steps and is_page and not has_prompt:
        raise Mistake("--steps is for --prompt, a picture or a table: the page has all recorded steps")
    if len(arguments.steps or ()) > 1 and not is_page:
        raise Mistake("--steps: a picture or a table shows one step: write one number")


def experiments_table(path: Path | None) -> str:
    """What can be tried with a model: a few lines for each experiment that holds, and why the others do not."""
    from model.glass import open_run
    from model.inspection.experiments import LISTED
    from model.pages.describe import visible

    effects, tried = open_run(path).experiments()
    lines = []
    for effect in effects:
        (halved, right, count), (before, after) = effect.texts, effect.usual
        source = f"; head {effect.head} looks at what tells it, {effect.weight:.0%}" if effect.weight else ""
        lines += [
            effect.title,
            f"  text        {visible(effect.trial.text, 100)}",
            f"  change      {effect.change}",
            f"  prediction  after the change {visible(effect.trial.answer)} is at most half as likely to come next",
            f"  measured    {halved} of {right} texts (of {count}); medians {before:.0%} -> {after:.0%}{source}",
        ]
    if effects:
        lines.append(f"(A token that is not among the {LISTED} likeliest, as many as the page lists, counts as 0%.)")
    return "\n".join([*lines, *(f"{title}: not found, {reason}" for title, reason in tried.items())])


def of_run(path: Path | None) -> Shown:
    """What was recorded in the run that a person means. Its page has the model of its checkpoint, if there is one."""
    from model.inspection.recording import Recording
    from model.runs.results import report_html

    run = Run.open(path, HEAD_SCORES).folder
    recording = Recording.open(run / ATTENTION, run.resolve().name)
    return recording, functools.partial(report_html, run, recording=recording), run / REPORT


def of_prompt(arguments: argparse.Namespace) -> Shown:
    """What a model attends to in the prompt, and in random tokens that are repeated, at each of the steps."""
    from model.glass import open_run, recording_of
    from model.pages.page import run_page

    path, prompt = arguments.checkpoint, prompt_text(arguments.prompt)
    checkpoints = [Run.open(path).at(step) for step in arguments.steps] if arguments.steps else [path]
    opened = [open_run(checkpoint) for checkpoint in checkpoints]
    tokenizer, tokens = opened[0].tokenizer, opened[0].encode(prompt)
    if len(tokens) < 2:
        raise Mistake("a prompt must be at least 2 tokens long, so that there is a next one; this one is 1")
    recording = recording_of([(glass, glass.read(tokens)) for glass in opened])
    models = [(glass.step or 0, glass.gpt) for glass in opened]
    title = prompt_title(tokenizer.decode(tokens.tolist()), recording)
    page = functools.partial(run_page, title, recording, models=models, tokenizer=tokenizer)
    return recording, page, Path("attention.html")


def prompt_title(text: str, shown: Recording) -> str:
    """The page's: the beginning of what was read, and what read it at which steps."""
    from model.pages.describe import shortened

    first, last = shown.steps[0], shown.steps[-1]
    steps = f"step {first}" if first == last else f"step {first} to {last}"
    return f"“{shortened(' '.join(text.split()), TITLE_CHARS)}” read by {shown.name} at {steps}"


def write(shown: Recording, output: Path, arguments: argparse.Namespace, page: Callable[[], str]) -> None:
    """Writes the kind of file that its ending says."""
    from model.files import write_atomically
    from model.pages import export

    if ending(output) == PAGE:
        write_atomically(output, page().encode())
        return
    step = arguments.steps[0] if arguments.steps else None
    heads = export.choose_heads(shown, arguments.head)
    if ending(output) == TABLE:
        export.write_csv(shown, output, step, heads)
    else:
        from model.pages import images  # imports matplotlib

        images.draw_maps(shown, output, step, heads)


if __name__ == "__main__":
    sys.exit(main())
