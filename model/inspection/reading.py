"""A reading: what a model made of one text at one moment. `read` makes it.

A GPT adds to one vector for each token, the residual stream: first the embeddings, then what each attention and each
feed-forward makes of the sum so far (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). The
logits are read from the last sum. A reading holds every sum, every part that was added, and the attention maps.

The maps are measured by `maps.read_maps`, as the model runs. All else is measured without autocast and in float32 at
least, so that rounding does not blur it.

Column t is the position that reads token t and predicts token t + 1.

Shapes: L layers, H heads, T tokens, P parts, D model width, K head width, V vocabulary.
"""

import copy
import math
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.maps import Attend, Checks, by_head, observed, read_maps
from model.inspection.parts import (
    Vectors,
    blocks_of,
    embedding_tables,
    hooked,
    in_float32,
    replaced,
    undisturbed,
)
from model.inspection.texts import Label
from model.mistakes import Mistake

TOP = 5  # likeliest tokens of a position that a page lists
DIGITS = ".4g"  # 4 significant digits, of what `Reading.to_json` tells


@dataclass(frozen=True)
class Computed:
    """What one forward pass computed, on the CPU, and the model that did.

    tables: what each embedding table adds, (T, D), by name.
    residual: (2L + 1, T, D), the stream after the embeddings, attention 0, feed-forward 0, attention 1, ...
    q, k, v: (L, H, T, K) as `attend` gets them, those of a group of heads repeated for each.
    heads: (L, H, T, K), what each head gives to the output matrix.
    feed_forwards: (L, T, D).
    logits: (T, V).
    gpt: a copy of the model as it was.
    """

    tables: dict[str, Tensor]
    residual: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    heads: Tensor
    feed_forwards: Tensor
    logits: Tensor
    gpt: GPT


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """What a model made of one text at one moment: no later change of the model changes it.

    Its tensors are on the CPU, in float32, or in float64 if the model is. Each time one is asked for it is a copy,
    which may be written to.

    text_ids, weights: what `ids` and `maps` are copies of. tokens: T texts. checks: whether the maps can be trusted.
    computed: the forward pass. None in a recording, which has `figures` in its place: what `to_json` tells.
    label: the text of a token id. title: what read the text, and what was changed in it. page: what shows it.
    replacing, position: as `read` got them.
    """

    text_ids: Tensor
    tokens: list[str]
    weights: Tensor
    checks: Checks
    computed: Computed | None = None
    figures: dict[str, Any] | None = None
    label: Label = str
    replacing: Vectors = field(default_factory=dict)
    position: int | None = None
    title: str = ""
    page: Callable[["Reading"], str] | None = None

    def __repr__(self) -> str:
        return f"Reading({self.title or 'one text'}, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str | None:
        return None if self.page is None else self.page(self)

    # What was computed.

    @property
    def ids(self) -> Tensor:
        """(T,), int64."""
        return self.text_ids.clone()

    @property
    def maps(self) -> Tensor:
        """(L, H, T, T): how much each query takes of each key's value; maps[5, 2] is head 5.2.

        TransformerLens calls it pattern.
        """
        return self.weights.clone().float()

    @property
    def logits(self) -> Tensor:
        """(T, V)"""
        return self._all.logits.clone()

    @property
    def residual(self) -> Tensor:
        """(2L + 1, T, D): the residual stream after the embeddings, attention 0, feed-forward 0, attention 1, ...

        Before the final norm: the logits are `gpt.unembed(gpt.final_norm(residual[-1]))`.
        """
        return self._all.residual.clone()

    @property
    def heads(self) -> Tensor:
        """(L, H, T, K): what each head gives to its layer's output matrix; TransformerLens calls it z."""
        return self._all.heads.clone()

    @property
    def q(self) -> Tensor:
        """(L, H, T, K): the queries, as `attend` gets them: with rotary positions, after they are turned."""
        return self._all.q.clone()

    @property
    def k(self) -> Tensor:
        """(L, H, T, K): the keys, likewise; those of a group of heads are repeated for each of them."""
        return self._all.k.clone()

    @property
    def v(self) -> Tensor:
        """(L, H, T, K): the values, repeated as the keys are."""
        return self._all.v.clone()

    @property
    def _all(self) -> Computed:
        if self.computed is None:
            raise Mistake("a recording keeps maps and figures of a text, no tensors: open_run(...).read(text) has them")
        return self.computed

    # What is told next.

    @property
    def surprise(self) -> Tensor:
        """(T - 1,): what each next token costs, in bits."""
        next_ids = self.text_ids[1:]
        nats = F.cross_entropy(self.logits[:-1], next_ids, reduction="none")
        return nats / math.log(2)

    @property
    def loss(self) -> float:
        """Nats per predicted token; NaN for a single token."""
        return self.surprise.mean().item() * math.log(2)

    def top(
        self,
        at: int = -1,
        count: int = 5,
    ) -> list[tuple[str, float]]:
        """The likeliest next tokens after token `at`, as texts with their probabilities, the likeliest first."""
        logits = self.logits[place_in("at", at, len(self.tokens))]
        count = _whole_number("count", count, range(1, len(logits) + 1))
        probabilities, ids = logits.softmax(-1).topk(count)
        texts = [self.label(token) for token in ids.tolist()]
        return list(zip(texts, probabilities.tolist(), strict=True))

    @property
    def lens(self) -> dict[str, Any]:
        """What the model would predict after each of `residual`'s rows, through its own final norm, head and soft-cap:
        the logit lens (nostalgebraist 2020, "interpreting GPT: the logit lens",
        https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru), there after whole blocks.

        Early rows were never trained to be read like this, so it shows what is written already, not all that is known.

        part: names of the rows, such as "attention 3". token: 2L + 1 lists of T ids, the likeliest. probability:
        (2L + 1, T), of the true next token; NaN after the last. divergence: (2L + 1, T), of this prediction from the
        final one, in bits (Kullback-Leibler).
        """
        gpt = self._all.gpt
        residual = self._all.residual
        final = self.logits.log_softmax(-1)
        targets = F.pad(self.text_ids[1:], (0, 1))[:, None]
        parts = []
        tokens = []
        probabilities = []
        divergences = []
        for row, stream in enumerate(residual):
            sublayer = "attention" if row % 2 else "feed-forward"
            parts.append(f"{sublayer} {(row - 1) // 2}" if row else "embeddings")
            with torch.no_grad(), undisturbed(gpt):
                features = gpt.final_norm(stream.to(gpt.head.weight.device))
                early = gpt.unembed(features).cpu().log_softmax(-1)
            of_next = early.gather(-1, targets)[:, 0]
            divergence = (final.exp() * (final - early)).sum(-1)
            tokens.append(early.argmax(-1).tolist())
            probabilities.append(of_next.exp())
            divergences.append(divergence / math.log(2))
        probability = torch.stack(probabilities)
        probability[:, -1] = math.nan
        return {
            "part": parts,
            "token": tokens,
            "probability": probability,
            "divergence": torch.stack(divergences),
        }

    def attribution(
        self,
        at: int = -1,
        of: int | None = None,
    ) -> dict[str, float]:
        """What each part adds to the logit of a token, by the part's name; their sum is the logit before the soft-cap.

        Args:
            at: the token that is read last, from 0 or from the end.
            of: id of the predicted token; None for the true next one, after the last token for the likeliest.
        """
        place = place_in("at", at, len(self.tokens))
        logits = self._all.logits
        targets = torch.cat((self.text_ids[1:], logits[-1:].argmax(-1)))
        if of is not None:
            known = range(logits.shape[-1])
            targets[place] = _whole_number("of, the id of a token,", of, known)
        parts, _ = self._attributed(targets)
        return {name: part[place].item() for name, part in parts.items()}

    def _attributed(self, targets: Tensor) -> tuple[dict[str, Tensor], float]:
        """What each part adds to the logits of `targets` (T,), (T,) in float64 by the part's name.

        Before the soft-cap, a logit is the product of the token's row in the head and the normalised residual stream,
        which is a sum. With the scale of each norm fixed at what it is, the logit is a sum too, with one term for each
        part that was added: a table, a head, a feed-forward or a bias ("direct logit attribution" in TransformerLens,
        which folds the norms into the weights first). What a part does through later layers is not in its term. The
        biases of q, k, v and of a feed-forward's hidden layer act inside a head or feed-forward and count as its part.

        Also returned is the largest difference between the sum of the parts and the model's own logit, but for the last
        token, divided by the largest of these logits where that is above 1, because rounding errors grow with them; NaN
        for a single token.
        """
        computed = self._all
        gpt = computed.gpt
        device = gpt.head.weight.device
        rows = gpt.head.weight[targets.to(device)].detach().cpu()
        stream = computed.residual[-1]
        embeddings = torch.stack(list(computed.tables.values())).sum(0)
        added: dict[str, Tensor | None] = {}  # to the stream, (T, D), or a bias (D,)
        for name, vectors in computed.tables.items():
            added[name] = _share_of_norm(gpt.embedding_norm, vectors, embeddings)
        added["embedding bias"] = getattr(gpt.embedding_norm, "bias", None)
        for layer, block in enumerate(blocks_of(gpt)):
            output = block.attention.output_proj
            down = block.feed_forward.down_proj
            heads = computed.heads[layer]  # (H, T, K)
            matrices = output.weight.split(heads.shape[-1], dim=1)  # for each head (D, K)
            for head, matrix in enumerate(matrices):
                added[f"head {layer}.{head}"] = _double(heads[head]) @ _double(matrix).T
            added[f"attention bias {layer}"] = output.bias
            feed_forward = _double(computed.feed_forwards[layer])
            added[f"feed-forward {layer}"] = feed_forward if down.bias is None else feed_forward - _double(down.bias)
            added[f"feed-forward bias {layer}"] = down.bias
        parts = {}
        for name, given in added.items():
            if given is not None:
                normed = _share_of_norm(gpt.final_norm, given, stream)
                parts[name] = (normed * rows).sum(-1)
        bias = getattr(gpt.final_norm, "bias", None)
        if bias is not None:
            parts["final norm bias"] = rows.double() @ _double(bias)

        with torch.no_grad():
            features = gpt.final_norm(stream.to(device)).cpu()
        logits = (features * rows).sum(-1).double()[:-1]
        sums = torch.stack(list(parts.values())).sum(0)[:-1]
        largest = max([1.0, *logits.abs().tolist()])
        error = max((sums - logits).abs().tolist(), default=math.nan)
        return parts, error / largest

    # What a page draws beside the maps, and a recording keeps.

    def to_json(self) -> dict[str, Any]:
        """What the model predicted at each token, and why, rounded to DIGITS. Where the true next token is needed, the
        last column is None.

        checks
        parts, sublayers: names of the P parts of an attribution, and of the 2L + 1 rows of a lens.
        tokens: the text of every id that occurs below.
        bits, rank: T numbers; the rank is 0 for the likeliest. top, top_probability: (T, up to TOP), the likeliest.
        lens: token, probability and divergence, see there.
        attribution: (P, T), to the logit of the true next token; attribution_error: how far their sum is from it.
        """
        if self.figures is not None:
            return self.figures
        lens = self.lens
        logits = self.logits
        next_ids = self.text_ids[1:]
        parts, error = self._attributed(F.pad(next_ids, (0, 1)))
        surprise = self.surprise
        count = min(TOP, logits.shape[-1])
        top = logits.softmax(-1).topk(count)
        wanted = logits[:-1].gather(-1, next_ids[:, None])
        likelier = (logits[:-1] > wanted).sum(-1).tolist()
        rank: list[int | None] = []
        for count, bits in zip(likelier, surprise, strict=True):
            rank.append(count if bits.isfinite() else None)
        shown = set(top.indices.flatten().tolist())
        shown.update(*lens["token"])
        tokens = {str(id): self.label(id) for id in sorted(shown)}
        told = {
            "checks": asdict(self.checks),
            "parts": list(parts),
            "sublayers": lens.pop("part"),
            "tokens": tokens,
            "bits": _until_last(surprise),
            "rank": [*rank, None],
            "top": top.indices,
            "top_probability": top.values,
            "lens": lens,
            "attribution": [_until_last(part[:-1]) for part in parts.values()],
            "attribution_error": error,
        }
        return as_json(told, DIGITS)


@torch.no_grad()
def read(
    gpt: GPT,
    tokens: Tensor | Sequence[int],
    *,
    document_ids: Tensor | None = None,
    replacing: Vectors | None = None,
    position: int | None = None,
    autocast: torch.dtype | None = None,
    label: Label = str,
) -> Reading:
    """Reads one text, (T,) or (1, T), in eval mode, without compiled code.

    Args:
        document_ids: (T,), for a model that attends within a document only.
        replacing: vectors that parts give in place of what they compute; position: only at this token, from 0.
        autocast: the maps are computed under autocast to this type, as mixed-precision training computes them.
        label: the text of a token id.

    Raises ValueError for what is not one sequence of known ids, and for more tokens than the model's context.
    """
    sequence = gpt.known_ids(one_sequence(tokens))
    documents = document_ids
    if documents is not None:
        documents = documents.to(sequence.device).view(1, -1)
    edits = replacing or {}
    with replaced(gpt, edits, position):
        maps, checks = read_maps(gpt, sequence, documents, autocast)
    computed = _compute(in_float32(gpt), sequence, documents, edits, position)
    ids = sequence[0].cpu().clone()
    labels = [label(token) for token in ids.tolist()]
    return Reading(
        ids,
        labels,
        maps,
        checks,
        computed,
        label=label,
        replacing=edits,
        position=position,
    )


def one_sequence(tokens: Tensor | Sequence[int]) -> Tensor:
    """Token ids (T,) or (1, T) as (1, T). Raises ValueError for no tokens, or more than one sequence."""
    sequence = torch.atleast_2d(torch.as_tensor(tokens))
    if sequence.ndim != 2 or len(sequence) != 1 or not sequence.numel():
        raise ValueError(f"one sequence of at least one token is needed, (T,) or (1, T), not {tuple(sequence.shape)}")
    return sequence


def _compute(
    gpt: GPT,
    sequence: Tensor,
    documents: Tensor | None,
    replacing: Vectors,
    position: int | None,
) -> Computed:
    """One forward pass without autocast, in which parts give other vectors."""
    blocks = blocks_of(gpt)
    tables = embedding_tables(gpt)
    sublayers = [module for block in blocks for module in (block, block.feed_forward_norm)]
    inputs = [*sublayers, gpt.final_norm]  # what they get is the residual stream
    matrices = [block.attention.output_proj for block in blocks]
    outputs = [*tables.values(), *(block.feed_forward for block in blocks)]
    seen: dict[nn.Module, Tensor] = {}
    calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def see(_: Attend, q: Tensor, k: Tensor, v: Tensor, __: Tensor) -> None:
        calls.append((q, by_head(k, q), by_head(v, q)))

    with (
        undisturbed(gpt),
        replaced(gpt, replacing, position),
        hooked([*inputs, *matrices], outputs, seen.__setitem__),
        observed(gpt, see),
    ):
        logits = gpt(sequence, document_ids=documents)
    queries, keys, values = zip(*calls, strict=True)
    merged = torch.cat([seen[matrix] for matrix in matrices])  # (L, T, H K)
    heads = merged.unflatten(-1, (gpt.config.num_heads, -1))
    added = {}
    for name, table in tables.items():
        added[name] = seen[table].flatten(0, -2).cpu()  # positions have no batch axis
    return Computed(
        tables=added,
        residual=torch.cat([seen[module] for module in inputs]).cpu(),
        q=torch.cat(queries).cpu(),
        k=torch.cat(keys).cpu(),
        v=torch.cat(values).cpu(),
        heads=heads.transpose(1, 2).cpu(),
        feed_forwards=torch.cat([seen[block.feed_forward] for block in blocks]).cpu(),
        logits=logits[0].cpu(),
        gpt=_copy_of(gpt),
    )


# By the model, and where its weights are, the last copy that a reading holds.
_copies: weakref.WeakValueDictionary[tuple, GPT] = weakref.WeakValueDictionary()


def _copy_of(gpt: GPT) -> GPT:
    """The model as it is now. Readings of the same weights share one copy, which goes with the last of them."""
    weight = gpt.head.weight
    key = id(gpt), weight.device, weight.dtype
    last = _copies.get(key)
    if last is not None and all(map(torch.equal, gpt.parameters(), last.parameters())):
        return last
    last = copy.deepcopy(gpt)
    _copies[key] = last
    return last


def _share_of_norm(norm: nn.Module, x: Tensor, whole: Tensor) -> Tensor:
    """What a summand x of `whole` (N, D) adds to norm(whole), with the scale that the norm gives to it; in float64."""
    x, whole = _double(x), _double(whole)
    if isinstance(norm, nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
        squares = whole.var(-1, correction=0, keepdim=True)
    elif isinstance(norm, nn.RMSNorm):
        squares = whole.square().mean(-1, keepdim=True)
    else:
        return x
    x = x * torch.rsqrt(squares + norm.eps)
    return x if norm.weight is None else x * _double(norm.weight)


def _double(x: Tensor) -> Tensor:
    return x.detach().cpu().double()


def _until_last(x: Tensor) -> Tensor:
    """(T - 1,) -> (T,): NaN for the last token, of which no next one is known."""
    return F.pad(x, (0, 1), value=math.nan)


def place_in(name: str, place: Any, length: int) -> int:
    """A token's place from 0, in a text of so many tokens. Raises a `Mistake` where there is no such token."""
    return _whole_number(f"{name}, the place of a token in this text,", place, range(-length, length)) % length


def _whole_number(name: str, value: Any, allowed: range) -> int:
    """The value as an int. Raises a `Mistake` for what is no whole number, or none of the allowed ones."""
    try:
        number = operator.index(value)
    except TypeError:
        raise Mistake(f"{name} must be a whole number, not {value!r}") from None
    if number not in allowed:
        raise Mistake(f"{name} must be from {allowed[0]} to {allowed[-1]}, not {number}")
    return number


def as_json(value: Any, digits: str) -> Any:
    """As JSON has it: arrays and tensors as lists, None for what is not finite.

    digits: how floating-point numbers are rounded, as in a format string: ".4g" is to four significant digits.
    """
    if isinstance(value, float):  # first, for there may be a million
        return float(f"{value:{digits}}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [as_json(item, digits) for item in value]
    if isinstance(value, Mapping):
        return {name: as_json(item, digits) for name, item in value.items()}
    return as_json(value.tolist(), digits) if hasattr(value, "tolist") else value
