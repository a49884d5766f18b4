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

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.files import write_atomically
from model.mistakes import Mistake, check
from model.runs.run import ATTENTION, HEAD_SCORES, REPORT, Run
from model.runs.terminal import say
from scripts.parser import program

if TYPE_CHECKING:
    from model.inspection.recording import Recording

    Shown = tuple[Recording, Callable[[], str], Path]  # the maps, a function that returns their page, the file for it

PAGE, TABLE, FILM = ".html", ".csv", ".gif"
PICTURES_AND_TABLE = (".png", ".svg", ".pdf", TABLE)
TITLE_CHARS = 60  # of the prompt, in the title of the page


def inspect(
    *,
    run: Path | None = None,
    checkpoint: Path | None = None,
    prompt: str | None = None,
    output: Path | None = None,
    steps: str | None = None,
    head: list[str] | None = None,
    film: Path | None = None,
    experiments: bool = False,
) -> None:
    """Writes a page, a film, a picture or a table, as the ending of its name says, or prints experiments.

    Args:
        run: run folder or checkpoint: shows the maps that the run recorded, or how the model reads --prompt (default:
            newest run under runs/)
        checkpoint: the same as --run
        prompt: text that the model reads; only its end, if it is longer than the context
        output: file to write; its ending says what: .html, .png, .svg, .pdf, .csv (default: report.html in the run's
            folder; with --prompt, attention.html in the current folder)
        steps: training steps to show. With --prompt: steps of which the run has a checkpoint, such as 0,500,1500
            (default: the best checkpoint). For a picture or a table of recorded maps: one step (default: the last)
        head: heads in a picture or a table, as LAYER.HEAD counted from 0, such as 0.1 1.0 (default: all)
        film: writes the film of a run as an animated picture, .gif: how the model learned to continue a made-up word
            that begins again, and which heads do it
        experiments: instead of writing a file, try experiments on the model: change a text, or switch a head off, and
            print the prediction and what was measured, or why an experiment does not work
    """
    others = prompt is not None or output or steps or head
    if sum(map(bool, (film, experiments, others))) > 1:
        raise Mistake("--film and --experiments are about a whole run: leave out all other options but --run")
    if run and checkpoint:
        raise Mistake("--checkpoint is another name of --run: write one of them")
    path = run or checkpoint
    if experiments:
        say(experiments_table(path))
        return
    if film and film.suffix.lower() != FILM:
        raise Mistake(f"--film {film} must end in {FILM}")
    kind = PAGE if output is None else output.suffix.lower()  # some systems write .SVG
    if kind != PAGE and kind not in PICTURES_AND_TABLE:
        raise Mistake(f"--output {output} must end in {' or '.join([PAGE, *PICTURES_AND_TABLE])}")
    if kind == PAGE and (head or (steps and prompt is None)):
        raise Mistake(
            "a page shows all heads, and the page of a run all recorded steps: use --head and --steps with an "
            f"--output that ends in {', '.join(PICTURES_AND_TABLE)}, or --steps with --prompt"
        )
    numbers = step_list(steps)
    if kind != PAGE and len(numbers) > 1:
        raise Mistake("--steps: a picture or a table shows one step: write one number")

    recording, page, default_output = of_run(path) if prompt is None else of_prompt(path, prompt, numbers)
    output = film or output or default_output
    if film:
        from model.pages.animation import draw_film  # imports matplotlib, which is slow

        draw_film(recording, output)
    elif kind == PAGE:
        write_atomically(output, page().encode())
    else:
        write_maps(recording, output, numbers, head)
    for problem in recording.problems.values():
        say(f"warning: {recording.name}: {problem[0].lower()}{problem[1:]}", sys.stderr)
    say(f"wrote {output}")


def step_list(steps: str | None) -> list[int]:
    """Parses --steps. Returns the distinct steps in ascending order."""
    if steps is None:
        return []
    check(bool(re.fullmatch(r"\d+(,\d+)*", steps)), "--steps", "numbers such as 0,500", steps)
    return sorted({int(step) for step in steps.split(",")})


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


def of_prompt(path: Path | None, prompt: str, steps: list[int]) -> Shown:
    """Lets the model, at each of these steps, read the prompt and a text of repeated random tokens."""
    from model.glass import open_run, recording_of
    from model.pages.describe import shortened
    from model.pages.page import run_page

    glass = open_run(path)
    tokenizer, tokens = glass.tokenizer, glass.encode(prompt, at_least=2)
    opened = [glass.at(step) for step in steps] or [glass]
    recording = recording_of([(glass, glass.read(tokens)) for glass in opened])
    models = [(glass.step or 0, glass.gpt) for glass in opened]
    text = shortened(" ".join(tokenizer.decode(tokens.tolist()).split()), TITLE_CHARS)
    title = f"“{text}” read by {recording.name} at step {', '.join(map(str, recording.steps))}"
    page = functools.partial(run_page, title, recording, models=models, tokenizer=tokenizer)
    return recording, page, Path("attention.html")


def write_maps(recording: Recording, output: Path, steps: list[int], heads: list[str] | None) -> None:
    """Writes a picture or a table of the maps at one step, by default the last."""
    from model.pages import export

    step = export.choose_step(recording, *steps)
    rows = export.choose_heads(recording, heads)
    if output.suffix.lower() == TABLE:
        export.write_csv(recording, output, step, rows)
    else:
        from model.pages.images import draw_maps  # imports matplotlib, which is slow

        draw_maps(recording, output, step, rows)


main = program(inspect, __doc__)
if __name__ == "__main__":
    sys.exit(main())
