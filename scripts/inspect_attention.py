"""Shows a model's attention maps as a page for the browser, a picture or a table.

  --run runs/NAME                            the page of a run: how it learned, its maps, the model to try texts on
  --run runs/NAME --prompt "def f("          a page of the run's best checkpoint, which opens with your own text
  --output maps.svg                          a picture instead of a page: layers from top to bottom, heads side by side
  --output maps.csv                          the attention weights as a table
  --film film.gif                            the film of a run: how its heads formed, as an animated picture
  --experiments                              no file: experiments on the model, printed with what was measured

Without --run, the newest run under runs/ is shown.
"""

from __future__ import annotations

import argparse
import functools
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import Mistake
from model.runs.run import ATTENTION, HEAD_SCORES, REPORT, Run
from model.runs.terminal import exit_status, say
from scripts.parser import Parser, prompt_text

if TYPE_CHECKING:
    from model.inspection.recording import Recording

    Shown = tuple[Recording, Callable[[], str], Path]  # the maps, a function that returns their page, the file for it

PAGE, TABLE, FILM = ".html", ".csv", ".gif"
PICTURES_AND_TABLE = (".png", ".svg", ".pdf", TABLE)
TITLE_CHARS = 60  # of the prompt, in the title of the page


@exit_status("inspect_attention.py")
def main(argv: list[str] | None = None) -> None:
    options = build_parser().parse_args(argv)
    kind = PAGE if options.output is None else options.output.suffix.lower()  # some systems write .SVG
    check(options, kind)
    if options.experiments:
        say(experiments_table(options.run))
        return
    recording, page, default_output = of_run(options.run) if options.prompt is None else of_prompt(options)
    output = options.film or options.output or default_output
    write(recording, output, options, page)
    for problem in recording.problems.values():
        say(f"warning: {recording.name}: {problem[0].lower()}{problem[1:]}", sys.stderr)
    message = f"wrote {output}"
    if options.open and not webbrowser.open(output.resolve().as_uri()):
        message += "; there is no browser here to open it in"
    say(message)


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="inspect_attention.py", description=__doc__)
    add = parser.add_argument
    add(
        "--run",
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="run folder or checkpoint: shows the maps that the run recorded, or how the model reads --prompt "
        "(default: newest run under runs/)",
    )
    add(
        "--prompt",
        metavar="TEXT",
        help="text that the model reads; only its end, if it is longer than the context; - reads standard input",
    )
    add(
        "--output",
        type=Path,
        metavar="PATH",
        help=f"file to write; its ending says what: {', '.join([PAGE, *PICTURES_AND_TABLE])} (default: report.html in "
        "the run's folder; with --prompt, attention.html in the current folder)",
    )
    add(
        "--steps",
        type=step_list,
        metavar="N,N,...",
        help="training steps to show. With --prompt: steps of which the run has a checkpoint, such as 0,500,1500 "
        "(default: the best checkpoint). For a picture or a table of recorded maps: one step (default: the last)",
    )
    add(
        "--head",
        nargs="+",
        metavar="LAYER.HEAD",
        help="heads in a picture or a table, counted from 0, such as 0.1 1.0 (default: all)",
    )
    add(
        "--film",
        type=Path,
        metavar="PATH",
        help="writes the film of a run as an animated picture, .gif: how the model learned to continue a made-up word "
        "that begins again, and which heads do it",
    )
    add("--open", action="store_true", help="open the file in the browser after writing it")
    add(
        "--experiments",
        action="store_true",
        help="instead of writing a file, try experiments on the model: change a text, or switch a head off, and print "
        "the prediction and what was measured, or why an experiment does not work",
    )
    return parser


def step_list(text: str) -> list[int]:
    """Parses --steps. Returns the distinct steps in ascending order."""
    return sorted({int(step) for step in text.split(",")})


def check(options: argparse.Namespace, kind: str) -> None:
    """Raises Mistake for options that exclude each other, before anything is loaded. kind: the ending of the output."""
    is_page = kind == PAGE
    given = {name for name, value in vars(options).items() if value not in (None, False)}
    for alone in ("experiments", "film"):
        if alone in given and given - {alone, "run"}:
            raise Mistake(f"--{alone} is about a whole run: leave out all other options but --run")
    if options.film and options.film.suffix.lower() != FILM:
        raise Mistake(f"--film {options.film} must end in {FILM}")
    if not is_page and kind not in PICTURES_AND_TABLE:
        raise Mistake(f"--output {options.output} must end in {' or '.join([PAGE, *PICTURES_AND_TABLE])}")
    if is_page and (options.head or (options.steps and options.prompt is None)):
        raise Mistake(
            "a page shows all heads, and the page of a run all recorded steps: use --head and --steps with an "
            f"--output that ends in {', '.join(PICTURES_AND_TABLE)}, or --steps with --prompt"
        )
    if not is_page and len(options.steps or ()) > 1:
        raise Mistake("--steps: a picture or a table shows one step: write one number")


def experiments_table(path: Path | None) -> str:
    """Tries all experiments on a model. Returns lines about those that work, and why each of the others does not."""
    from model.glass import open_run
    from model.inspection.experiments import LISTED
    from model.pages.describe import visible

    effects, failures = open_run(path).experiments()
    lines = []
    for effect in effects:
        before, after = effect.means
        source = ""
        if effect.weight:
            source = f"; head {effect.head} gives {effect.weight:.0%} of its weight to the token that tells the answer"
        lines += [
            effect.title,
            f"  text        {visible(effect.trial.text, 100)}",
            f"  change      {effect.change}",
            f"  prediction  after the change {visible(effect.trial.answer)} is at most half as likely to come next",
            f"  measured    mean probability {before:.0%} -> {after:.0%} over all {effect.texts} texts tried{source}",
        ]
    if effects:
        lines.append(f"(A token counts as 0% if it is not among the {LISTED} likeliest, which the page lists.)")
    lines += [f"{title}: not found, {reason}" for title, reason in failures.items()]
    return "\n".join(lines)


def of_run(path: Path | None) -> Shown:
    """Opens what a run has recorded. The page also holds the model, if the run has a checkpoint."""
    from model.inspection.recording import Recording
    from model.runs.results import report_html

    run = Run.open(path, HEAD_SCORES).folder
    recording = Recording.open(run / ATTENTION, run.resolve().name)
    return recording, functools.partial(report_html, run, recording=recording), run / REPORT


def of_prompt(options: argparse.Namespace) -> Shown:
    """Lets the model at each of --steps read the prompt and a text of repeated random tokens."""
    from model.glass import open_run, recording_of
    from model.pages.describe import shortened
    from model.pages.page import run_page

    glass = open_run(options.run)
    tokenizer, tokens = glass.tokenizer, glass.encode(prompt_text(options.prompt), at_least=2)
    opened = [glass.at(step) for step in options.steps] if options.steps else [glass]
    recording = recording_of([(glass, glass.read(tokens)) for glass in opened])
    models = [(glass.step or 0, glass.gpt) for glass in opened]
    text = shortened(" ".join(tokenizer.decode(tokens.tolist()).split()), TITLE_CHARS)
    steps = " to ".join(str(step) for step in dict.fromkeys([recording.steps[0], recording.steps[-1]]))
    title = f"“{text}” read by {recording.name} at step {steps}"
    page = functools.partial(run_page, title, recording, models=models, tokenizer=tokenizer)
    return recording, page, Path("attention.html")


def write(
    recording: Recording,
    output: Path,
    options: argparse.Namespace,
    page: Callable[[], str],
) -> None:
    """Writes a page, a film, a picture or a table to `output`, as its ending says."""
    kind = output.suffix.lower()
    if kind == PAGE:
        from model.files import write_atomically

        write_atomically(output, page().encode())
        return
    if kind == FILM:
        from model.pages.animation import draw_film  # imports matplotlib, which is slow

        draw_film(recording, output)
        return
    from model.pages import export

    step = export.choose_step(recording, options.steps[0] if options.steps else None)
    rows = export.choose_heads(recording, options.head)
    if kind == TABLE:
        export.write_csv(recording, output, step, rows)
    else:
        from model.pages.images import draw_maps

        draw_maps(recording, output, step, rows)


if __name__ == "__main__":
    sys.exit(main())
