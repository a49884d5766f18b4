"""A reading: what a model made of one text at one moment. `read` makes it.

A GPT adds to one vector for each token, the residual stream: first the embeddings, then what each attention and each
feed-forward makes of the sum so far (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). The
logits are read from the last sum. A reading holds every sum, every part that was added, and the attention maps.

For the maps, every layer's call of `attend` is observed, and the layer is then asked what it makes of the identity in
place of the values: its weights, whatever `attend` computes. `Checks` say whether the maps can be trusted. All else is
measured without autocast and in float32 at least, so that rounding does not blur it.

Column t is the position that reads token t and predicts token t + 1.

Shapes: L layers, H heads, T tokens, P parts, D model width, K head width, V vocabulary.
"""

import copy
import math
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.checks import Mistake
from model.gpt import GPT
from model.inspection.parts import (
    Attend,
    Vectors,
    blocks_of,
    by_head,
    embedding_tables,
    hooked,
    in_float32,
    observed,
    replaced,
    undisturbed,
    weights_of,
)
from model.inspection.texts import Label

TOP = 5  # likeliest tokens of a position that a page lists
LOGITS_AT_ONCE = 2**21  # of a lens: 8 MiB, whatever the vocabulary
DIGITS = ".4g"  # 4 significant digits, of what `Reading.to_json` tells


@dataclass(frozen=True)
class Checks:
    """Whether maps can be trusted, as numbers of which 0 is best; `verdicts` judges them. NaN for a diverged model.

    precision: the type that attention was computed in, such as "bfloat16", which bounds the fidelity to be expected.
    fidelity: max |weights @ values - what `attend` returned|, over all layers. Where the largest value of a layer is
        above 1, its difference is divided by that value, because rounding errors grow with the values. It is large for
        an `attend` that is not linear in the values or mixes heads.
    causality: the largest change of any logit before token j when token j is changed; beyond rounding, a leak. Two
        tokens are changed.
    by_layer: for each layer "fidelity", "future", the largest weight on a later token, "outside", how far a weight lies
        outside [0, 1], and "random", by how much two calls with the same q, k and v differ, relative as fidelity is.
    changed_token: the one whose change moved the logits before it most.
    noise: by how much the logits change when the same tokens are read again. logits: the largest of them.
    """

    precision: str
    fidelity: float
    causality: float
    by_layer: Mapping[str, Sequence[float]]
    changed_token: int = 0
    noise: float = 0.0
    logits: float = 1.0

    @classmethod
    def worst(cls, read: Sequence["Checks"]) -> "Checks":
        """Of all that a model has read; NaN if one is."""
        names = ("fidelity", "causality", "noise", "logits")
        figures = {name: np.max([getattr(one, name) for one in read]).item() for name in names}
        by_layer = {name: np.max([one.by_layer[name] for one in read], axis=0).tolist() for name in read[0].by_layer}
        token = max(read, key=lambda one: one.causality).changed_token
        return cls(read[0].precision, by_layer=by_layer, changed_token=token, **figures)


@dataclass(frozen=True)
class Computed:
    """What one forward pass computed, on the CPU, as the model's own types.

    tables: what each embedding table adds, (T, D), by name.
    embeddings: (T, D), the sum of `tables`, which the embedding norm gets.
    residual: (2L + 1, T, D), the stream after the embeddings, attention 0, feed-forward 0, attention 1, ...
    q, k, v: (L, H, T, K) as `attend` gets them, those of a group of heads repeated for each.
    heads: (L, H, T, K), what each head gives to the output matrix.
    feed_forwards: (L, T, D).
    features: (T, D), the last of `residual` after the final norm; the head turns it into `logits`, (T, V).
    """

    tables: dict[str, Tensor]
    embeddings: Tensor
    residual: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    heads: Tensor
    feed_forwards: Tensor
    features: Tensor
    logits: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """What a model made of one text at one moment: no later change of the model changes it.

    Its tensors are on the CPU, in float32. Each time one is asked for it is a copy, which may be written to.

    text_ids, weights: what `ids` and `maps` are copies of. tokens: T texts. checks: whether the maps can be trusted.
    computed, readout: the forward pass, and the model's weights of that moment; None in a recording, which has what
    `to_json` tells, `figures`, in their place.
    label: the text of a token id. title: what read the text, and what was changed in it. page: what shows it.
    replacing, position: as `read` got them.
    """

    text_ids: Tensor
    tokens: list[str]
    weights: Tensor
    checks: Checks
    computed: Computed | None = None
    readout: GPT | None = None
    figures: dict[str, Any] | None = None
    label: Label = str
    title: str = ""
    replacing: Vectors = field(default_factory=dict)
    position: int | None = None
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
        return _own(self.weights)

    @property
    def logits(self) -> Tensor:
        """(T, V)"""
        return _own(self._all.logits)

    @property
    def residual(self) -> Tensor:
        """(2L + 1, T, D): the residual stream after the embeddings, attention 0, feed-forward 0, attention 1, ...

        Before the final norm: the logits are `gpt.unembed(gpt.final_norm(residual[-1]))`.
        """
        return _own(self._all.residual)

    @property
    def heads(self) -> Tensor:
        """(L, H, T, K): what each head gives to its layer's output matrix; TransformerLens calls it z."""
        return _own(self._all.heads)

    @property
    def q(self) -> Tensor:
        """(L, H, T, K): the queries, as `attend` gets them: with rotary positions, after they are turned."""
        return _own(self._all.q)

    @property
    def k(self) -> Tensor:
        """(L, H, T, K): the keys, likewise; those of a group of heads are repeated for each of them."""
        return _own(self._all.k)

    @property
    def v(self) -> Tensor:
        """(L, H, T, K): the values, repeated as the keys are."""
        return _own(self._all.v)

    @property
    def _all(self) -> Computed:
        if self.computed is None:
            raise Mistake("a recording keeps maps and figures of a text, no tensors: open_run(...).read(text) has them")
        return self.computed

    # What is told next.

    @property
    def surprise(self) -> Tensor:
        """(T - 1,): what each next token costs, in bits."""
        return F.cross_entropy(self.logits[:-1], self.text_ids[1:], reduction="none") / math.log(2)

    @property
    def loss(self) -> float:
        """Nats per predicted token; NaN for a single token."""
        return self.surprise.mean().item() * math.log(2)

    def top(self, at: int = -1, count: int = 5) -> list[tuple[str, float]]:
        """The likeliest next tokens after token `at`, as texts with their probabilities, the likeliest first."""
        place = self._place(at)
        count = min(_integer("count", count, 1), self._all.logits.shape[-1])
        probabilities, ids = self.logits[place].softmax(-1).topk(count)
        return list(zip(map(self.label, ids.tolist()), probabilities.tolist(), strict=True))

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
        computed, readout = self._all, self.readout
        device = readout.head.weight.device
        targets = F.pad(self.text_ids[1:], (0, 1)).to(device)[:, None]
        pieces = []
        with torch.no_grad(), undisturbed(readout):
            for positions in torch.arange(len(targets)).split(max(1, LOGITS_AT_ONCE // computed.logits.shape[-1])):
                final = computed.logits[positions].to(device).log_softmax(-1)
                rows = []
                for stream in computed.residual[:, positions].to(device):
                    early = readout.unembed(readout.final_norm(stream)).log_softmax(-1)
                    divergence = (final.exp() * (final - early)).sum(-1) / math.log(2)
                    rows.append((early.argmax(-1), early.gather(-1, targets[positions])[:, 0].exp(), divergence))
                pieces.append([torch.stack(of_rows) for of_rows in zip(*rows, strict=True)])
        token, probability, divergence = (torch.cat(parts, dim=-1).cpu() for parts in zip(*pieces, strict=True))
        probability[:, -1] = math.nan
        layers = [f"{part} {layer}" for layer in range(len(self.weights)) for part in ("attention", "feed-forward")]
        names = ["embeddings", *layers]
        return {"part": names, "token": token.tolist(), "probability": probability, "divergence": divergence}

    def attribution(self, at: int = -1, of: int | None = None) -> dict[str, float]:
        """What each part adds to the logit of a token, by the part's name; their sum is the logit before the soft-cap.

        Args:
            at: the token that is read last, from 0 or from the end.
            of: id of the predicted token; None for the true next one, after the last token for the likeliest.
        """
        place, vocabulary = self._place(at), self._all.logits.shape[-1]
        if of is None:
            is_last = place == len(self.text_ids) - 1
            target = self._all.logits[-1].argmax() if is_last else self.text_ids[place + 1]
        else:
            target = torch.tensor(_integer("of, the id of a token,", of, 0, vocabulary - 1))
        parts, _ = self._attributed(slice(place, place + 1), target[None])
        return {name: part.item() for name, part in parts.items()}

    def _attributed(self, positions: slice, targets: Tensor) -> tuple[dict[str, Tensor], float]:
        """What each part adds to the logits of `targets` (N,) at N positions, (N,) in float64 by the part's name.

        Before the soft-cap, a logit is the product of the token's row in the head and the normalised residual stream,
        which is a sum. With the scale of each norm fixed at what it is, the logit is a sum too, with one term for each
        part that was added: a table, a head, a feed-forward or a bias ("direct logit attribution" in TransformerLens,
        which folds the norms into the weights first). What a part does through later layers is not in its term. The
        biases of q, k, v and of a feed-forward's hidden layer act inside a head or feed-forward and count as its part.

        Also returned is the largest difference between the sum of the parts and the model's own logit, divided by the
        largest of these logits where that is above 1, because rounding errors grow with them; NaN without any target.
        """
        computed, gpt = self._all, self.readout
        rows = gpt.head.weight[targets.to(gpt.head.weight.device)].detach().cpu()
        # (N, D): what features, the residual stream and what the embedding norm gets are multiplied with.
        of_features = rows.double()
        ends = _scale_of(gpt.final_norm, computed.residual[-1, positions].double())
        begins = _scale_of(gpt.embedding_norm, computed.embeddings[positions].double())
        of_stream = _before_norm(gpt.final_norm, of_features) * ends
        of_tables = _before_norm(gpt.embedding_norm, of_stream) * begins
        parts: dict[str, Tensor] = {}

        def add(name: str, vectors: Tensor | None, direction: Tensor) -> None:
            """A part that adds these vectors (N, D), or a bias (D,), if there is one."""
            if vectors is not None:
                parts[name] = (_double(vectors) * direction).sum(-1)

        for name, vectors in computed.tables.items():
            add(name, vectors[positions], of_tables)
        add("embedding bias", getattr(gpt.embedding_norm, "bias", None), of_stream)
        for layer, block in enumerate(blocks_of(gpt)):
            output, down = block.attention.output_proj, block.feed_forward.down_proj
            heads = computed.heads[layer, :, positions].double()  # (H, N, K)
            written = (of_stream @ _double(output.weight)).unflatten(-1, (len(heads), -1)).transpose(0, 1)
            for head, of_head in enumerate((heads * written).sum(-1)):
                parts[f"head {layer}.{head}"] = of_head
            add(f"attention bias {layer}", output.bias, of_stream)
            added = computed.feed_forwards[layer, positions].double()
            add(f"feed-forward {layer}", added if down.bias is None else added - _double(down.bias), of_stream)
            add(f"feed-forward bias {layer}", down.bias, of_stream)
        add("final norm bias", getattr(gpt.final_norm, "bias", None), of_features)

        if not len(targets):
            return parts, math.nan
        logits = (computed.features[positions] * rows).sum(-1).double()
        errors = (torch.stack(list(parts.values())).sum(0) - logits).abs()
        return parts, (errors.max() / logits.abs().max().clamp(min=1)).item()

    def _place(self, at: int) -> int:
        """A token's place from 0. Raises a `Mistake` where there is no such token."""
        count = len(self.text_ids)
        return _integer("at, the place of a token in this text,", at, -count, count - 1) % count

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
        return self.figures or as_json(self._measured, DIGITS)

    @cached_property
    def _measured(self) -> dict[str, Any]:
        T, lens = len(self.text_ids), self.lens
        parts, error = self._attributed(slice(T - 1), self.text_ids[1:])
        logits = self._all.logits.float()
        wanted = logits[:-1].gather(-1, self.text_ids[1:, None])
        bits = F.pad(self.surprise, (0, 1), value=math.nan)
        rank = [*(logits[:-1] > wanted).sum(-1).tolist(), None]
        top = logits.softmax(-1).topk(min(TOP, logits.shape[-1]))
        shown = {*top.indices.flatten().tolist(), *(id for row in lens["token"] for id in row)}
        return {
            "checks": asdict(self.checks),
            "parts": list(parts),
            "sublayers": lens.pop("part"),
            "tokens": {str(id): self.label(id) for id in sorted(shown)},
            "bits": bits,
            "rank": [place if bit.isfinite() else None for place, bit in zip(rank, bits, strict=True)],
            "top": top.indices,
            "top_probability": top.values,
            "lens": lens,
            "attribution": [F.pad(part, (0, 1), value=math.nan) for part in parts.values()],
            "attribution_error": error,
        }


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
    title: str = "",
    page: Callable[[Reading], str] | None = None,
) -> Reading:
    """Reads one text, (T,) or (1, T), in eval mode, without compiled code.

    Args:
        document_ids: (T,), for a model that attends within a document only.
        replacing: vectors that parts give in place of what they compute; position: only at this token, from 0.
        autocast: the maps are computed under autocast to this type, as mixed-precision training computes them.
        label: the text of a token id.
        title, page: what a notebook shows of the reading.

    Raises ValueError for what is not one sequence of known ids, and for more tokens than the model's context.
    """
    sequence = gpt.known_ids(one_sequence(tokens))
    documents = None if document_ids is None else document_ids.to(sequence.device).view(1, -1)
    edits = replacing or {}
    with replaced(gpt, edits, position):
        maps, checks = _read_maps(gpt, sequence, documents, autocast)
    exact = in_float32(gpt)
    with replaced(exact, edits, position):
        computed = _compute(exact, sequence, documents)
    ids = sequence[0].cpu().clone()
    about = (computed, _readout(exact), None, label, title, edits, position, page)
    return Reading(ids, [label(token) for token in ids.tolist()], maps, checks, *about)


def one_sequence(tokens: Tensor | Sequence[int]) -> Tensor:
    """Token ids (T,) or (1, T) as (1, T) of int64. Raises ValueError for no tokens, or more than one sequence."""
    sequence = torch.atleast_2d(torch.as_tensor(tokens))
    if len(sequence) != 1 or sequence.ndim != 2 or not sequence.numel() or sequence.is_floating_point():
        shape, dtype = tuple(sequence.shape), str(sequence.dtype).removeprefix("torch.")
        raise ValueError(f"one sequence of at least one token is needed, (T,) or (1, T), not {shape} of {dtype}")
    return sequence


def _read_maps(
    gpt: GPT, sequence: Tensor, documents: Tensor | None, autocast: torch.dtype | None
) -> tuple[Tensor, Checks]:
    """The maps (L, H, T, T) in float32 on the CPU, and how far they can be trusted."""
    length = sequence.shape[1]
    calls: list[tuple[Attend, Tensor, Tensor, Tensor, Tensor]] = []
    with undisturbed(gpt, autocast):
        with observed(gpt, lambda *call: calls.append(call)):
            logits = gpt(sequence, document_ids=documents)
        noise = [_difference(attend(q, k, v), attended, v) for attend, q, k, v, attended in calls]
        again = gpt(sequence, document_ids=documents)
        leaks = {}  # by the token that was changed
        for position in sorted({length // 2, length - 1} - {0}):  # nothing comes before token 0
            changed = sequence.clone()
            changed[0, position] = 0 if changed[0, position] else 1
            # A call of its own: in a batch of two other kernels might run, and rounding would look like a leak.
            change = gpt(changed, document_ids=documents) - logits
            leaks[position] = change[:, :position].abs().max().item()
    weights, errors = [], []
    with undisturbed(gpt):
        for attend, q, k, v, attended in calls:
            of_layer = weights_of(attend, q, k, v)
            errors.append(_difference(of_layer @ by_head(v, q).to(of_layer.dtype), attended, v))
            weights.append(of_layer[0].float().cpu())
    maps = torch.stack(weights)
    by_layer = {
        "fidelity": errors,
        "future": maps.triu(1).abs().amax((1, 2, 3)).tolist(),
        "outside": (maps - maps.clamp(0, 1)).abs().amax((1, 2, 3)).tolist(),
        "random": noise,
    }
    checks = Checks(
        precision=str(calls[0][-1].dtype).removeprefix("torch."),
        fidelity=float(np.max(errors)),
        causality=float(np.max([0.0, *leaks.values()])),
        by_layer=by_layer,
        changed_token=max(leaks, key=leaks.__getitem__, default=0),
        noise=(again - logits).abs().max().item(),
        logits=logits.abs().max().item(),
    )
    return maps, checks


def _difference(found: Tensor, attended: Tensor, v: Tensor) -> float:
    """max |found - what `attend` returned|, divided by the largest value where that is above 1."""
    return ((found - attended).abs().max() / v.abs().max().clamp(min=1)).item()


def _compute(gpt: GPT, sequence: Tensor, documents: Tensor | None) -> Computed:
    """One forward pass without autocast."""
    blocks, tables = blocks_of(gpt), embedding_tables(gpt)
    layers = [block.attention for block in blocks]
    watched: list[nn.Module] = [gpt.embedding_norm, gpt.final_norm, *tables.values()]
    watched += [layer.output_proj for layer in layers]
    for block in blocks:
        watched += [block, block.feed_forward_norm, block.feed_forward]
    calls: list[tuple[Tensor, Tensor, Tensor]] = []
    with (
        undisturbed(gpt),
        hooked(watched) as (inputs, outputs),
        observed(gpt, lambda _, q, k, v, __: calls.append((q, by_head(k, q), by_head(v, q)))),
    ):
        features = gpt.features(sequence, document_ids=documents)
        logits = gpt.unembed(features)
    stream = [inputs[module][0] for block in blocks for module in (block, block.feed_forward_norm)]
    heads = [inputs[layer.output_proj][0].unflatten(-1, (layer.num_heads, -1)).transpose(0, 1) for layer in layers]
    q, k, v = (torch.cat(of_layers).cpu() for of_layers in zip(*calls, strict=True))
    return Computed(
        tables={name: outputs[table].flatten(0, -2).cpu() for name, table in tables.items()},  # positions: no batch
        embeddings=inputs[gpt.embedding_norm][0].cpu(),
        residual=torch.stack([*stream, inputs[gpt.final_norm][0]]).cpu(),
        q=q,
        k=k,
        v=v,
        heads=torch.stack(heads).cpu(),
        feed_forwards=torch.stack([outputs[block.feed_forward][0] for block in blocks]).cpu(),
        features=features[0].cpu(),
        logits=logits[0].cpu(),
    )


# ---- the weights of the moment

_READOUTS: weakref.WeakKeyDictionary[GPT, weakref.ref[GPT]] = weakref.WeakKeyDictionary()


def _readout(gpt: GPT) -> GPT:
    """The model with a copy of the weights that lens and attribution need, as they are now.

    Readings of the same weights share one copy, as the head of a model may be large; it goes with the last of them.
    """
    kept = _READOUTS.get(gpt)
    last = None if kept is None else kept()
    if last is not None and all(map(_equal, _read_out_by(gpt), _read_out_by(last))):
        return last
    copied = {id(weight) for weight in _read_out_by(gpt)}
    shared = {id(weight): weight for weight in gpt.parameters() if id(weight) not in copied}
    last = copy.deepcopy(gpt, shared)
    _READOUTS[gpt] = weakref.ref(last)
    return last


def _read_out_by(gpt: GPT) -> list[Tensor]:
    weights = [gpt.head.weight, *gpt.final_norm.parameters(), *gpt.embedding_norm.parameters()]
    for block in blocks_of(gpt):
        weights += [*block.attention.output_proj.parameters()]
        weights += [bias for bias in [block.feed_forward.down_proj.bias] if bias is not None]
    return weights


def _equal(left: Tensor, right: Tensor) -> bool:
    return left.device == right.device and left.dtype == right.dtype and torch.equal(left, right)


def _before_norm(norm: nn.Module, direction: Tensor) -> Tensor:
    """What a norm's input is multiplied with, to get `norm(x) * direction` up to the norm's scale and without its bias.

    Multiplying x without its mean by a direction is multiplying x by the direction without its mean.
    """
    weight = getattr(norm, "weight", None)
    if weight is not None:
        direction = direction * weight.detach().to(direction)
    return direction - direction.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else direction


def _scale_of(norm: nn.Module, x: Tensor) -> Tensor:
    """What a norm multiplies x (..., D) with besides its weight, (..., 1)."""
    if isinstance(norm, nn.LayerNorm):
        return torch.rsqrt(x.var(-1, correction=0, keepdim=True) + norm.eps)
    if isinstance(norm, nn.RMSNorm):
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps)
    return torch.ones_like(x[..., :1])


def _own(x: Tensor) -> Tensor:
    return x.to("cpu", torch.float32, copy=True)


def _double(x: Tensor) -> Tensor:
    return x.detach().cpu().double()


def _integer(name: str, value: Any, low: int, high: float = math.inf) -> int:
    """The value as an int. Raises a `Mistake` for what is no whole number within these bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        raise Mistake(f"{name} must be a whole number, not {value!r}") from None
    if not low <= number <= high:
        bounds = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise Mistake(f"{name} must be {bounds}, not {number}")
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
