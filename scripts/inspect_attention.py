"""Writes what a GPT attends to: one HTML page that opens without a network, a picture, or a table of the numbers.

  --run runs/NAME                            the maps recorded during training, step by step
  --checkpoint runs/NAME --prompt "def f("   the maps of one model on your own text
  --compare runs/OTHER                       a second run or checkpoint beside the first
  --output maps.svg                          a picture instead of a page: layers down, heads across
  --output maps.csv                          the numbers instead
  --live                                     the model itself in a page: type, switch heads off, patch
  --circuit                                  the weights that copy: a table of them, and with --output a picture
  --experiments                              what can be tried with the model, what it predicts, and what came of it

With neither --run nor --checkpoint it is the newest run under runs/.
"""

from __future__ import annotations

import argparse
import functools
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.runs.folder import ATTENTION, HEAD_SCORES, MODEL_PAGE, find_kept, find_run
from model.runs.mistakes import exit_status
from scripts.parser import Parser, at_least, check_output, prompt_text

if TYPE_CHECKING:
    from model.glass import Glass
    from model.pages.history import History

PAGE, PICTURES, TABLES = (".html",), (".png", ".svg", ".pdf"), (".csv", ".json")
# The kinds of --output that an option is for. The page shows everything, and has its own controls.
KINDS = dict.fromkeys(("step", "head", "probe", "scores"), PICTURES + TABLES)
KINDS |= {"measure": TABLES, "theme": PICTURES, "dpi": (".png",)}
# The options that go with one that shows a model and no recorded maps.
SUBJECT_OPTIONS = {
    "experiments": ("experiments", "run", "checkpoint"),
    "circuit": ("circuit", "run", "checkpoint", "prompt", "output"),
    "live": ("live", "run", "checkpoint", "prompt", "steps", "output", "open"),
}
# What can be shown instead of maps, and the options that choose nothing from it.
SUBJECTS = {"scores": ("step", "probe")}
SUBJECTS |= dict.fromkeys(("surprise", "lens", "attribution", "value_norms"), ("head",))
SUBJECTS |= {"ablation": ("step", "head", "probe")}
MIN_DPI = 36
TITLE_CHARS = 60  # of a prompt in its page's title


@exit_status("inspect_attention.py")
def main(argv: list[str] | None = None) -> None:
    arguments = build_parser().parse_args(argv)
    check(arguments)

    from model.inspection.archive import AttentionArchive
    from model.inspection.verdicts import warnings
    from model.pages.history import History

    if arguments.experiments:
        print(experiments_table(arguments.run or arguments.checkpoint))
        return
    if arguments.circuit:
        write_circuit(arguments)
        return
    compared = [arguments.compare] if arguments.compare else []
    shown: list[History] = []
    if arguments.live:
        output = write_live(arguments)
    elif arguments.prompt is None:
        hint = ": look at its checkpoint with --checkpoint PATH --prompt TEXT, or train with the recording on"
        runs = [find_run(path, HEAD_SCORES, hint=hint) for path in (arguments.run, *compared)]
        shown = [History.of(AttentionArchive.open(run / ATTENTION), run.resolve().name) for run in runs]
        title = " and ".join(history.name for history in shown)
        output = arguments.output or runs[0] / "attention.html"
    else:
        prompt = prompt_text(arguments.prompt)
        shown = read_prompt([arguments.checkpoint, *compared], arguments.steps, prompt)
        title = prompt_title(prompt, shown)
        output = arguments.output or Path("attention.html")
    if shown:
        write(shown, title, output, arguments)
    for history in shown:
        for sentence in warnings(history.snapshots):
            print(f"warning: {history.name}: {sentence[0].lower()}{sentence[1:]}", file=sys.stderr)
    said = "; open it in a browser" if output.suffix in PAGE else ""
    if arguments.open:
        opened = webbrowser.open(output.resolve().as_uri())
        said = " and opened it in the browser" if opened else "; there is no browser here to open it in"
    print(f"wrote {output}{said}")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="inspect_attention.py", description=__doc__)
    add = functools.partial(parser.add_argument, metavar="PATH", type=Path)
    add("--run", help="run folder whose recorded maps are shown (default: the newest)")
    add("--checkpoint", help="checkpoint file or run folder that reads --prompt")
    words = "text to read, at most a context long; - reads it from standard input"
    add("--prompt", metavar="TEXT", type=str, help=words)
    add("--compare", help="another run, or with --prompt another checkpoint, beside the first")
    endings = ", ".join(PAGE + PICTURES + TABLES)
    add("--output", help=f"file: {endings} (default: attention.html, in the run's folder or for a prompt here)")
    parser.add_argument("--open", action="store_true", help="open the written file in the browser")
    lives = "write model.html: the model itself, which reads what one types in the page; it opens with --prompt"
    parser.add_argument("--live", action="store_true", help=lives)
    copies = "print which nodes and weights copy the tokens of --prompt (default: random ones), and what each does"
    parser.add_argument("--circuit", action="store_true", help=copies)
    tries = "print the experiments that hold for the model: text, change, prediction, and what was measured"
    parser.add_argument("--experiments", action="store_true", help=tries)
    kept = "training steps of which the run has a checkpoint, such as 0,500,1500 (default: the best one's)"
    parser.add_argument("--steps", type=step_list, metavar="N,N,...", help=f"with --prompt or --live: {kept}")
    chosen = parser.add_argument_group("for a picture or a table")
    add = chosen.add_argument
    add("--step", type=int, metavar="N", help="training step that is shown (default: the last of each run)")
    heads = "show only these heads, counted from 0, such as 0.1 1.0 (default: all)"
    add("--head", nargs="+", metavar="LAYER.HEAD", help=heads)
    add("--probe", choices=("text", "repeated"), help="show the text, or repeated random tokens (default: text)")
    subject = chosen.add_mutually_exclusive_group()
    curves = "show all scores of the heads over the steps, not maps"
    subject.add_argument("--scores", action="store_true", default=None, help=curves)
    measures = [name for name in SUBJECTS if name != "scores"]
    subject.add_argument("--measure", choices=measures, help="write this measurement as a table, not maps")
    add("--theme", choices=("light", "dark"), help="colours of a picture (default: light)")
    dots = "dots per inch of a PNG (default: 72 for maps, 100 for scores)"
    add("--dpi", type=at_least(MIN_DPI), metavar="N", help=dots)
    return parser


def step_list(text: str) -> list[int]:
    """For `type=` of an option: different steps in ascending order."""
    if not all(step.strip().isdecimal() for step in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be steps such as 0,500,1500, not {text!r}")
    return sorted(set(map(int, text.split(","))))


def check(arguments: argparse.Namespace) -> None:
    """Finds mistakes before anything is loaded. Raises ValueError, or FileNotFoundError for the output's folder."""
    if subject := next((subject for subject in SUBJECT_OPTIONS if getattr(arguments, subject)), ""):
        for option, value in vars(arguments).items():
            if value is not None and value is not False and option not in SUBJECT_OPTIONS[subject]:
                raise ValueError(f"--{subject} is about one model and takes no --{option}: leave out one of them")
        if arguments.run and arguments.checkpoint:
            raise ValueError(f"--run and --checkpoint both name the model of --{subject}: leave one out")
        check_output(arguments.output, *((".svg",) if subject == "circuit" else PAGE))
        return
    if arguments.steps and arguments.prompt is None:
        raise ValueError("--steps is for --prompt or --live: recorded maps are of all steps, of which --step takes one")
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
    check_output(arguments.output, *PAGE, *PICTURES, *TABLES)
    suffix = arguments.output.suffix if arguments.output else ".html"
    subject = "scores" if arguments.scores else arguments.measure
    for option, kinds in KINDS.items():
        if getattr(arguments, option) is None:
            continue
        if suffix not in kinds:
            raise ValueError(f"--{option} is for an --output NAME that ends in {' or '.join(kinds)}, not {suffix}")
        if option in SUBJECTS.get(subject, ()):
            raise ValueError(f"--{option} chooses nothing from {subject}: leave it out")


def write_live(arguments: argparse.Namespace) -> Path:
    """Writes the page that holds a model, or several steps of one, and returns its path."""
    from model.files import write_atomically

    glass, *others = open_steps(arguments.run or arguments.checkpoint, arguments.steps)
    opening = None if arguments.prompt is None else glass.tokenizer.encode_prompt(prompt_text(arguments.prompt))
    output = arguments.output or (glass.run or Path()) / MODEL_PAGE
    write_atomically(output, glass.page(opening, others).encode())
    return output


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


def write_circuit(arguments: argparse.Namespace) -> None:
    """Prints the circuit that copies the prompt's tokens, and draws it where there is an --output."""
    from model.files import write_atomically
    from model.glass import open_run
    from model.pages.circuit_picture import drawing, in_words

    glass = open_run(arguments.run or arguments.checkpoint)
    circuit = glass.circuit(prompt_text(arguments.prompt or ""))
    print(in_words(circuit, glass.tokenizer.label))
    if arguments.output:
        write_atomically(arguments.output, drawing(circuit, glass.tokenizer.label).encode())
        print(f"wrote {arguments.output}")


def open_steps(path: Path | None, steps: list[int] | None) -> list[Glass]:
    """The model of a run at these steps, or the best one without steps."""
    from model.glass import open_run

    return [open_run(checkpoint) for checkpoint in (find_kept(path, steps) if steps else [path])]


def read_prompt(models: list[Path | None], steps: list[int] | None, prompt: str) -> list[History]:
    """What each model attends to in the prompt, and in random tokens that are repeated, at each of the steps.

    All read the same tokens, so that their maps can be subtracted. Raises ValueError for models of two tokenizers.
    """
    from model.glass import history_of

    opened = [open_steps(path, steps) for path in models]
    first, last = opened[0][0], opened[-1][0]
    if first.tokenizer.fingerprint != last.tokenizer.fingerprint:
        raise ValueError(
            f"{first.name} and {last.name} cannot be compared: their tokenizers cut a text into different tokens"
        )
    tokens = first.tokenizer.encode_prompt(prompt)
    smallest = min(first, last, key=lambda one: one.gpt.config.context_length)
    context = smallest.gpt.config.context_length
    if not 2 <= len(tokens) <= context:
        raise ValueError(
            f"a prompt must be 2 to {context} tokens long (the model's context), but this one is {len(tokens)}"
        )
    repeated = smallest.repeated_probe()
    return [history_of([glass.read(tokens) for glass in of_model], repeated) for of_model in opened]


def prompt_title(prompt: str, shown: list[History]) -> str:
    """The page's: the beginning of the prompt, and each checkpoint that read it."""
    from model.pages.describe import shortened

    models = []
    for history in shown:
        steps = dict.fromkeys((history.steps[0], history.steps[-1]))
        models.append(f"{history.name} at step {' to '.join(map(str, steps))}")
    return f"“{shortened(' '.join(prompt.split()), TITLE_CHARS)}” read by {' and '.join(models)}"


def write(shown: list[History], title: str, output: Path, arguments: argparse.Namespace) -> None:
    """Writes the page, the picture or the table that the options ask for."""
    from model.files import write_atomically
    from model.pages import export
    from model.pages.page import attention_page

    if output.suffix in PAGE:
        write_atomically(output, attention_page(shown, title).encode())
        return
    measure, theme, dpi = arguments.measure, arguments.theme or "light", arguments.dpi
    heads = export.choose_heads(arguments.head, shown)
    chosen = (arguments.step, arguments.probe or "text", heads)
    if output.suffix in TABLES:
        name = "scores" if arguments.scores else measure or ("comparison" if len(shown) == 2 else "weights")
        export.write_table(name, export.table_rows(name, shown, *chosen), output)
        return
    from model.pages import images  # imports matplotlib

    if arguments.scores:
        images.draw_scores(shown, output, heads, theme=theme, dpi=dpi)
    else:
        images.draw_maps(shown, output, *chosen, theme=theme, dpi=dpi)


if __name__ == "__main__":
    sys.exit(main())
