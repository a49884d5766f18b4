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

from model.mistakes import Mistake, is_out_of_memory
from model.runs.exit_status import exit_status
from scripts.parser import Parser, add_model_options, choose_device, prompt_text, whole_number

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
    arguments = build_parser().parse_args(argv)
    if sys.stdout is None:
        raise Mistake("standard output is closed, so the text has nowhere to go")
    if arguments.seed is not None and not 0 <= arguments.seed < 2**63:
        raise Mistake(f"--seed must lie in 0..2^63 - 1, not {arguments.seed}")
    if "" in arguments.stop:
        raise Mistake("--stop is empty: write the text to end before")
    prompt = prompt_text(arguments.prompt, arguments.prompt_file)
    try:
        generate(arguments, prompt)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        fewer = "--max_new_tokens" if arguments.num_samples == 1 else "--num_samples or --max_new_tokens"
        raise Mistake(f"the memory is too small: lower {fewer}, or choose another --device") from error


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
    heat.add_argument(
        "--greedy",
        dest="temperature",
        action="store_const",
        const=0.0,
        help="the likeliest token each time, as --temperature 0",
    )
    for name, (kind, letter, words) in SAMPLING.items():
        add(f"--{name}", type=kind, metavar=letter, help=words)
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
        met = [self.held.find(stop) for stop in self.stops if stop in self.held]
        if met:
            self.ended = "stop"
            return self._give(min(met))
        for place in range(len(self.held)):
            if any(stop.startswith(self.held[place:]) for stop in self.stops):
                return self._give(place)
        return self._give(len(self.held))

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
    tokenizer = glass.tokenizer
    gpt = glass.gpt.to(getattr(torch, arguments.dtype))
    number = arguments.num_samples
    generator = torch.Generator(glass.device)
    if arguments.seed is None:
        generator.seed()
    else:
        generator.manual_seed(arguments.seed)

    began = time.perf_counter()
    # Every document of the training text begins after end-of-text, so an empty prompt is that token.
    ids = tokenizer.encode(prompt) or [tokenizer.end_of_text]
    steps = stream(
        gpt,
        torch.tensor([ids], device=glass.device).repeat(number, 1),
        arguments.max_new_tokens,
        temperature=arguments.temperature,
        generator=generator,
        stop_token=tokenizer.end_of_text,
        **{name: getattr(arguments, name) for name in SAMPLING},
    )
    first = next(steps)  # with which the memory for all texts is there
    print(glass, file=sys.stderr)
    if not prompt:
        print("an empty prompt: its text is the beginning of a document", file=sys.stderr)

    texts = [TextStream(tokenizer, arguments.stop) for _ in range(number)]
    beginnings = [f"--- sample {n} ---\n{prompt}" for n in range(1, number + 1)] if number > 1 else [prompt]
    write_text(beginnings[0])
    with closing(steps):
        for drawn in chain([first], steps):
            pieces = [text.feed(token) for text, token in zip(texts, drawn.tolist(), strict=True)]
            write_text(pieces[0])
            if all(text.ended for text in texts):
                break
    rests = [text.end() for text in texts]
    write_text(rests[0] + "\n")
    for beginning, text in zip(beginnings[1:], texts[1:], strict=True):
        write_text(f"{beginning}{text.text}\n")

    count = sum(len(text.tokens) for text in texts)
    seconds = time.perf_counter() - began
    print(f"{count:,} tokens in {seconds:.2f} s: {count / seconds:,.0f} tokens/s", file=sys.stderr)
    unmet = sum(text.ended is None for text in texts)
    if arguments.stop and unmet:
        within = f"{unmet} of {number} texts within {arguments.max_new_tokens} tokens"
        print(f"no --stop text came in {within}", file=sys.stderr)


def write_text(text: str) -> None:
    if sys.stdout.isatty():
        text = text.translate(CONTROL_PICTURES)
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
