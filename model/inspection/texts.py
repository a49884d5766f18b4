"""The texts on which a model is measured, and how they are chosen."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, cycle, islice
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from model.masks import document_ids, document_mask, sliding_window_mask

# How many windows of each kind are measured: few enough that a recording takes as long as a few training steps.
TEXT_WINDOWS = 16
REPEATED_WINDOWS = 8
# As shares of a window. All are below half, so that the first half of a window repeats some tokens too.
PERIODS = (8 / 128, 16 / 128, 31 / 128, 50 / 128)
MAX_TOKENS = 8192  # in a recorded text: the map of a head takes 128 MiB at this length

Label = Callable[[int], str]  # the text of a token
Kind = Literal["text", "repeated"]


@dataclass(frozen=True, eq=False)
class Texts:
    """N texts of T tokens each, and to which of these tokens the model may attend.

    A probe is one short text, whose maps people look at. Windows are many texts as long as the context, on which heads
    and losses are measured.

    tokens: (N, T), int64.
    labels: each token as text, N lists of T.
    kind: "text", or "repeated" for random tokens that repeat themselves.
    document_ids: (N, T), if the model attends within a document only, else None.
    attention_window: the largest number of keys that a query of the model sees; None if there is no limit.
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
        """Makes texts of token ids (T,) or (N, T).

        end_of_text: the token that begins a document, if the model was trained to attend within a document only.
        options: values for the other fields.
        """
        rows = torch.atleast_2d(torch.as_tensor(tokens, dtype=torch.long))
        options.setdefault("document_ids", document_ids(rows, end_of_text))
        return cls(rows, [[label(token) for token in row] for row in rows.tolist()], **options)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def length(self) -> int:
        """T"""
        return self.tokens.shape[1]

    @property
    def period(self) -> int | None:
        """After how many tokens a repeated probe repeats itself; None for other texts."""
        return self.length // 2 if self.kind == "repeated" else None

    @property
    def _documents(self) -> Tensor:
        """The number of each token's document, (N, T). Without document ids a whole text is one document."""
        if self.document_ids is None:
            return torch.zeros_like(self.tokens)
        return self.document_ids

    @cached_property
    def visible(self) -> Tensor:
        """Which keys each query sees, (N, T, T): none that are later, beyond the window, or in another document."""
        in_window = sliding_window_mask(self.length, self.attention_window)
        return in_window & document_mask(self._documents)[:, 0]

    @cached_property
    def begins(self) -> Tensor:
        """Which tokens are the first of a text or of a document, (N, T)."""
        is_new_document = self._documents.diff(dim=1) != 0
        return F.pad(is_new_document, (1, 0), value=True)

    @cached_property
    def predicted(self) -> Tensor:
        """Which next tokens count for the loss, (N, T - 1): all; in repeated text, those after a repeated token."""
        if self.kind == "text":
            return torch.ones(len(self), self.length - 1, dtype=torch.bool)
        copies = (self.tokens[:, :, None] == self.tokens[:, None, :]).tril(-1)
        return copies.any(-1)[:, :-1]

    def pieces(self, tokens: int) -> list["Texts"]:
        """Splits the texts into pieces of at most `tokens` tokens. A longer text is a piece of its own."""
        count = max(1, tokens // self.length)
        pieces = []
        for start in range(0, len(self), count):
            rows = slice(start, start + count)
            documents = None if self.document_ids is None else self.document_ids[rows]
            pieces.append(replace(self, tokens=self.tokens[rows], labels=self.labels[rows], document_ids=documents))
        return pieces

    def to_json(self) -> dict[str, Any]:
        """Leaves out `kind`, which is the key of the result in probe.json."""
        return {
            "tokens": self.tokens.tolist(),
            "labels": self.labels,
            "document_ids": None if self.document_ids is None else self.document_ids.tolist(),
            "attention_window": self.attention_window,
        }

    @classmethod
    def from_json(cls, kind: Kind, stored: Mapping[str, Any]) -> "Texts":
        """The inverse of `to_json`. May raise any error for other input."""
        tokens = torch.tensor(stored["tokens"])
        if tokens.shape[1] > MAX_TOKENS:
            raise ValueError(f"it has a text of more than {MAX_TOKENS} tokens")
        documents = stored["document_ids"] and torch.tensor(stored["document_ids"])
        return cls(tokens, stored["labels"], kind, documents, stored["attention_window"])


def spread_starts(num_tokens: int, length: int) -> list[int]:
    """Returns where TEXT_WINDOWS windows begin, spread evenly over the tokens; fewer if the text is short."""
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
    """Draws distinct random tokens and repeats them. On them heads show whether they look back for repetitions.

    Args:
        candidates: the token ids to draw from.
        period: how many tokens to draw; all candidates if there are fewer.
        length: how many tokens to return; None returns the drawn tokens twice.
        first: an optional token that comes before the random tokens and is never drawn.
        generator: draws the tokens; None is a new one with the seed 0.
    """
    sorted_candidates = sorted(set(candidates) - {first})
    order = torch.randperm(len(sorted_candidates), generator=generator or torch.Generator().manual_seed(0))
    drawn = [sorted_candidates[index] for index in order[:period].tolist()]
    beginning = [] if first is None else [first]
    if length is None:
        length = len(beginning) + 2 * len(drawn)
    return [*islice(chain(beginning, cycle(drawn)), length)]


def repeated_windows(candidates: Collection[int], length: int, *, first: int | None = None) -> list[list[int]]:
    """Returns windows of random tokens, which repeat over and over with PERIODS in turn.

    candidates, first: as in `repeated_tokens`.
    """
    generator = torch.Generator().manual_seed(0)
    windows = []
    for share in islice(cycle(PERIODS), REPEATED_WINDOWS):
        period = max(1, round(share * length))
        windows.append(repeated_tokens(candidates, period, length, first=first, generator=generator))
    return windows
