"""Continues a prompt with a trained GPT and writes the text as it is drawn. Everything it needs is in the checkpoint.

Of a prompt longer than the model's context only the end is read. When the context is full, its last half is read again
and writing goes on. A text ends early where the model ends its document. In Python, `model.open_run` writes too.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.mistakes import Mistake, check_range, exit_status, is_out_of_memory
from scripts.parser import Parser, add_model_options, choose_device, prompt_text

if TYPE_CHECKING:
    from data.tokenizers import Tokenizer

# A model can write any byte; on a terminal a control character would act instead of show.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}

# Options of `model.generation.sample` beside the temperature. A new rule there needs one more line here.
SAMPLING = {
    "top_k": (int, "N", "draw from the N likeliest tokens only (default: from all)"),
    "top_p": (float, "P", "draw from the likeliest tokens that together have probability P, in (0, 1] (default: all)"),
    "min_p": (float, "P", "draw from tokens at least P times as likely as the likeliest, in [0, 1] (default: all)"),
}


@exit_status("generate.py")
def main(argv: list[str] | None = None) -> None:
    options = build_parser().parse_args(argv)
    check_range("--seed", options.seed, 0)
    check_range("--num_samples", options.num_samples, 1)
    if "" in options.stop:
        raise Mistake("--stop is empty: write the text to end before")
    prompt = prompt_text(options.prompt, options.prompt_file)
    try:
        generate(options, prompt)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        remedies = "lower --max_new_tokens or --num_samples, or choose another --device"
        raise Mistake(f"the memory is too small: {remedies}") from error


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="generate.py", description=__doc__)
    add_model_options(parser)
    prompt = parser.add_mutually_exclusive_group()
    words = "text to continue; - reads it from standard input; an empty one starts a document (default: a line break)"
    prompt.add_argument("--prompt", default="\n", metavar="TEXT", help=words)
    prompt.add_argument("--prompt_file", type=Path, metavar="PATH", help="UTF-8 file with the text to continue")
    add = parser.add_argument
    add("--max_new_tokens", type=int, default=200, metavar="N", help="tokens to write at most, >= 1 (default: 200)")
    words = "end before this text; may be given several times (default: only where the model ends its document)"
    add("--stop", action="append", default=[], metavar="TEXT", help=words)
    heat = parser.add_mutually_exclusive_group()
    words = "divides the logits; 0 = likeliest (default: 0.8)"
    heat.add_argument("--temperature", type=float, default=0.8, metavar="X", help=words)
    words = "the likeliest token each time, as --temperature 0"
    heat.add_argument("--greedy", dest="temperature", action="store_const", const=0.0, help=words)
    for name, (kind, letter, words) in SAMPLING.items():
        add(f"--{name}", type=kind, metavar=letter, help=words)
    add("--num_samples", type=int, default=1, metavar="N", help="texts to write (default: 1)")
    words = "number that makes the texts repeatable (default: a new one each time)"
    add("--seed", type=int, default=random.getrandbits(32), metavar="N", help=words)
    words = "of weights and cache; bfloat16 takes half the memory (default: float32)"
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help=words)
    return parser


class Text:
    """A text whose tokens come one by one.

    Args:
        stops: it ends before the first of these.

    Attributes:
        text: its characters so far.
        num_tokens: of the text, with what ended it.
        has_ended: by a stop, or by the end of its document.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.content, self.text = b"", ""
        self.num_tokens, self.has_ended = 0, False

    def add(self, token: int) -> None:
        if self.has_ended:
            return
        self.num_tokens += 1
        ends_document = token == self.tokenizer.end_of_text
        if not ends_document:
            self.content += self.tokenizer.token_bytes(token)
        self.text = whole = self.content.decode(errors="replace")
        for stop in self.stops:
            self.text = self.text.partition(stop)[0]
        self.has_ended = ends_document or self.text != whole

    def certain(self) -> str:
        """Without what later tokens may change: a character that lacks bytes, and what may become a stop."""
        if self.has_ended:
            return self.text
        text = self.text.rstrip("\N{REPLACEMENT CHARACTER}")
        beginnings = [stop[:size] for stop in self.stops for size in range(1, len(stop))]
        held = max([len(beginning) for beginning in beginnings if text.endswith(beginning)], default=0)
        return text[: len(text) - held]


def generate(options: argparse.Namespace, prompt: str) -> None:
    """Writes all texts: the first as it is drawn, the others when they have ended."""
    import torch

    from model.glass import open_run

    glass = open_run(options.checkpoint, device=choose_device(options.device))
    glass.gpt.to(getattr(torch, options.dtype))
    number = options.num_samples
    sampling = {name: getattr(options, name) for name in ("temperature", "seed", *SAMPLING)}
    began = time.perf_counter()
    steps = glass.stream(prompt, options.max_new_tokens, num_texts=number, **sampling)
    first_step = next(steps)  # with which the memory for all texts is there
    print(glass, file=sys.stderr)

    texts = [Text(glass.tokenizer, options.stop) for _ in range(number)]
    heading = "--- sample {} ---\n" if number > 1 else ""
    write_text(heading.format(1) + prompt)
    shown = 0
    for drawn in chain([first_step], steps):
        for text, token in zip(texts, drawn.tolist(), strict=True):
            text.add(token)
        certain = texts[0].certain()
        write_text(certain[shown:])
        shown = len(certain)
        if all(text.has_ended for text in texts):
            break
    write_text(texts[0].text[shown:] + "\n")
    for place, text in enumerate(texts[1:], start=2):
        write_text(f"{heading.format(place)}{prompt}{text.text}\n")

    count = sum(text.num_tokens for text in texts)
    seconds = time.perf_counter() - began
    print(f"{count:,} tokens in {seconds:.2f} s: {count / seconds:,.0f} tokens/s", file=sys.stderr)
    unmet = sum(not text.has_ended for text in texts)
    if options.stop and unmet:
        print(f"no --stop text came in {unmet} of {number} texts", file=sys.stderr)


def write_text(text: str) -> None:
    """Onto standard output; nowhere if that is closed."""
    if sys.stdout and sys.stdout.isatty():
        text = text.translate(CONTROL_PICTURES)
    print(text, end="", flush=True)


if __name__ == "__main__":
    sys.exit(main())
