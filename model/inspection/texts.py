"""The texts that a model is measured on."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from model.masks import document_mask, sliding_window_mask

TEXT_WINDOWS = 16
REPEATED_WINDOWS = 8
PERIODS = (8 / 128, 16 / 128, 31 / 128, 50 / 128)  # of repeated tokens, as shares of a window; none is half of it
MAX_TOKENS = 8192  # of a text that is recorded; a head's map of so many takes 128 MiB

Label = Callable[[int], str]  # the text of a token
Kind = Literal["text", "repeated"]


@dataclass(frozen=True, eq=False)
class Texts:
    """N texts of T tokens each, and how the model reads them.

    A probe is one short text, whose maps people look at. Windows are many texts as long as the context, over which
    heads and losses are measured.

    tokens: (N, T), int64.
    labels: each token as text, N lists of T.
    kind: "text", or "repeated" for random tokens that repeat themselves.
    document_ids: (N, T), for a model that attends within a document only; None for others.
    attention_window: how many keys a query of the model sees at most; None for all.
    """

    tokens: Tensor
    labels: list[list[str]]
    kind: Kind = "text"
    document_ids: Tensor | None = None
    attention_window: int | None = None

    @classmethod
    def of(
        cls,
        tokens: Tensor | Sequence,
        label: Label = str,
        *,
        end_of_text: int | None = None,
        **options: Any,
    ) -> "Texts":
        """Of token ids (T,) or (N, T).

        end_of_text: the token that begins a document, for a model that was trained to attend within a document only.
        options: the other fields.
        """
        rows = torch.atleast_2d(torch.as_tensor(tokens, dtype=torch.long))
        if end_of_text is not None:
            options["document_ids"] = (rows == end_of_text).cumsum(-1)
        return cls(rows, [[label(token) for token in row] for row in rows.tolist()], **options)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        """T"""
        return self.tokens.shape[1]

    @property
    def period(self) -> int | None:
        """How many tokens a repeated probe repeats once, see `repeated_tokens`; None for other texts."""
        return self.length // 2 if self.kind == "repeated" else None

    @property
    def _documents(self) -> Tensor:
        """(N, T): the number of each token's document; a text is one where the model does not read them apart."""
        if self.document_ids is None:
            return torch.zeros_like(self.tokens)
        return self.document_ids

    @cached_property
    def visible(self) -> Tensor:
        """Which keys each query sees, (N, T, T): causality, the attention window and documents."""
        seen = sliding_window_mask(self.length, self.attention_window)
        return seen & document_mask(self._documents)[:, 0]

    @cached_property
    def begins(self) -> Tensor:
        """The first token of each text, and of each document where the model reads them apart, (N, T)."""
        is_another = self._documents.diff(dim=1) != 0
        return F.pad(is_another, (1, 0), value=True)

    @cached_property
    def predicted(self) -> Tensor:
        """Which next tokens count for the loss, (N, T - 1): of repeated tokens those that stood there before."""
        if self.kind == "text":
            return torch.ones(len(self), self.length - 1, dtype=torch.bool)
        copies = (self.tokens[:, :, None] == self.tokens[:, None, :]).tril(-1)
        return copies.any(-1)[:, :-1]

    def pieces(self, tokens: int) -> list["Texts"]:
        """The same texts, at most so many tokens at a time, but one text at least."""
        rows = max(1, tokens // self.length)
        if rows >= len(self):
            return [self]
        found = []
        for start in range(0, len(self), rows):
            some = slice(start, start + rows)
            documents = None if self.document_ids is None else self.document_ids[some]
            found.append(replace(self, tokens=self.tokens[some], labels=self.labels[some], document_ids=documents))
        return found

    def to_json(self) -> dict[str, Any]:
        """Without the kind, which is the name under which it is kept."""
        return {
            "tokens": self.tokens.tolist(),
            "labels": self.labels,
            "document_ids": None if self.document_ids is None else self.document_ids.tolist(),
            "attention_window": self.attention_window,
        }

    @classmethod
    def from_json(cls, kind: Kind, about: Mapping[str, Any]) -> "Texts":
        """Raises any error for what `to_json` does not write."""
        tokens = torch.tensor(about["tokens"])
        if tokens.shape[1] > MAX_TOKENS:
            raise ValueError(f"it has a text of more than {MAX_TOKENS} tokens")
        documents = about["document_ids"]
        if documents is not None:
            documents = torch.tensor(documents)
        return cls(tokens, about["labels"], kind, documents, about["attention_window"])


def spread_starts(num_tokens: int, length: int) -> list[int]:
    """Where TEXT_WINDOWS windows begin that lie evenly over so many tokens; fewer if there are not so many."""
    count = max(1, min(TEXT_WINDOWS, num_tokens // length))
    last = max(0, num_tokens - length)
    return [last * i // max(1, count - 1) for i in range(count)]


def repeated_tokens(
    candidates: Collection[int],
    period: int,
    length: int | None = None,
    *,
    first: int | None = None,
    generator: torch.Generator | None = None,
) -> list[int]:
    """Distinct random tokens that repeat themselves, on which heads show that look back for repetitions.

    Args:
        candidates: the token ids to draw from.
        period: how many are drawn, if there are so many.
        length: of the result. None: the tokens are repeated once.
        first: if given, it comes before the random tokens and is never drawn.
        generator: that of the draw. None: one with the seed 0.
    """
    known = sorted(set(candidates) - {first})
    order = torch.randperm(len(known), generator=generator or torch.Generator().manual_seed(0))
    drawn = [known[place] for place in order[:period].tolist()]
    beginning = [] if first is None else [first]
    if length is None:
        length = len(beginning) + 2 * len(drawn)
    copies = 1 + length // max(1, len(drawn))
    return (beginning + copies * drawn)[:length]


def repeated_windows(
    candidates: Collection[int],
    length: int,
    *,
    first: int | None = None,
) -> list[list[int]]:
    """REPEATED_WINDOWS windows of random tokens that repeat themselves over and over, at several periods.

    candidates, first: as in `repeated_tokens`.
    """
    generator = torch.Generator().manual_seed(0)
    windows = []
    for number in range(REPEATED_WINDOWS):
        period = max(1, round(PERIODS[number % len(PERIODS)] * length))
        windows.append(repeated_tokens(candidates, period, length, first=first, generator=generator))
    return windows
