"""Continues prompts with a trained GPT and writes the text as it is drawn. Everything it needs is in the checkpoint.

The window slides: of a prompt longer than the model's context only the end is read, and a text that outgrows the
context continues from the last half of it. A text ends early where the model ends its document.
"""

from __future__ import annotations

import argparse
import codecs
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a file too

from model.runs.mistakes import exit_status
from scripts.parser import Parser, add_model_options, at_least, choose_device, prompt_text, read_prompts

if TYPE_CHECKING:
    import torch

    from data.tokenizers import Tokenizer

# A model can write any byte; on a terminal a control character would act instead of show.
CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {127: 0x2421}
SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # options that `stream` has too
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
    parser = Parser(prog="generate.py", description=__doc__)
    add_model_options(parser)
    prompt = parser.add_mutually_exclusive_group().add_argument
    words = "text to continue; - reads it from standard input; an empty one starts a document (default: a line break)"
    prompt("--prompt", default="\n", metavar="TEXT", help=words)
    prompt("--prompt_file", type=Path, metavar="PATH", help="UTF-8 file with the text to continue")
    words = 'UTF-8 file with a prompt in each line, in a .jsonl file as its "prompt"; each is continued as if alone'
    prompt("--prompts", type=Path, metavar="PATH", help=words)
    words = "continue what you type, again and again, as one text; Enter sends a line without its line break, "
    words += "and a line that ends in \\ is sent with its line break and the next line"
    prompt("--interactive", action="store_true", help=words)
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
    words = "above 1 makes tokens that the prompt or text has already less likely (default: 1, which does not)"
    add("--repetition_penalty", type=float, default=1.0, metavar="X", help=words)
    add("--num_samples", type=at_least(1), default=1, metavar="N", help="texts of each prompt (default: 1)")
    add("--seed", type=int, metavar="N", help="number that makes the texts repeatable (default: a new one each time)")
    words = "of the weights while it writes; int8 rounds them to 8 bits, faster on a CPU (default: float32)"
    add("--dtype", choices=("float32", "int8"), default="float32", help=words)
    add("--json", action="store_true", help="write each text as a line of JSON, once it is finished")
    add("--logprobs", action="store_true", help="the same, with all tokens and their log-probabilities, in nats")
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


class Writer:
    """A trained GPT that writes as the command line's arguments say."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch

        from model.glass import open_run
        from model.kernels import use_int8

        self.arguments, self.most_threads = arguments, torch.get_num_threads()
        device = choose_device(arguments.device)
        if arguments.dtype == "int8" and device.type != "cpu":
            raise ValueError(f"--dtype int8 is for the CPU, and this is {device}: leave it out, or write --device cpu")
        self.glass = open_run(arguments.checkpoint, device=device)
        if arguments.dtype == "int8":
            use_int8(self.glass.gpt)

    def write(
        self, prompts: list[list[int]], generator: torch.Generator, texts_each: int = 1, **options: Any
    ) -> tuple[list[TextStream], Iterator[str]]:
        """Continues prompts of the same length, until all texts have ended; with a seed each as it would be alone.

        The first tokens are drawn at once, so that the memory for all texts is there when this returns.

        Args:
            prompts: token ids, at least one each.
            texts_each: how many texts continue each prompt.
            options: of `model.generation.stream`.

        Returns:
            The texts, those of the first prompt first, and an iterator that writes them and gives the first's pieces.
        """
        import torch

        from model.generation import stream
        from model.kernels import decoding_threads

        arguments, gpt, tokenizer = self.arguments, self.glass.gpt, self.glass.tokenizer
        torch.set_num_threads(decoding_threads(gpt, texts_each * len(prompts), self.most_threads))
        tokens = torch.tensor(prompts, device=self.glass.device).repeat_interleave(texts_each, dim=0)
        options |= {name: getattr(arguments, name) for name in SAMPLING}
        options |= {"generator": generator, "shared_draws": 1 if arguments.seed is None else len(prompts)}
        steps = stream(gpt, tokens, arguments.max_new_tokens, stop_token=tokenizer.end_of_text, **options)
        first = next(steps)
        texts = [TextStream(tokenizer, arguments.stop) for _ in tokens]

        def pieces() -> Iterator[str]:
            with closing(steps):
                for drawn in chain([first], steps):
                    piece, *_ = [text.feed(token) for text, token in zip(texts, drawn.tolist(), strict=True)]
                    yield piece
                    if all(text.ended for text in texts):
                        break
            rest, *_ = [text.end() for text in texts]
            yield rest

        return texts, pieces()


def generate(arguments: argparse.Namespace, prompts: list[str]) -> None:
    """Writes all texts of all prompts, in their order."""
    writer = Writer(arguments)
    tokenizer = writer.glass.tokenizer
    # 2^44 rows are more than any memory can hold; sizes beyond 64 bits would fail in ways of their own.
    texts_each = min(arguments.num_samples, 2**44)
    as_json = arguments.json or arguments.logprobs
    # Every document of the training text begins after end-of-text, so an empty prompt is that token.
    encoded = [tokenizer.encode_prompt(prompt) or [tokenizer.end_of_text] for prompt in prompts]
    finished: list[TextStream] = []
    outputs: dict[int, str] = defaultdict(str)  # by prompt: what is still to be written, after the prompts before it
    next_number, seconds = 0, 0.0
    for numbers in of_equal_length(encoded):
        logprobs: list[torch.Tensor] | None = [] if arguments.logprobs else None
        began = time.perf_counter()
        together, generator = [encoded[number] for number in numbers], writer.glass.generator(arguments.seed)
        texts, pieces = writer.write(together, generator, texts_each, logprobs=logprobs)
        if not finished:
            print(writer.glass, file=sys.stderr)
            if "" in prompts:
                print("an empty prompt: its text is the beginning of a document", file=sys.stderr)
        rows = list(product(numbers, range(texts_each)))
        beginnings = [title(number, len(prompts), sample, texts_each) + prompts[number] for number, sample in rows]
        # The first text appears as it is drawn: all prompts before its own are finished.
        for piece in chain(beginnings[:1], pieces):
            if not as_json:
                write_text(piece)
        for row, (number, sample) in enumerate(rows):
            if as_json:
                steps = None if logprobs is None else [float(step[row]) for step in logprobs]
                outputs[number] += json_line(prompts[number], sample, texts[row], steps)
            elif row:
                outputs[number] += beginnings[row] + texts[row].text
            outputs[number] += "\n"
        while next_number in outputs:
            write_text(outputs.pop(next_number))
            next_number += 1
        finished += texts
        seconds += time.perf_counter() - began
    tell_speed(finished, seconds)
    unmet = sum(text.ended is None for text in finished)
    if arguments.stop and unmet:
        number = "the text" if len(finished) == 1 else f"{unmet} of {len(finished)} texts"
        print(f"no --stop text came in {number} within {arguments.max_new_tokens} tokens", file=sys.stderr)


def of_equal_length(encoded: list[list[int]]) -> list[list[int]]:
    """Which prompts are continued together: numbers of prompts of equally many tokens, in the order of the first."""
    by_length = defaultdict(list)
    for number, tokens in enumerate(encoded):
        by_length[len(tokens)].append(number)
    starts = [(numbers, start) for numbers in by_length.values() for start in range(0, len(numbers), PROMPTS_AT_ONCE)]
    return sorted(numbers[start : start + PROMPTS_AT_ONCE] for numbers, start in starts)


def title(number: int, of_prompts: int, sample: int, of_samples: int) -> str:
    """The line above a text where there are several; the numbers count from 0."""
    parts = [f"prompt {number + 1}"] * (of_prompts > 1) + [f"sample {sample + 1}"] * (of_samples > 1)
    return f"--- {', '.join(parts)} ---\n" if parts else ""


def json_line(prompt: str, sample: int, text: TextStream, logprobs: list[float] | None) -> str:
    """A text with its prompt, its number among this prompt's samples, and each token's log-probability if there."""
    record: dict[str, Any] = {"prompt": prompt, "sample": sample + 1, "text": text.text}
    record |= {"ended": text.ended or "length", "new_tokens": len(text.tokens)}
    if logprobs is not None:
        record["tokens"] = [
            {"id": token, "text": text.tokenizer.label(token), "logprob": logprob}
            for token, logprob in zip(text.tokens, logprobs, strict=False)
        ]
    return json.dumps(record)


def converse(arguments: argparse.Namespace) -> None:
    """Continues the text with what a person types, turn by turn. Each turn reads only what is new."""
    from model.generation import new_cache

    if sys.stdin is None:
        raise ValueError("--interactive reads standard input, which is closed")
    writer = Writer(arguments)
    print(f"{writer.glass}; Ctrl-D ends", file=sys.stderr)
    gpt, generator = writer.glass.gpt, writer.glass.generator(arguments.seed)
    # A checkpoint may claim any context: only its weights take memory that its size accounts for.
    cache = new_cache(gpt, 1, min(gpt.config.context_length, MOST_REMEMBERED))
    unread: list[int] = []  # the cache lacks the last token of a turn
    while (typed := read_turn()) is not None:
        try:
            tokens = unread + writer.glass.tokenizer.encode_prompt(typed)
        except ValueError as error:  # the tokenizer leaves out all of it
            print(error, file=sys.stderr)
            continue
        began = time.perf_counter()
        (text,), pieces = writer.write([tokens or [writer.glass.tokenizer.end_of_text]], generator, cache=cache)
        for piece in chain(pieces, "\n"):
            write_text(piece)
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
            lines.append(line.removesuffix("\\"))
            if lines[-1] == line:
                return "\n".join(lines)
    except EOFError:
        return "\n".join(lines) if lines else None
    except UnicodeError as error:
        raise ValueError("standard input is not UTF-8 text") from error


def tell_speed(texts: list[TextStream], seconds: float) -> None:
    count = sum(len(text.tokens) for text in texts)
    print(f"{count:,} tokens in {seconds:.2f} s: {count / seconds:,.0f} tokens/s", file=sys.stderr)


def write_text(text: str) -> None:
    """Writes to standard output at once."""
    if sys.stdout.isatty():
        text = text.translate(CONTROL_PICTURES)
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
