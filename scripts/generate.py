"""Continues a prompt with a trained GPT and prints the text while it is drawn. Needs nothing but the checkpoint.

If the prompt is longer than the model's context, only its end is read. When the context is full, the model reads the
last half of it again and goes on. A text ends early if the model ends its document, by drawing end-of-text.
In Python: `model.open_run(...).write(...)`.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python scripts/...` finds model/

from model.mistakes import Mistake, check_range
from model.runs.terminal import say
from scripts.parser import program

if TYPE_CHECKING:
    from data.tokenizers import Tokenizer


class Continuation:
    """A text that is generated token by token.

    Args:
        stops: the text ends before the first place where one of these strings appears.

    Attributes:
        text: the characters so far.
        num_tokens: number of tokens so far, including the token that ended the text.
        has_ended: whether a stop, or an end-of-text, has ended the text.
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
        """Returns the part that later tokens cannot change: without an incomplete character or beginning of a stop."""
        if self.has_ended:
            return self.text
        text = self.text.rstrip("\N{REPLACEMENT CHARACTER}")
        sizes = [size for stop in self.stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
        return text[: len(text) - max(sizes, default=0)]


def generate(
    *,
    checkpoint: Path | None = None,
    device: str = "auto",
    prompt: str = "\n",
    max_new_tokens: int = 200,
    stop: list[str] | None = None,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    num_samples: int = 1,
    seed: int | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> None:
    """Writes all texts at once. Prints the first while it is written, the others afterwards.

    Args:
        checkpoint: checkpoint file, run folder or folder of a Hugging Face model (default: newest run under runs/)
        device: cpu, cuda, cuda:1, mps, ...; auto: a GPU if there is one
        prompt: text to continue; an empty text starts a new document
        max_new_tokens: most tokens to write in a text
        stop: stop before this text; may be repeated. A text also ends where the model ends its document
        temperature: divides the logits: a larger one makes the text more random, 0 always takes the likeliest token
        top_k: draw only from so many likeliest tokens (default: from all)
        top_p: draw only from the likeliest tokens that together reach this probability (default: 1)
        min_p: draw only from tokens at least so many times as likely as the likeliest, 0 to 1 (default: 0)
        num_samples: number of texts to write
        seed: seed of the first text; the next text has the seed after it, and so on. The same seed repeats the same
            text (default: a new seed each time)
        dtype: type of the weights and the cache; bfloat16 takes half the memory
    """
    import torch

    from model.glass import open_run

    check_range("--num_samples", num_samples, 1)
    stops = stop or []
    if "" in stops:
        raise Mistake("--stop is empty: write the text before which to stop")
    glass = open_run(checkpoint, device=device)
    glass.gpt.to(getattr(torch, dtype))
    seed = random.getrandbits(32) if seed is None else seed
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    started = time.perf_counter()
    steps = glass.stream(prompt, max_new_tokens, num_texts=num_samples, **sampling)
    first_step = next(steps)  # allocates the cache of all texts, so that a lack of memory is reported first
    say(str(glass), sys.stderr)

    texts = [Continuation(glass.tokenizer, stops) for _ in range(num_samples)]
    heading = "--- sample {} ---\n" if num_samples > 1 else ""
    write_text(heading.format(1) + prompt)
    num_printed = 0  # characters of the first text, without the prompt
    for new_tokens in chain([first_step], steps):
        for text, token in zip(texts, new_tokens.tolist(), strict=True):
            text.add(token)
        certain = texts[0].certain()
        write_text(certain[num_printed:])
        num_printed = len(certain)
        if all(text.has_ended for text in texts):
            break
    write_text(texts[0].text[num_printed:] + "\n")
    for number, text in enumerate(texts[1:], start=2):
        write_text(f"{heading.format(number)}{prompt}{text.text}\n")

    num_tokens = sum(text.num_tokens for text in texts)
    seconds = time.perf_counter() - started
    say(f"{num_tokens:,} tokens in {seconds:.2f} s: {num_tokens / seconds:,.0f} tokens/s", sys.stderr)


def write_text(text: str) -> None:
    """Prints `text` at once, without a line break. Does nothing if Python was started without standard output."""
    if sys.stdout and sys.stdout.isatty():
        say(text, end="")
    else:  # a file or program gets every byte
        print(text, end="", flush=True)


main = program(generate, __doc__)
if __name__ == "__main__":
    sys.exit(main())
