"""Shows a model's attention maps as a page for the browser, a picture or a table.

  --run runs/NAME                            the page of a run: how it learned, its maps, the model to type to
  --run runs/NAME --prompt "def f("          the page of its best checkpoint, opened with your own text
  --output maps.svg                          a picture instead of a page: layers down, heads across
  --output maps.csv                          the weights instead
  --experiments                              what can be tried with the model, what it predicts, and what came of it

Without --run it is the newest run under runs/.
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

from model.mistakes import Mistake, exit_status
from model.runs.run import ATTENTION, HEAD_SCORES, REPORT, Run
from scripts.parser import Parser, prompt_text

if TYPE_CHECKING:
    from model.inspection.recording import Recording

    Shown = tuple[Recording, Callable[[], str], Path]  # with what makes its page, and the page's usual place

PAGE, TABLE = ".html", ".csv"
PICTURES_AND_TABLE = (".png", ".svg", ".pdf", TABLE)
TITLE_CHARS = 60  # of a prompt in its page's title


@exit_status("inspect_attention.py")
def main(argv: list[str] | None = None) -> None:
    options = build_parser().parse_args(argv)
    check(options)
    if options.experiments:
        print(experiments_table(options.run))
        return
    shown, page, usual = of_run(options.run) if options.prompt is None else of_prompt(options)
    output = options.output or usual
    write(shown, output, options, page)
    for sentence in shown.problems.values():
        print(f"warning: {shown.name}: {sentence[0].lower()}{sentence[1:]}", file=sys.stderr)
    said = f"wrote {output}"
    if options.open and not webbrowser.open(output.resolve().as_uri()):
        said += "; there is no browser here to open it in"
    print(said)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="inspect_attention.py", description=__doc__)
    add = parser.add_argument
    words = (
        "run whose recorded maps are shown, or that reads --prompt: its folder or a checkpoint (default: the newest)"
    )
    add("--run", "--checkpoint", type=Path, metavar="PATH", help=words)
    words = "text to read, of a long one the end that fits the context; - reads it from standard input"
    add("--prompt", metavar="TEXT", help=words)
    words = f"file: {', '.join([PAGE, *PICTURES_AND_TABLE])} (default: report.html in the run's folder, or "
    words += "attention.html for a prompt)"
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
    return sorted({int(step) for step in text.split(",")})


def ending(output: Path | None) -> str:
    """Which kind of file it is: of .SVG too, as some systems write it."""
    return PAGE if output is None else output.suffix.lower()


def check(options: argparse.Namespace) -> None:
    """Finds mistakes before anything is loaded."""
    is_page = ending(options.output) == PAGE
    others = (options.prompt, options.output, options.steps, options.head, options.open or None)
    if options.experiments and any(other is not None for other in others):
        raise Mistake("--experiments prints a table of the whole model: leave out all options but --run")
    if not is_page and ending(options.output) not in PICTURES_AND_TABLE:
        raise Mistake(f"--output {options.output} must end in {' or '.join([PAGE, *PICTURES_AND_TABLE])}")
    if is_page and (options.head or (options.steps and options.prompt is None)):
        raise Mistake(
            "the page has all heads, and of a run all recorded steps: --head and --steps are for an --output that ends "
            f"in {', '.join(PICTURES_AND_TABLE)}, --steps also for --prompt"
        )
    if not is_page and len(options.steps or ()) > 1:
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


def of_prompt(options: argparse.Namespace) -> Shown:
    """What a model attends to in the prompt, and in random tokens that are repeated, at each of the steps."""
    from model.glass import open_run, recording_of
    from model.pages.describe import shortened
    from model.pages.page import run_page

    glass = open_run(options.run)
    tokenizer, tokens = glass.tokenizer, glass.encode(prompt_text(options.prompt))
    if len(tokens) < 2:
        raise Mistake("a prompt must be at least 2 tokens long, so that there is a next one; this one is 1")
    opened = [glass.at(step) for step in options.steps] if options.steps else [glass]
    recording = recording_of([(glass, glass.read(tokens)) for glass in opened])
    models = [(glass.step or 0, glass.gpt) for glass in opened]
    text = shortened(" ".join(tokenizer.decode(tokens.tolist()).split()), TITLE_CHARS)
    steps = " to ".join(str(step) for step in dict.fromkeys([recording.steps[0], recording.steps[-1]]))
    title = f"“{text}” read by {recording.name} at step {steps}"
    page = functools.partial(run_page, title, recording, models=models, tokenizer=tokenizer)
    return recording, page, Path("attention.html")


def write(shown: Recording, output: Path, options: argparse.Namespace, page: Callable[[], str]) -> None:
    """Writes the kind of file that its ending says."""
    from model.files import write_atomically
    from model.pages import export

    if ending(output) == PAGE:
        write_atomically(output, page().encode())
        return
    step = options.steps[0] if options.steps else None
    heads = export.choose_heads(shown, options.head)
    if ending(output) == TABLE:
        export.write_csv(shown, output, step, heads)
    else:
        from model.pages import images  # imports matplotlib

        images.draw_maps(shown, output, step, heads)


if __name__ == "__main__":
    sys.exit(main())
