"""Writes text with a trained GPT, to the terminal as it is drawn."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file, Python looks for modules beside it and not in the repository's root
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from model.runs.mistakes import exit_status
from scripts.parser import Parser, add_model_options, at_least
from scripts.prompting import choose_device, open_model, prompt_text, read_prompts
from scripts.writing import TextStream, write

if TYPE_CHECKING:
    import torch


DESCRIPTION = """\
Continues prompts with a trained GPT and writes the text as it is drawn. Everything it needs is in the checkpoint.
The window slides: of a prompt longer than the model's context only the end is read, and a text that outgrows the
context continues from the last half of it. A text ends early where the model ends its document."""

# A model can write any byte; on a terminal a control character would act instead of show.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
PROMPTS_AT_ONCE = 32
MOST_REMEMBERED = 2**14  # tokens of a conversation


@exit_status("generate.py", (ValueError, OSError, ModuleNotFoundError))
def main(argv: list[str] | None = None) -> None:
    arguments = build_parser().parse_args(argv)
    if sys.stdout is None:
        raise ValueError("standard output is closed, so the text has nowhere to go")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**63:
        raise ValueError(f"--seed must lie in 0..2^63 - 1, not {arguments.seed}")
    if "" in arguments.stop:
        raise ValueError("--stop is empty: write the text to end before")
    if arguments.interactive and (arguments.num_samples > 1 or arguments.json or arguments.logprobs):
        raise ValueError("--interactive writes one text: leave out --num_samples, --json and --logprobs")
    try:
        if arguments.interactive:
            converse(arguments)
        elif arguments.prompts:
            generate(arguments, read_prompts(arguments.prompts))
        else:
            generate(arguments, [prompt_text(arguments.prompt, arguments.prompt_file)])
    except (MemoryError, RuntimeError) as error:
        # PyTorch has no type of its own for a processor's memory that is used up, but says the same as for a GPU's.
        if isinstance(error, RuntimeError) and "tried to allocate" not in str(error).lower():
            raise
        raise ValueError(f"the memory is too small for --num_samples {arguments.num_samples}: ask for fewer") from error


def build_parser() -> argparse.ArgumentParser:
    """The options. Each help text names the unit and the default."""
    parser = Parser(prog="generate.py", description=DESCRIPTION)
    add = parser.add_argument
    add_model_options(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt",
        default="\n",
        metavar="TEXT",
        help="text to continue; - reads it from standard input; an empty one starts a document (default: a line break)",
    )
    prompt.add_argument("--prompt_file", type=Path, metavar="PATH", help="UTF-8 file with the text to continue")
    prompt.add_argument(
        "--prompts",
        type=Path,
        metavar="PATH",
        help='UTF-8 file with a prompt in each line, in a .jsonl file as its "prompt"; each is continued as it would '
        "be alone",
    )
    prompt.add_argument(
        "--interactive",
        action="store_true",
        help="continue what you type, again and again, as one text; Enter sends a line without its line break, and a "
        "line that ends in \\ is sent with its line break and the next line",
    )
    add("--max_new_tokens", type=int, default=200, metavar="N", help="tokens to write at most, >= 1 (default: 200)")
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end before this text; may be given several times (default: only where the model ends its document)",
    )
    heat = parser.add_mutually_exclusive_group().add_argument
    heat("--temperature", type=float, default=0.8, metavar="X", help="divides the logits; 0 = likeliest (default: 0.8)")
    heat("--greedy", dest="temperature", action="store_const", const=0.0, help="the same as --temperature 0")
    add("--top_k", type=int, metavar="N", help="draw from the N likeliest tokens only (default: from all)")
    add(
        "--top_p",
        type=float,
        metavar="P",
        help="draw from the likeliest tokens that together have probability P, in (0, 1] (default: from all)",
    )
    add(
        "--min_p",
        type=float,
        metavar="P",
        help="draw from tokens at least P times as likely as the likeliest, in [0, 1] (default: from all)",
    )
    add(
        "--repetition_penalty",
        type=float,
        default=1.0,
        metavar="X",
        help="above 1 makes tokens that the prompt or text has already less likely (default: 1, which does not)",
    )
    add("--num_samples", type=at_least(1), default=1, metavar="N", help="texts of each prompt (default: 1)")
    add("--seed", type=int, metavar="N", help="number that makes the texts repeatable (default: a new one each time)")
    add("--json", action="store_true", help="write each text as a line of JSON, once it is finished")
    add("--logprobs", action="store_true", help="the same, with all tokens and their log-probabilities, in nats")
    return parser


class Writer:
    """A trained GPT and how it shall write, by the command line's arguments.

    Raises ValueError or OSError with a sentence for the person.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        from model.kernels import record_cuda_graph

        self.device = choose_device(arguments.device)
        self.model, self.tokenizer, self.heading = open_model(arguments.checkpoint, self.device)
        self.seed, self.max_new_tokens = arguments.seed, arguments.max_new_tokens
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        self.options: dict[str, Any] = {name: getattr(arguments, name) for name in names} | {"stops": arguments.stop}
        self.options["record"] = record_cuda_graph if self.device.type == "cuda" else None

    def write(self, prompts: list[list[int]], **options: Any) -> tuple[list[TextStream], Iterator[list[str]]]:
        """As `scripts.writing.write`."""
        return write(self.model, self.tokenizer, prompts, self.max_new_tokens, **self.options, **options)

    def generators(self, number: int) -> list[torch.Generator]:
        """Sources of randomness, one a prompt: with a seed each of them draws as it would alone."""
        import torch

        generators = [torch.Generator(self.device) for _ in range(number)]
        for generator in generators:
            generator.seed() if self.seed is None else generator.manual_seed(self.seed)
        return generators

    def encode(self, prompt: str) -> list[int]:
        """Token ids. Every document of the training text begins after end-of-text, so an empty prompt is that token."""
        return self.tokenizer.encode(prompt) or [self.tokenizer.end_of_text]


def generate(arguments: argparse.Namespace, prompts: list[str]) -> None:
    """Writes all texts of all prompts. Raises ValueError or OSError with a sentence for the person."""
    writer = Writer(arguments)
    # 2^44 rows are more than any memory can hold; sizes beyond 64 bits would fail in ways of their own.
    texts_each = min(arguments.num_samples, 2**44)
    finished, seconds = [], 0.0
    for first in range(0, len(prompts), PROMPTS_AT_ONCE):
        some = prompts[first : first + PROMPTS_AT_ONCE]
        logprobs: list[torch.Tensor] | None = [] if arguments.logprobs else None
        began = time.perf_counter()
        texts, pieces = writer.write(
            [writer.encode(prompt) for prompt in some],
            texts_each=texts_each,
            generator=writer.generators(len(some)),
            logprobs=logprobs,
        )
        if not first:
            print(writer.heading, file=sys.stderr)
            if "" in prompts:
                print("an empty prompt: its text is the beginning of a document", file=sys.stderr)
        rows = [(number, sample) for number, _ in enumerate(some) for sample in range(texts_each)]
        if arguments.json or arguments.logprobs:
            show_json([(some[number], sample + 1) for number, sample in rows], texts, pieces, logprobs)
        else:
            titles = [title(first + number, len(prompts), sample, texts_each) for number, sample in rows]
            show([line + some[number] for line, (number, _) in zip(titles, rows, strict=True)], texts, pieces)
        finished += texts
        seconds += time.perf_counter() - began
    tell_speed(finished, seconds)
    unmet = sum(text.ended is None for text in finished)
    if arguments.stop and unmet:
        number = "the text" if len(finished) == 1 else f"{unmet} of {len(finished)} texts"
        print(f"no --stop text came in {number} within {arguments.max_new_tokens} tokens", file=sys.stderr)


def title(number: int, of_prompts: int, sample: int, of_samples: int) -> str:
    """The line above a text where there are several; the numbers count from 0."""
    parts = [f"prompt {number + 1}"] * (of_prompts > 1) + [f"sample {sample + 1}"] * (of_samples > 1)
    return f"--- {', '.join(parts)} ---\n" if parts else ""


def show(beginnings: list[str], texts: list[TextStream], pieces: Iterator[list[str]]) -> None:
    """Writes the first text piece by piece, then the others, each after its beginning."""
    write_text(beginnings[0])
    waiting = [""] * (len(texts) - 1)
    for piece, *others in pieces:
        write_text(piece)
        waiting = [text + other for text, other in zip(waiting, others, strict=True)]
    write_text(texts[0].end() + "\n")
    for beginning, text, stream in zip(beginnings[1:], waiting, texts[1:], strict=True):
        write_text(beginning + text + stream.end() + "\n")


def show_json(
    rows: list[tuple[str, int]],
    texts: list[TextStream],
    pieces: Iterator[list[str]],
    logprobs: list[torch.Tensor] | None,
) -> None:
    """Writes a line of JSON for each text.

    Args:
        rows: the prompt of each text, and its number among the samples of this prompt.
        logprobs: of each step and row, if they shall be written.
    """
    written = ["".join(parts) for parts in zip(*pieces, strict=True)]
    for index, ((prompt, sample), text) in enumerate(zip(rows, texts, strict=True)):
        record: dict[str, Any] = {"prompt": prompt, "sample": sample, "text": written[index] + text.end()}
        record |= {"ended": text.ended or "length", "new_tokens": len(text.tokens)}
        if logprobs is not None:
            record["tokens"] = [
                {"id": token, "text": text.tokenizer.label(token), "logprob": float(step[index])}
                for token, step in zip(text.tokens, logprobs, strict=False)
            ]
        print(json.dumps(record), flush=True)


def converse(arguments: argparse.Namespace) -> None:
    """Continues the text with what a person types, turn by turn. Each turn reads only what is new."""
    from model.generation import new_cache

    if sys.stdin is None:
        raise ValueError("--interactive reads standard input, which is closed")
    writer = Writer(arguments)
    print(f"{writer.heading}; Ctrl-D ends", file=sys.stderr)
    # A checkpoint may claim any context: only its weights take memory that its size accounts for.
    cache = new_cache(writer.model, 1, min(writer.model.config.context_length, MOST_REMEMBERED))
    generator = writer.generators(1)
    unread: list[int] = []  # the cache lacks the last token of a turn
    while (typed := read_turn()) is not None:
        tokens = unread + writer.tokenizer.encode(typed)
        began = time.perf_counter()
        prompt = tokens or [writer.tokenizer.end_of_text]
        (text,), pieces = writer.write([prompt], cache=cache, generator=generator)
        for (piece,) in pieces:
            write_text(piece)
        write_text(text.end() + "\n")
        unread = text.tokens[-1:]
        tell_speed([text], time.perf_counter() - began)


def read_turn() -> str | None:
    """What a person types, up to a line that does not end in a backslash; None at the end of standard input.

    The line break that sends a turn is no part of it, so that the text can go on within a line. One after a backslash
    is. Raises ValueError unless it is UTF-8.
    """
    lines = []
    try:
        while True:
            line = input("> " if sys.stdin.isatty() else "")
            line.encode()  # fails where Python has let other bytes pass, as half characters
            lines.append(line)
            if not line.endswith("\\"):
                return "\n".join(lines)
            lines[-1] = line[:-1]
    except EOFError:
        return "\n".join(lines) if lines else None
    except UnicodeError as error:
        raise ValueError("standard input is not UTF-8 text") from error


def tell_speed(texts: list[TextStream], seconds: float) -> None:
    count = sum(len(text.tokens) for text in texts)
    print(f"{count:,} tokens in {seconds:.2f} s: {count / seconds:,.0f} tokens/s", file=sys.stderr)


def write_text(text: str) -> None:
    """Writes to standard output at once; a character that its encoding lacks becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, errors="replace").decode(encoding)
    if sys.stdout.isatty():
        text = text.translate(CONTROL_PICTURES)
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
