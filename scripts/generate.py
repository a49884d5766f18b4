"""Continues a prompt with a trained GPT and writes the text as it is drawn. Everything it needs is in the checkpoint.

The window slides: of a prompt longer than the model's context only the end is read, and a text that outgrows the
context continues from the last half of it. A text ends early where the model ends its document. For many prompts, or
for log-probabilities, use the model in Python: `model.open_run` and its `write`.
"""

from __future__ import annotations

import argparse
import codecs
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.checks import Mistake
from model.runs.mistakes import exit_status
from scripts.parser import Parser, add_model_options, choose_device, prompt_text, whole_number

if TYPE_CHECKING:
    from data.tokenizers import Tokenizer

# A model can write any byte; on a terminal a control character would act instead of show.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
SAMPLING = ("temperature", "top_k", "top_p", "min_p")  # options that `stream` has too


@exit_status("generate.py")
def main(argv: list[str] | None = None) -> None:
    arguments = build_parser().parse_args(argv)
    if sys.stdout is None:
        raise Mistake("standard output is closed, so the text has nowhere to go")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**63:
        raise Mistake(f"--seed must lie in 0..2^63 - 1, not {arguments.seed}")
    if "" in arguments.stop:
        raise Mistake("--stop is empty: write the text to end before")
    try:
        generate(arguments, prompt_text(arguments.prompt, arguments.prompt_file))
    except (MemoryError, RuntimeError) as error:
        # PyTorch has no type of its own for a processor's memory that is used up, but says the same as for a GPU's.
        if isinstance(error, RuntimeError) and "tried to allocate" not in str(error).lower():
            raise
        fewer = ["--num_samples"] * (arguments.num_samples > 1) + ["--max_new_tokens"]
        raise Mistake(f"the memory is too small: lower {' or '.join(fewer)}, or choose another --device") from error


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="generate.py", description=__doc__)
    add_model_options(parser)
    prompt = parser.add_mutually_exclusive_group().add_argument
    words = "text to continue; - reads it from standard input; an empty one starts a document (default: a line break)"
    prompt("--prompt", default="\n", metavar="TEXT", help=words)
    prompt("--prompt_file", type=Path, metavar="PATH", help="UTF-8 file with the text to continue")
    add = parser.add_argument
    add("--max_new_tokens", type=int, default=200, metavar="N", help="tokens to write at most, >= 1 (default: 200)")
    words = "end before this text; may be given several times (default: only where the model ends its document)"
    add("--stop", action="append", default=[], metavar="TEXT", help=words)
    heat = parser.add_mutually_exclusive_group().add_argument
    heat("--temperature", type=float, default=0.8, metavar="X", help="divides the logits; 0 = likeliest (default: 0.8)")
    heat("--greedy", dest="temperature", action="store_const", const=0.0, help="the same as --temperature 0")
    add("--top_k", type=int, metavar="N", help="draw from the N likeliest tokens only (default: from all)")
    words = "draw from the likeliest tokens that together have probability P, in (0, 1] (default: from all)"
    add("--top_p", type=float, metavar="P", help=words)
    words = "draw from tokens at least P times as likely as the likeliest, in [0, 1] (default: from all)"
    add("--min_p", type=float, metavar="P", help=words)
    add("--num_samples", type=whole_number, default=1, metavar="N", help="texts to write (default: 1)")
    add("--seed", type=int, metavar="N", help="number that makes the texts repeatable (default: a new one each time)")
    words = "of weights and cache; bfloat16 takes half the memory (default: float32)"
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help=words)
    return parser


class TextStream:
    """Turns tokens into text. A character spread over several tokens appears with the last of them.

    Args:
        stops: the text ends before the first of these, none of which is empty. What may become one is held back.

    Attributes:
        text: its characters so far.
        tokens: those of the text, with what ended it.
        ended: "stop" or "end_of_text" once the text has ended.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.tokens: list[int] = []
        self.ended: str | None = None
        self.text = self.held = ""

    def feed(self, token: int) -> str:
        """The characters that `token` completes; none after the end of the text."""
        if self.ended:
            return ""
        self.tokens.append(token)
        if token == self.tokenizer.end_of_text:
            self.ended = "end_of_text"
            return ""
        self.held += self.decoder.decode(self.tokenizer.token_bytes(token))
        if met := [place for stop in self.stops if (place := self.held.find(stop)) >= 0]:
            self.ended = "stop"
            return self._give(min(met))
        beginnings = (stop[:length] for stop in self.stops for length in range(1, len(stop)))
        kept = max((len(text) for text in beginnings if self.held.endswith(text)), default=0)
        return self._give(len(self.held) - kept)

    def end(self) -> str:
        """What is still held back, and a replacement character for an incomplete one."""
        if self.ended == "stop":
            return ""
        self.held += self.decoder.decode(b"", final=True)
        return self._give(len(self.held))

    def _give(self, count: int) -> str:
        piece, self.held = self.held[:count], self.held[count:]
        self.text += piece
        return piece


def generate(arguments: argparse.Namespace, prompt: str) -> None:
    """Writes all texts: the first as it is drawn, the others when they have ended."""
    import torch

    from model.generation import stream
    from model.glass import open_run

    glass = open_run(arguments.checkpoint, device=choose_device(arguments.device))
    gpt, tokenizer = glass.gpt.to(getattr(torch, arguments.dtype)), glass.tokenizer
    # Every document of the training text begins after end-of-text, so an empty prompt is that token.
    ids = tokenizer.encode(prompt) or [tokenizer.end_of_text]
    num_texts = arguments.num_samples
    began = time.perf_counter()
    options = {name: getattr(arguments, name) for name in SAMPLING}
    generator = torch.Generator(glass.device)
    generator.seed() if arguments.seed is None else generator.manual_seed(arguments.seed)
    options |= {"generator": generator, "stop_token": tokenizer.end_of_text}
    tokens = torch.tensor([ids], device=glass.device).repeat(num_texts, 1)
    steps = stream(gpt, tokens, arguments.max_new_tokens, **options)
    first = next(steps)  # with which the memory for all texts is there
    print(glass, file=sys.stderr)
    if not prompt:
        print("an empty prompt: its text is the beginning of a document", file=sys.stderr)
    beginnings = [f"--- sample {n} ---\n{prompt}" if num_texts > 1 else prompt for n in range(1, num_texts + 1)]
    write_text(beginnings[0])
    texts = [TextStream(tokenizer, arguments.stop) for _ in beginnings]
    with closing(steps):
        for drawn in chain([first], steps):
            piece, *_ = [text.feed(token) for text, token in zip(texts, drawn.tolist(), strict=True)]
            write_text(piece)
            if all(text.ended for text in texts):
                break
    rest, *_ = [text.end() for text in texts]
    write_text(rest + "\n")
    for beginning, text in zip(beginnings[1:], texts[1:], strict=True):
        write_text(f"{beginning}{text.text}\n")
    count, seconds = sum(len(text.tokens) for text in texts), time.perf_counter() - began
    print(f"{count:,} tokens in {seconds:.2f} s: {count / seconds:,.0f} tokens/s", file=sys.stderr)
    unmet = sum(text.ended is None for text in texts)
    if arguments.stop and unmet:
        number = "the text" if num_texts == 1 else f"{unmet} of {num_texts} texts"
        print(f"no --stop text came in {number} within {arguments.max_new_tokens} tokens", file=sys.stderr)


def write_text(text: str) -> None:
    if sys.stdout.isatty():
        text = text.translate(CONTROL_PICTURES)
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
