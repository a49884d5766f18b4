"""The attention maps of one text, and whether they can be trusted.

Every layer's call of `attend` is observed, and the layer is then asked what it makes of the identity in place of the
values: its weights, whatever `attend` computes. `Checks` hold how far that is what the model does, as numbers, and say
in a sentence for people what is out of bounds. The terminal and the pages show these sentences.

Shapes: N texts, L layers, H heads, H_kv key and value heads, T tokens, S keys, K head width.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.gpt import GPT
from model.inspection.parts import blocks_of, run, undisturbed
from model.inspection.texts import Texts
from model.mistakes import listed

# What rounding explains, by the type that attention was computed in: of fidelity (see `Checks`), and of a change of
# the logits, relative to the largest where that is above 1. A kernel that adds in another order moves logits by 2e-6 in
# float32, 4e-3 in float16 and 3e-2 in bfloat16 (random models of up to 12 layers, on a CPU); a leak of 0.001 of the
# weight moves them by 2e-4 or more, and shows in the weights, which are in float32 always.
FIDELITY_LIMITS = {"float16": 5e-3, "bfloat16": 2e-2}
LOGIT_LIMITS = {"float16": 1e-2, "bfloat16": 5e-2}
EXACT = 1e-5  # in any other type; of a weight, in all types
PAGE_ERROR = 0.004  # of a weight that a page and its pictures show

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # of q, k and v alone, with all else that a layer's `attend` got


@dataclass(frozen=True)
class Checks:
    """Whether maps can be trusted, as numbers of which 0 is best; `problems` judges them. NaN for a diverged model.

    precision: the type that attention was computed in, such as "bfloat16", which bounds the fidelity to be expected.
    fidelity: max |weights @ values - what `attend` returned|, over all layers. Where the largest value of a layer is
        above 1, its difference is divided by that value, because rounding errors grow with the values. It is large for
        an `attend` that is not linear in the values or mixes heads.
    causality: the largest change of any logit before token j when token j is changed; beyond rounding, a leak. Two
        tokens are changed.
    by_layer: for each layer "fidelity", "future", the largest weight on a later token, and "outside", how far a weight
        lies outside [0, 1].
    noise: by how much the logits, or what `attend` returns, change when computed again. logits: the largest of them.
    """

    precision: str
    fidelity: float
    causality: float
    by_layer: Mapping[str, Sequence[float]]
    noise: float
    logits: float

    @property
    def problems(self) -> dict[str, str]:
        """What is out of bounds, a sentence without its end for each of "repeatable", "causal", "faithful" and
        "in_range" that the model is not. Of a model that is random only that, as the others judge noise then."""
        limit = FIDELITY_LIMITS.get(self.precision, EXACT)
        moved = LOGIT_LIMITS.get(self.precision, EXACT) * max(1, self.logits)
        fidelity = self.by_layer["fidelity"]
        future = self.by_layer["future"]
        outside = self.by_layer["outside"]
        if self.noise > moved:
            return {
                "repeatable": "the model is random in eval mode, so neither its maps nor whether it looks into the "
                "future can be told: draw random numbers, such as dropout, only `if self.training`"
            }
        found = {}
        # Only two tokens are changed, and no leak reaches the logits of a new model whose last matrices are zero. A
        # weight on a later token shows both. Layers that are not faithful have no maps and are left out.
        leaking = [layer for layer in _above(EXACT, future) if fidelity[layer] <= limit]
        if math.isnan(self.causality):
            found["causal"] = "the logits are not numbers: the model diverged"
        elif leaking or self.causality > moved:
            who = _layers(leaking) if leaking else "the model"
            verb = "look" if len(leaking) > 1 else "looks"
            if self.causality > moved:
                shown = f"changing a token moves the logits before it by {self.causality:.2g}"
            else:
                shown = f"a later token has a weight of up to {max(future[layer] for layer in leaking):.2g}"
            found["causal"] = f"{who} {verb} into the future: {shown}; the loss means nothing"
        if math.isnan(self.fidelity):
            found["faithful"] = "the attention maps are not numbers: the model diverged"
        elif self.fidelity > limit:
            who = _layers(_above(limit, fidelity))
            found["faithful"] = (
                f"the maps of {who} are not what the model computes: weights times values differ from what `attend` "
                f"returns by {self.fidelity:.2g}, where rounding explains {limit:g}; an `attend` that is not linear in "
                "the values or mixes heads has no maps"
            )
        if max(outside) > PAGE_ERROR:
            who = _layers(_above(PAGE_ERROR, outside))
            found["in_range"] = (
                f"weights of {who} are below 0 or above 1, by up to {max(outside):.2g}: pages and pictures show them "
                "as 0 or 1; inspect_attention.py --output maps.csv has them as they are"
            )
        return found


def _above(limit: float, figures: Sequence[float]) -> list[int]:
    """The layers whose figures are above a limit."""
    return [layer for layer, figure in enumerate(figures) if figure > limit]


def _layers(layers: Sequence[int]) -> str:
    """Such as "layer 0" or "layers 0, 1 and 4"."""
    names = listed([str(layer) for layer in layers])
    return f"layers {names}" if len(layers) > 1 else f"layer {names}"


def read_maps(
    gpt: GPT,
    text: Texts,
    autocast: torch.dtype | None,
) -> tuple[list[Tensor], Checks]:
    """Of a single text the maps (L, H, T, T), queries, keys and values (L, H, T, K), as the model runs, in float32 on
    the CPU; and how far the maps can be trusted."""
    T = text.length
    calls: list[tuple[Attend, Tensor, Tensor, Tensor, Tensor]] = []
    with undisturbed(gpt, autocast):
        with observed(gpt, lambda *call: calls.append(call)):
            logits = gpt.unembed(run(gpt, text))
        again = gpt.unembed(run(gpt, text))
        noise = [(again - logits).abs().max().item()]
        # Nothing of the attention of a new model reaches a logit.
        noise += [_difference(attend(q, k, v), attended, v) for attend, q, k, v, attended in calls]
        leaks = [0.0]
        for position in {T // 2, T - 1} - {0}:  # nothing comes before token 0
            changed = text.tokens.clone()
            changed[0, position] = 0 if changed[0, position] else 1
            # A call of its own: in a batch of two other kernels might run, and rounding would look like a leak.
            change = gpt.unembed(run(gpt, replace(text, tokens=changed))) - logits
            leaks.append(change[:, :position].abs().max().item())
    layers = []
    errors = []
    with undisturbed(gpt):
        for attend, q, k, v, attended in calls:
            weights = weights_of(attend, q, k, v)
            keys, values = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
            errors.append(_difference(weights @ values.to(weights.dtype), attended, v))
            layers.append([x[0].float().cpu() for x in (weights, q, keys, values)])
    maps, q, k, v = (torch.stack(of_layers) for of_layers in zip(*layers, strict=True))
    return [maps, q, k, v], Checks(
        precision=str(attended.dtype).removeprefix("torch."),
        fidelity=float(np.max(errors)),
        causality=float(np.max(leaks)),
        by_layer={
            "fidelity": errors,
            "future": maps.triu(1).abs().amax((1, 2, 3)).tolist(),
            "outside": (maps - maps.clamp(0, 1)).abs().amax((1, 2, 3)).tolist(),
        },
        noise=float(np.max(noise)),
        logits=logits.abs().max().item(),
    )


def _difference(found: Tensor, attended: Tensor, v: Tensor) -> float:
    """max |found - what `attend` returned|, divided by the largest value where that is above 1."""
    error = (found - attended).abs().max()
    largest = v.abs().max().clamp(min=1)
    return (error / largest).item()


@contextmanager
def observed(
    gpt: GPT,
    see: Callable[[Attend, Tensor, Tensor, Tensor, Tensor], None],
) -> Iterator[None]:
    """Hands every call of the layers' `attend` to `see`, in the order of the calls.

    `see` gets the method, of q, k and v alone; q (N, H, T, K), k and v (N, H_kv, S, K); and what it returned,
    (N, H, T, K).
    """

    def observing(attend: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def attend_observed(
            q: Tensor,
            k: Tensor,
            v: Tensor,
            *arguments: Any,
            **options: Any,
        ) -> Tensor:
            attended = attend(q, k, v, *arguments, **options)
            see(lambda q, k, v: attend(q, k, v, *arguments, **options), q, k, v, attended)
            return attended

        return attend_observed

    with ExitStack() as undo:
        for block in blocks_of(gpt):
            layer = block.attention
            if "attend" in vars(layer):  # a method that somebody has put on this layer alone
                undo.callback(setattr, layer, "attend", layer.attend)
            else:
                undo.callback(delattr, layer, "attend")
            layer.attend = observing(layer.attend)
        yield


def weights_of(attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """How much each query takes of each key's value, (N, H, T, S), in float32 at least: `attend` of the identity.

    Attention is linear in the values, so this is the map of whatever `attend` computes. The identity is handed over in
    pieces of K columns, since an `attend` may count on values of that width. Use it inside `undisturbed`.
    """
    S, K = v.shape[-2:]
    dtype = torch.promote_types(q.dtype, torch.float32)
    identity = torch.eye(S, dtype=dtype, device=v.device)
    padded = F.pad(identity, (0, -S % K))
    columns = padded.expand(*v.shape[:-1], -1)
    q = q.to(dtype)
    k = k.to(dtype)
    pieces = [attend(q, k, some) for some in columns.split(K, dim=-1)]
    return torch.cat(pieces, dim=-1)[..., :S]
