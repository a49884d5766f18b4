"""What a GPT writes, as characters: text that grows token by token, up to where it ends."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data.tokenizers import Tokenizer


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
        return self._give(
            len(self.held) - max((len(text) for text in beginnings if self.held.endswith(text)), default=0)
        )

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
