"""Text that a GPT writes, for scripts: prompts of any lengths as one batch, and its tokens as characters."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data.tokenizers import Tokenizer
    from model.gpt import GPT


class TextStream:
    """Turns tokens into text. A character spread over several tokens appears with the last of them.

    Args:
        stops: the text ends before the first of these, none of which is empty. What may become one is held back.

    Attributes:
        tokens: those of the text, with what ended it.
        ended: "stop" or "end_of_text" once the text has ended.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.tokens: list[int] = []
        self.ended: str | None = None
        self.held = ""

    def feed(self, token: int) -> str:
        """The characters that `token` completes; none after the end of the text."""
        if self.ended:
            return ""
        self.tokens.append(token)
        if token == self.tokenizer.end_of_text:
            self.ended = "end_of_text"
            return ""
        try:
            self.held += self.decoder.decode(self.tokenizer.token_bytes(token))
        except KeyError:  # an id without text, where the vocabulary was rounded up
            self.held += self._incomplete() + "\N{REPLACEMENT CHARACTER}"
        met = [place for stop in self.stops if (place := self.held.find(stop)) >= 0]
        if met:
            self.ended = "stop"
            return self.held[: min(met)]
        beginnings = (stop[:length] for stop in self.stops for length in range(1, len(stop)))
        kept = max((len(text) for text in beginnings if self.held.endswith(text)), default=0)
        cut = len(self.held) - kept
        text, self.held = self.held[:cut], self.held[cut:]
        return text

    def end(self) -> str:
        """What is still held back, and a replacement character for an incomplete one."""
        return "" if self.ended == "stop" else self.held + self._incomplete()

    def _incomplete(self) -> str:
        text = self.decoder.decode(b"", final=True)
        self.decoder.reset()
        return text


def write(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    *,
    texts_each: int = 1,
    stops: Sequence[str] = (),
    **options: Any,
) -> tuple[list[TextStream], Iterator[list[str]]]:
    """Continues prompts of any lengths, each as it would be alone, until all texts have ended.

    The first tokens are drawn at once, so that the memory for all texts is there when this returns.

    Args:
        prompts: token ids, at least one each.
        texts_each: how many texts continue each prompt.
        stops: a text ends before the first of these.
        options: of `model.generation.stream`.

    Returns:
        The texts, those of the first prompt first, and an iterator over what each token adds to each of them.
    """
    import torch

    from model.generation import stream

    device = model.token_embedding.weight.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    width = max(map(len, prompts))
    aligned = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    if lengths.min() < width:
        options["lengths"] = lengths.repeat_interleave(texts_each)
    options["stop_token"] = tokenizer.end_of_text
    steps = stream(model, aligned.repeat_interleave(texts_each, dim=0), max_new_tokens, **options)
    first = next(steps).tolist()
    texts = [TextStream(tokenizer, stops) for _ in first]

    def pieces() -> Iterator[list[str]]:
        with closing(steps):
            for tokens in chain([first], (step.tolist() for step in steps)):
                yield [text.feed(token) for text, token in zip(texts, tokens, strict=True)]
                if all(text.ended for text in texts):
                    return

    return texts, pieces()
