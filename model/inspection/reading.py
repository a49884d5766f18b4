"""A reading: what a model made of one text at one moment. `read` makes it.

A GPT adds to one vector for each token, the residual stream: first the embeddings, then what each attention and each
feed-forward makes of the sum so far (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). The
logits are read from the last sum. A reading holds every sum, every part that was added, and the attention maps.

The maps, queries, keys and values are those of `maps.read_maps`, as the model runs. All else is measured without
autocast and in float32 at least, so that rounding does not blur it.

Column t is the position that reads token t and predicts token t + 1.

Shapes: L layers, H heads, T tokens, P parts, D model width, K head width, V vocabulary.
"""

import copy
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.gpt import GPT
from model.inspection.maps import Checks, read_maps
from model.inspection.parts import (
    Vectors,
    blocks_of,
    embedding_tables,
    hooked,
    in_float32,
    replaced,
    run,
    undisturbed,
)
from model.inspection.texts import Label, Texts
from model.mistakes import Mistake

TOP = 5  # likeliest tokens of a position that a page lists
DIGITS = ".4g"  # 4 significant digits, of the figures that a recording keeps


@dataclass(frozen=True, eq=False)
class RecordedReading:
    """What a recording keeps of a reading, and a page draws: T tokens, maps (L, H, T, T), see `Reading.figures`."""

    tokens: list[str]
    maps: Tensor
    figures: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Computed:
    """What one forward pass computed, on the CPU, and the model that did.

    tables: what each embedding table adds, (T, D), by name. feed_forwards: (L, T, D). gpt: a copy of the model as it
    was. All else is as in a `Reading`.
    """

    ids: Tensor
    tables: dict[str, Tensor]
    residual: Tensor
    heads: Tensor
    feed_forwards: Tensor
    logits: Tensor
    gpt: GPT


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """What a model made of one text at one moment: no later change of the model changes it.

    Its tensors are on the CPU and in float32; residual and heads in float64 if the model is. They are the caller's own:
    what is written on them changes nothing that is told of the text.

    ids: (T,), int64. tokens: T texts.
    maps: (L, H, T, T), how much each query takes of each key's value; maps[5, 2] is head 5.2. TransformerLens calls it
        pattern.
    logits: (T, V).
    residual: (2L + 1, T, D), the residual stream after the embeddings, attention 0, feed-forward 0, attention 1, ...
        Before the final norm: the logits are `gpt.unembed(gpt.final_norm(residual[-1]))`.
    heads: (L, H, T, K), what each head gives to its layer's output matrix; TransformerLens calls it z.
    q: (L, H, T, K), the queries, as `attend` gets them: with rotary positions, after they are turned.
    k, v: (L, H, T, K), the keys and values, likewise; those of a group of heads are repeated for each of them.
    checks: whether the maps can be trusted. computed: what is told of the text rests on it.
    label: the text of a token id. replacing, position: as `read` got them.
    title: what read the text, and what was changed in it. page: what shows it.
    """

    ids: Tensor
    tokens: list[str]
    maps: Tensor
    logits: Tensor
    residual: Tensor
    heads: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    checks: Checks
    computed: Computed
    label: Label
    replacing: Vectors
    position: int | None
    title: str = ""
    page: Callable[["Reading"], str] | None = None

    def __repr__(self) -> str:
        return f"Reading({self.title or 'one text'}, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str | None:
        return None if self.page is None else self.page(self)

    @property
    def surprise(self) -> Tensor:
        """(T - 1,): what each next token costs, in bits."""
        next_ids = self.computed.ids[1:]
        nats = F.cross_entropy(self.computed.logits[:-1], next_ids, reduction="none")
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
        logits = self.computed.logits[place_in("at", at, len(self.tokens))]
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
        gpt = self.computed.gpt
        final = self.computed.logits.log_softmax(-1)
        likely = final.exp()
        targets = F.pad(self.computed.ids[1:], (0, 1))[:, None]
        names = ["embeddings"]
        for layer in range(len(self.computed.heads)):
            names += [f"attention {layer}", f"feed-forward {layer}"]
        rows = []
        with torch.no_grad(), undisturbed(gpt):
            for stream in self.computed.residual:
                features = gpt.final_norm(stream.to(gpt.head.weight.device))
                early = gpt.unembed(features).cpu().log_softmax(-1)
                probability = early.gather(-1, targets)[:, 0].exp()
                divergence = (likely * (final - early)).sum(-1) / math.log(2)
                rows.append((early.argmax(-1).tolist(), probability, divergence))
        tokens, probabilities, divergences = zip(*rows, strict=True)
        probability = torch.stack(probabilities)
        probability[:, -1] = math.nan
        return {
            "part": names,
            "token": list(tokens),
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
        logits = self.computed.logits
        targets = torch.cat((self.computed.ids[1:], logits[-1:].argmax(-1)))
        if of is not None:
            targets[place] = whole_number("of, the id of a token,", of, range(logits.shape[-1]))
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
        computed = self.computed
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

    @property
    def figures(self) -> dict[str, Any]:
        """What the model predicted at each token, and why, as JSON, rounded to DIGITS. Where the true next token is
        needed, the last column is None.

        parts, sublayers: names of the P parts of an attribution, and of the 2L + 1 rows of a lens.
        tokens: the text of every id that occurs below.
        bits, rank: T numbers; the rank is 0 for the likeliest. top, top_probability: (T, up to TOP), the likeliest.
        lens: token, probability and divergence, see there.
        attribution: (P, T), to the logit of the true next token; attribution_error: how far their sum is from it.
        """
        lens = self.lens
        logits = self.computed.logits
        next_ids = self.computed.ids[1:]
        parts, error = self._attributed(F.pad(next_ids, (0, 1)))
        top = logits.softmax(-1).topk(min(TOP, logits.shape[-1]))
        wanted = logits[:-1].gather(-1, next_ids[:, None])
        rank = (logits[:-1] > wanted).sum(-1)
        shown = {*top.indices.flatten().tolist()}.union(*lens["token"])
        told = {
            "parts": list(parts),
            "sublayers": lens.pop("part"),
            "tokens": {str(id): self.label(id) for id in sorted(shown)},
            "bits": _until_last(self.surprise),
            "rank": [*rank.tolist(), None],
            "top": top.indices,
            "top_probability": top.values,
            "lens": lens,
            "attribution": [_until_last(part[:-1]) for part in parts.values()],
            "attribution_error": error,
        }
        return as_json(told, DIGITS)

    def recorded(self) -> RecordedReading:
        return RecordedReading(self.tokens, self.maps, self.figures)

    def is_of(self, gpt: GPT) -> bool:
        """Whether the model still has the weights with which this was read."""
        return _same_weights(in_float32(gpt), self.computed.gpt)


@torch.no_grad()
def read(
    gpt: GPT,
    text: Texts,
    *,
    replacing: Vectors | None = None,
    position: int | None = None,
    autocast: torch.dtype | None = None,
    label: Label = str,
) -> Reading:
    """Reads a single text in eval mode, without compiled code.

    Args:
        replacing: vectors that parts give in place of what they compute; position: only at this token, from 0.
        autocast: the maps are computed under autocast to this type, as mixed-precision training computes them.
        label: the text of a token id.

    Raises ValueError for unknown ids, and for more tokens than the model's context.
    """
    edits = replacing or {}
    with replaced(gpt, edits, position):
        (maps, q, k, v), checks = read_maps(gpt, text, autocast)
    computed = _compute(in_float32(gpt), text, edits, position)
    own = {name: getattr(computed, name).clone() for name in ("ids", "logits", "residual", "heads")}
    return Reading(
        tokens=text.labels[0],
        maps=maps,
        q=q,
        k=k,
        v=v,
        checks=checks,
        computed=computed,
        label=label,
        replacing=edits,
        position=position,
        **own,
    )


def _compute(
    gpt: GPT,
    text: Texts,
    replacing: Vectors,
    position: int | None,
) -> Computed:
    """One forward pass without autocast, in which parts give other vectors."""
    blocks = blocks_of(gpt)
    tables = embedding_tables(gpt)
    sublayers = [module for block in blocks for module in (block, block.feed_forward_norm)]
    inputs = [*sublayers, gpt.final_norm]  # what they get is the residual stream
    matrices = [block.attention.output_proj for block in blocks]
    feed_forwards = [block.feed_forward for block in blocks]
    seen: dict[nn.Module, Tensor] = {}
    with (
        undisturbed(gpt),
        replaced(gpt, replacing, position),
        hooked([*inputs, *matrices], [*tables.values(), *feed_forwards], seen.__setitem__),
    ):
        logits = gpt.unembed(run(gpt, text))

    def of(modules: Iterable[nn.Module]) -> Tensor:
        return torch.cat([seen[module] for module in modules]).cpu()

    return Computed(
        ids=text.tokens[0].clone(),
        tables={name: seen[table].flatten(0, -2).cpu() for name, table in tables.items()},  # a batch of 1, or none
        residual=of(inputs),
        heads=of(matrices).unflatten(-1, (gpt.config.num_heads, -1)).transpose(1, 2),
        feed_forwards=of(feed_forwards),
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
    if last is not None and _same_weights(gpt, last):
        return last
    last = copy.deepcopy(gpt)
    _copies[key] = last
    return last


def _same_weights(one: GPT, other: GPT) -> bool:
    return all(map(torch.equal, one.parameters(), other.parameters()))


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
    return whole_number(f"{name}, the place of a token in this text,", place, range(-length, length)) % length


def whole_number(name: str, value: Any, allowed: range) -> int:
    """The value as an int. Raises a `Mistake` for one that is not among the allowed ones."""
    if value not in allowed:
        raise Mistake(f"{name} must be a whole number from {allowed[0]} to {allowed[-1]}, not {value!r}")
    return int(value)


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
