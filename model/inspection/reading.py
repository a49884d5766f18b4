"""A reading: what a model made of one text at one moment. `read` makes it.

A GPT keeps a sum of vectors for each token, the residual stream. It begins with the embeddings; then each attention and
each feed-forward adds what it makes of the sum so far (Elhage et al. 2021, "A Mathematical Framework for Transformer
Circuits"). The logits are computed from the last sum. A reading holds all these sums, all vectors that were added, and
the attention maps.

The maps, queries, keys and values come from a pass under autocast, if training used it. All else comes from a pass
without it and at least in float32, so that rounding does not blur it; if training did the same, that is one pass.

Position t reads token t and predicts token t + 1.

Shapes: L layers, H heads, T tokens, P parts, D model width, K head width, V vocabulary.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.attention import split_heads
from model.gpt import GPT, Block
from model.inspection.maps import Checks, for_each_head, maps_of
from model.inspection.parts import NO_EDIT, Edit, embedding_tables, replaced
from model.inspection.passes import NOT_RECORDED, Pass, in_float32, run, undisturbed
from model.inspection.texts import Label, Texts
from model.mistakes import Mistake, check, check_range

TOP = 5  # how many of the likeliest next tokens a page lists
DIGITS = ".4g"  # figures in a recording have 4 significant digits


@dataclass(frozen=True, eq=False)
class RecordedReading:
    """What a recording keeps of a reading, for pages to draw.

    tokens: T texts. maps: (L, H, T, T). figures: see `Reading.figures`.
    """

    tokens: list[str]
    maps: Tensor
    figures: dict[str, Any]


@dataclass(eq=False, repr=False)
class Reading:
    """What a model made of one text at one moment. A later change of the model does not change it.

    The tensors are on the CPU and in float32; residual, heads and parts are in float64 if the model is. The methods and
    properties compute from these tensors: clone one before you write to it.

    ids: (T,), int64. tokens: T texts.
    maps: (L, H, T, T), how much each query takes of each key's value; maps[5, 2] is head 5.2. TransformerLens calls it
        pattern.
    logits: (T, V).
    residual: (2L + 1, T, D), the residual stream after the embeddings, attention 0, feed-forward 0, attention 1, ...
        The final norm is still to come: the logits are `gpt.unembed(gpt.final_norm(residual[-1]))`.
    heads: (L, H, T, K), the output of each head before its layer's output matrix; TransformerLens calls it z.
    q: (L, H, T, K), the queries as `attend` gets them: rotary positions are applied already.
    k, v: (L, H, T, K), the keys and values as `attend` gets them. Repeated for each head of a group that shares them.
    parts: what each part adds to the residual stream, (T, D) by name; a head, what its output matrix makes of its
        output. With a norm after the embeddings, its scale is held fixed. In a network whose parts simply add to the
        stream they add up to residual[-1].
    checks: whether the maps can be trusted.
    readout: a copy of the model that has only its final norm and lm_head (V x D numbers), for `unembed`.
    label: returns the text of a token id.
    edit: how the model was changed while it read the text.
    title: names the model, and what was changed in it. page: returns the HTML of a page that shows the reading.
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
    parts: dict[str, Tensor]
    checks: Checks
    readout: GPT
    label: Label
    edit: Edit
    title: str = ""
    page: Callable[["Reading"], str] | None = None

    def __repr__(self) -> str:
        return f"Reading({self.title or 'one text'}, {len(self.tokens)} tokens)"

    def _repr_html_(self) -> str | None:
        return None if self.page is None else self.page(self)

    @property
    def surprise(self) -> Tensor:
        """The loss of each next token in bits, (T - 1,)."""
        nats = F.cross_entropy(self.logits[:-1], self.ids[1:], reduction="none")
        return nats / math.log(2)

    @property
    def loss(self) -> float:
        """The mean loss in nats per predicted token; NaN for a text of a single token."""
        return self.surprise.mean().item() * math.log(2)

    def top(
        self,
        at: int = -1,
        count: int = 5,
    ) -> list[tuple[str, float]]:
        """Returns the texts and probabilities of the `count` likeliest tokens after token `at`, the likeliest first."""
        logits = self.logits[position_in("at", at, len(self.tokens))]
        check_range("count", count, 1, len(logits), whole=True)
        probabilities, ids = logits.softmax(-1).topk(count)
        return list(zip(map(self.label, ids.tolist()), probabilities.tolist(), strict=True))

    @property
    def lens(self) -> dict[str, Any]:
        """What the model would predict if it stopped after each row of `residual`: the logit lens.

        Each row goes through the model's own final norm, head and soft-cap (nostalgebraist 2020, "interpreting GPT: the
        logit lens", https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru; there only after whole blocks). The model was
        not trained to predict from early rows, so the lens shows what is written there already, not all that is known.

        part: the names of the rows, such as "attention 3".
        token: the likeliest next tokens, 2L + 1 lists of T ids.
        probability: (2L + 1, T), of the true next token; NaN at the last position.
        divergence: (2L + 1, T), the Kullback-Leibler divergence KL(final prediction || this one), in bits.
        """
        gpt = self.readout
        device = gpt.lm_head.weight.device
        final = self.logits.to(device).log_softmax(-1)
        final_probabilities = final.exp()
        targets = F.pad(self.ids[1:], (0, 1))[:, None].to(device)
        names = ["embeddings"]
        for layer in range(len(self.heads)):
            names += [f"attention {layer}", f"feed-forward {layer}"]
        tokens = []
        probabilities = []
        divergences = []
        with torch.no_grad(), undisturbed(gpt):
            for stream in self.residual:
                early = gpt.unembed(gpt.final_norm(stream.to(device))).log_softmax(-1)
                tokens.append(early.argmax(-1).tolist())
                probabilities.append(early.gather(-1, targets)[:, 0].exp())
                divergences.append((final_probabilities * (final - early)).sum(-1) / math.log(2))
        probability = torch.stack(probabilities).cpu()
        probability[:, -1] = math.nan
        return {
            "part": names,
            "token": tokens,
            "probability": probability,
            "divergence": torch.stack(divergences).cpu(),
        }

    def attribution(
        self,
        at: int = -1,
        of: int | None = None,
    ) -> dict[str, float]:
        """Returns what each part adds to the logit of a predicted token. The sum is the logit before the soft-cap.

        In a network whose parts do not simply add to the stream, such as one with a norm after each sub-layer, the sum
        is another number: `figures["attribution_error"]` says how far off it is.

        Args:
            at: the token that is read last, counted from 0, or from the end if negative.
            of: the id of the predicted token; None is the true next token, or the likeliest after the last token.
        """
        position = position_in("at", at, len(self.tokens))
        targets = torch.cat((self.ids[1:], self.logits[-1:].argmax(-1)))
        if of is not None:
            check_range("of, the id of a token,", of, 0, self.logits.shape[-1] - 1, whole=True)
            targets[position] = of
        parts, _ = self._attributed(targets)
        return {name: part[position].item() for name, part in parts.items()}

    def _attributed(self, targets: Tensor) -> tuple[dict[str, Tensor], float]:
        """Returns by part name what each part adds to the logits of `targets` (T,), as (T,) in float64, and the error.

        Before the soft-cap, a logit is the product of the token's row in lm_head and the normalised residual stream.
        The stream is a sum of parts: tables, heads, feed-forwards and biases. With the scale of each norm fixed at its
        value in this text, the logit is a sum too, with one term for each part ("direct logit attribution" in
        TransformerLens, which folds the norms into the weights first). The term of a part leaves out what the part
        does through later layers. The biases of q, k, v and of a feed-forward's hidden layer act inside a head or a
        feed-forward and count as part of it.

        The error is the largest difference between the sum of the parts, soft-capped, and the model's own logit, at all
        positions but the last. If the largest of these logits is above 1, the error is divided by it, because rounding
        errors grow with the logits. It is NaN for a text of a single token.
        """
        norm = self.readout.final_norm
        weight = self.readout.lm_head.weight
        rows = double(weight[targets.to(weight.device)])
        stream = self.residual[-1]
        direction = towards_logits(norm, stream, rows)
        parts = {name: (double(vectors) * direction).sum(-1) for name, vectors in self.parts.items()}
        bias = getattr(norm, "bias", None)
        if bias is not None:
            parts["final norm bias"] = rows @ double(bias)
        models_own = self.logits.gather(1, targets[:, None])[:-1, 0]
        sums = torch.stack(list(parts.values())).sum(0)[:-1]
        if cap := self.readout.config.logit_soft_cap:
            sums = cap * (sums / cap).tanh()
        largest = max([1.0, *models_own.abs().tolist()])
        error = max((sums - models_own).abs().tolist(), default=math.nan)
        return parts, error / largest

    @property
    def figures(self) -> dict[str, Any]:
        """What the model predicted at each position, and why, as JSON rounded to DIGITS.

        At the last position the true next token is unknown, and all figures about it are None.

        parts: the names of the P parts in `attribution`. sublayers: the names of the 2L + 1 rows in `lens`.
        tokens: the text of every id that occurs below.
        bits: the loss of the true next token, T numbers. rank: its rank, T numbers; 0 is the likeliest.
        top, top_probability: (T, up to TOP), the likeliest next tokens.
        lens: token, probability and divergence of `Reading.lens`.
        attribution: (P, T), what each part adds to the logit of the true next token.
        attribution_error: how far the sum of the parts is from that logit, at most.
        """
        lens = self.lens
        next_ids = F.pad(self.ids[1:], (0, 1))
        parts, error = self._attributed(next_ids)
        bits, rank, top = next_token_figures(self.logits, next_ids)
        shown_ids = set(top.indices.flatten().tolist()).union(*lens["token"])
        figures = {
            "parts": list(parts),
            "sublayers": lens.pop("part"),
            "tokens": {str(id): self.label(id) for id in sorted(shown_ids)},
            "bits": [*bits[:-1].tolist(), None],
            "rank": [*rank[:-1].tolist(), None],
            "top": top.indices,
            "top_probability": top.values,
            "lens": lens,
            "attribution": [[*part[:-1].tolist(), None] for part in parts.values()],
            "attribution_error": error,
        }
        return as_json(figures, DIGITS)

    def recorded(self) -> RecordedReading:
        return RecordedReading(self.tokens, self.maps, self.figures)


@torch.no_grad()
def read(
    gpt: GPT,
    text: Texts,
    *,
    edit: Edit = NO_EDIT,
    autocast: torch.dtype | None = None,
    label: Label = str,
) -> Reading:
    """Reads a single text in eval mode, without compiled code.

    Args:
        edit: parts whose output is replaced while the model reads.
        autocast: for the maps, run the model under autocast to this type, as mixed-precision training does.
        label: returns the text of a token id.

    Raises ValueError for unknown ids, and if the text is longer than the model's context.
    """
    exact = in_float32(gpt)
    is_exact = exact is gpt and autocast is None
    with undisturbed(gpt, autocast), replaced(gpt, *edit):
        seen = run(gpt, text, gpt.modules() if is_exact else ())
        calls = seen.calls
        maps, checks = maps_of(gpt, text, seen)
    with undisturbed(exact), replaced(exact, *edit):
        if not is_exact:
            seen = run(exact, text, exact.modules())
        logits = exact.unembed(seen.features)

    def joined(tensors: Iterable[Tensor]) -> Tensor:
        return torch.cat([*tensors]).cpu()

    blocks = exact.blocks
    stream = [x for block in blocks for x in (seen.inputs[block], _after_attention(block, seen))]
    if any(x.shape != seen.features.shape for x in stream):
        raise Mistake(f"the blocks do not hand on one vector for each token: {NOT_RECORDED}")
    heads = joined(seen.inputs[block.attention.output_proj] for block in blocks)
    return Reading(
        ids=text.tokens[0].clone(),
        tokens=text.labels[0],
        maps=maps.float().cpu(),
        logits=logits[0].cpu(),
        residual=joined([*stream, seen.inputs[exact.final_norm]]),
        heads=split_heads(heads, exact.config.num_heads),
        q=joined(call.q for call in calls).float(),
        k=joined(for_each_head(call.k, call.q) for call in calls).float(),
        v=joined(for_each_head(call.v, call.q) for call in calls).float(),
        parts=_parts(exact, seen),
        checks=checks,
        readout=_readout(exact),
        label=label,
        edit=edit,
    )


def _parts(gpt: GPT, seen: Pass) -> dict[str, Tensor]:
    """Returns `Reading.parts`."""
    tables = {name: double(seen.outputs[table]).flatten(0, -2) for name, table in embedding_tables(gpt).items()}
    whole = torch.stack([*tables.values()]).sum(0)
    norm = gpt.embedding_norm
    parts = {name: normed(norm, vectors, whole) for name, vectors in tables.items()}
    parts["embedding bias"] = getattr(norm, "bias", None)
    for layer, block in enumerate(gpt.blocks):
        output = block.attention.output_proj
        for head, vectors in enumerate(added_by_heads(output, seen.inputs[output], gpt.config.num_heads)):
            parts[f"head {layer}.{head}"] = vectors[0]
        parts[f"attention bias {layer}"] = output.bias
        bias = getattr(getattr(block.feed_forward, "down_proj", None), "bias", None)
        feed_forward = double(seen.outputs[block.feed_forward][0])
        parts[f"feed-forward {layer}"] = feed_forward if bias is None else feed_forward - double(bias)
        parts[f"feed-forward bias {layer}"] = bias
    dtype = gpt.lm_head.weight.dtype
    return {
        name: double(vectors).expand_as(whole).to(dtype, copy=True)
        for name, vectors in parts.items()
        if vectors is not None
    }


def _after_attention(block: Block, seen: Pass) -> Tensor:
    """Returns the stream after a block's attention: what the norm before its feed-forward reads.

    A block without such a norm, or one whose two parts read the same stream, adds the attention's output to its input.
    """
    before = seen.inputs[block]
    read_next = seen.inputs.get(getattr(block, "feed_forward_norm", block), before)
    return before + seen.outputs[block.attention] if read_next is before else read_next


def _readout(gpt: GPT) -> GPT:
    """Returns a copy of the final norm and lm_head: a GPT without tables and blocks."""
    left_out = [
        *gpt.blocks,
        *embedding_tables(gpt).values(),
        *gpt.value_embeddings.values(),
    ]
    return copy.deepcopy(gpt, {id(module): None for module in left_out})


def next_token_figures(logits: Tensor, next_ids: Tensor) -> tuple[Tensor, Tensor, torch.return_types.topk]:
    """Returns what logits (..., T, V) say of the next tokens (..., T): their surprise in bits, and their rank.

    Also returns the probabilities and ids of the likeliest tokens, (..., T, up to TOP).
    """
    of_next = next_ids[..., None]
    nats = -logits.log_softmax(-1).gather(-1, of_next)[..., 0]
    rank = (logits > logits.gather(-1, of_next)).sum(-1)
    return nats / math.log(2), rank, logits.softmax(-1).topk(min(TOP, logits.shape[-1]))


def added_by_heads(
    matrix: nn.Linear,
    heads: Tensor,
    num_heads: int,
) -> Tensor:
    """Returns what each head adds to the residual stream, (H, N, T, D) in float64. heads: the input of the matrix."""
    by_head = double(matrix.weight).unflatten(1, (num_heads, -1))  # (D, H, K)
    return torch.einsum("nhtk,dhk->hntd", split_heads(double(heads), num_heads), by_head)


def towards_logits(
    norm: nn.Module,
    stream: Tensor,
    rows: Tensor,
) -> Tensor:
    """Returns the vectors (N, D) whose product with what was added to the stream is what that adds to logits.

    norm: the final norm, with its scale fixed at its value for the whole stream (N, D). rows: those of lm_head.
    """
    # (centred(x) * factor) @ row = x @ centred(factor * row), because centring is a symmetric matrix.
    return centred(norm, factor(norm, stream) * rows)


def normed(norm: nn.Module, part: Tensor, whole: Tensor) -> Tensor:
    """Returns what a norm makes of a part of its input, with its scale fixed at its value for the whole, (N, D)."""
    return centred(norm, part) * factor(norm, whole)


def factor(norm: nn.Module, whole: Tensor) -> Tensor:
    """Returns what norm(whole) multiplies each number of its centred input by, in float64; `whole` is (N, D)."""
    whole = double(whole)
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        return whole.new_ones(())
    squares = centred(norm, whole).square().mean(-1, keepdim=True)
    scale = torch.rsqrt(squares + norm.eps)
    return scale if norm.weight is None else scale * double(norm.weight)


def centred(norm: nn.Module, x: Tensor) -> Tensor:
    """Subtracts the mean from x (N, D), if the norm does so."""
    if not isinstance(norm, nn.LayerNorm):
        return x
    return x - x.mean(-1, keepdim=True)


def double(x: Tensor) -> Tensor:
    return x.detach().cpu().double()


def position_in(name: str, position: int, length: int) -> int:
    """Returns the position of a token counted from 0. Raises a `Mistake` if the text of `length` tokens lacks it.

    name: of the argument, for the message. position: counted from 0, or from the end if negative.
    """
    check(position is not None, name, "the position of a token", position)
    check_range(f"{name}, the position of a token,", position, -length, length - 1, whole=True)
    return int(position) % length


def as_json(value: Any, digits: str) -> Any:
    """Converts a value for JSON: arrays and tensors become lists, and numbers that are not finite become None.

    digits: rounds floating-point numbers as a format string does: ".4g" to four significant digits.
    """
    if isinstance(value, float):  # the first test, because there may be a million floats
        return float(f"{value:{digits}}") if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [as_json(item, digits) for item in value]
    if isinstance(value, Mapping):
        return {name: as_json(item, digits) for name, item in value.items()}
    return as_json(value.tolist(), digits) if hasattr(value, "tolist") else value
