"""The attention maps of one text, and whether they can be trusted.

Every layer's call of `attend` is observed and then repeated, in float32, with the identity matrix in place of the
values. The result is the attention weights, whatever `attend` computes. `Checks` measure how well these maps describe
what the model does, and `Checks.problems` says in sentences what is out of bounds. The terminal and the pages show
these sentences.

Shapes: N texts, L layers, H heads, H_kv key and value heads, T tokens, S keys, K head width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from model.generation import new_cache
from model.gpt import GPT
from model.inspection.passes import Call, Pass, features_of, run, undisturbed
from model.inspection.texts import Texts
from model.mistakes import listed

# The largest differences that rounding explains, by the type in which attention was computed: in fidelity (see
# `Checks`), and in the logits, divided by the largest logit if that is above 1. A kernel that adds in another order
# moves logits by 2e-6 in float32, 4e-3 in float16 and 3e-2 in bfloat16 (random models of up to 12 layers, on a CPU). A
# leak of 0.001 of the weight moves them by 2e-4 or more, and shows in the weights, which are always float32.
LIMITS = {"float16": (5e-3, 1e-2), "bfloat16": (2e-2, 5e-2)}
CACHED_LIMIT = 1e-3  # of the logits with a cache, where single tokens run other kernels
EXACT = 1e-5  # the limit in any other type, and for a weight in all types
PAGE_ERROR = 0.004  # rounding error of a weight on a page and in its pictures


@dataclass(frozen=True)
class Checks:
    """Whether maps can be trusted, as numbers: 0 is best, NaN means that the model diverged. `problems` judges them.

    precision: the type in which attention was computed, such as "bfloat16". The limits of the checks depend on it.
    fidelity: the largest |weights @ values - result of `attend`| over all layers. If the largest value of a layer is
        above 1, its difference is divided by that value, because rounding errors grow with the values. The fidelity is
        large for an `attend` that is not linear in the values or mixes heads.
    causality: the largest change of any logit before token j when token j is changed. Beyond rounding, it shows a leak.
        Two tokens are changed, one at a time.
    by_layer: lists with a number for each layer. "fidelity": as above. "future": the largest weight on a later token.
        "outside": how far any weight lies outside [0, 1].
    noise: the largest change of the logits, or of a result of `attend` (divided as for fidelity), in a second pass.
    logits: the largest absolute logit.
    cached: the largest change of the last token's logits if all tokens before it are cached, as when the model writes.
    """

    precision: str
    fidelity: float
    causality: float
    by_layer: Mapping[str, Sequence[float]]
    noise: float
    logits: float
    cached: float = 0.0

    @property
    def problems(self) -> dict[str, str]:
        """What is out of bounds: a sentence for each check that fails, without its full stop.

        The checks are "repeatable", "causal", "faithful", "cached" and "in_range". If the model is not repeatable, only
        that is returned: the other checks would judge noise.
        """
        fidelity_limit, logit_limit = LIMITS.get(self.precision, (EXACT, EXACT))
        logit_limit *= max(1, self.logits)
        fidelity = self.by_layer["fidelity"]
        outside = self.by_layer["outside"]
        if self.noise > logit_limit:
            return {
                "repeatable": "the model is random in eval mode, so its maps cannot be trusted, nor whether it looks "
                "into the future: draw random numbers, such as dropout, only `if self.training`"
            }
        problems = {}
        # `causality` misses a leak at a token that was not changed, and any leak in a new model, whose last matrices
        # are zero: nothing reaches its logits. A weight on a later token shows both. The maps of layers that are not
        # faithful say nothing, so these layers are skipped.
        future = [
            weight if error <= fidelity_limit else 0.0
            for weight, error in zip(self.by_layer["future"], fidelity, strict=True)
        ]
        if math.isnan(self.causality):
            problems["causal"] = "the logits are not numbers: the model diverged, or its code is wrong"
        elif self.causality > logit_limit or max(future) > EXACT:
            problems["causal"] = (
                f"{_layers(EXACT, future)} can look into the future: changing a token moves the logits before it by "
                f"{self.causality:.2g}, and a later token has a weight of up to {max(future):.2g}; the loss means "
                "nothing"
            )
        if math.isnan(self.fidelity):
            problems["faithful"] = "the attention maps are not numbers: the model diverged, or its code is wrong"
        elif self.fidelity > fidelity_limit:
            problems["faithful"] = (
                f"the maps of {_layers(fidelity_limit, fidelity)} are not what the model computes: weights times "
                f"values differ from what `attend` returns by {self.fidelity:.2g}, where rounding explains "
                f"{fidelity_limit:g}; an `attend` that is not linear in the values or mixes heads has no maps"
            )
        if "causal" not in problems and self.cached > CACHED_LIMIT * max(1, self.logits):
            problems["cached"] = (
                f"the model writes other text than it should: with earlier tokens in its cache, logits change by "
                f"{self.cached:.2g}; what looks at earlier tokens must also work where x holds only the new ones"
            )
        if max(outside) > PAGE_ERROR:
            problems["in_range"] = (
                f"weights of {_layers(PAGE_ERROR, outside)} are below 0 or above 1, by up to {max(outside):.2g}: pages "
                "and pictures show them as 0 or 1; for the exact weights use inspect_attention.py --output maps.csv"
            )
        return problems


def _layers(limit: float, figures: Sequence[float]) -> str:
    """Names the layers whose figures are above a limit, such as "layers 0, 1 and 4"; "the model" if there are none."""
    layers = [str(layer) for layer, figure in enumerate(figures) if figure > limit]
    if not layers:
        return "the model"
    return f"layer{'s' if len(layers) > 1 else ''} {listed(layers)}"


def maps_of(gpt: GPT, text: Texts, seen: Pass) -> tuple[Tensor, Checks]:
    """Returns the maps (L, H, T, T) of a single text, and whether they can be trusted.

    Call it in the `undisturbed` block in which `seen` was made.
    """
    logits = gpt.unembed(seen.features)
    again = run(gpt, text)
    noise = [(gpt.unembed(again.features) - logits).abs().max().item()]
    # In a new model the last matrices are zero, so noise in its attention does not reach the logits.
    for call, call_again in zip(seen.calls, again.calls, strict=True):
        noise.append(_difference(call_again.attended, call))
    leaks = [0.0]
    for position in {text.length // 2, text.length - 1} - {0}:  # nothing comes before token 0
        changed = text.tokens.clone()
        changed[0, position] = 0 if changed[0, position] else 1
        # Run each changed text alone: a batch of two may use other kernels, whose rounding would look like a leak.
        change = gpt.unembed(features_of(gpt, replace(text, tokens=changed))) - logits
        leaks.append(change[:, :position].abs().max().item())
    by_layer = []
    errors = []
    with undisturbed(gpt):
        for call in seen.calls:
            weights = weights_of(call)
            values = for_each_head(call.v, call.q).to(weights.dtype)
            by_layer.append(weights)
            errors.append(_difference(weights @ values, call))
    maps = torch.cat(by_layer)
    checks = Checks(
        precision=str(call.attended.dtype).removeprefix("torch."),
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
    return maps, checks


@torch.no_grad()
def change_by_cache(gpt: GPT, text: Texts) -> float:
    """Returns `Checks.cached` for a single text, read as one document."""
    tokens = gpt.known_ids(text.tokens)
    with undisturbed(gpt):
        cache = new_cache(gpt, 1, text.length)
        gpt.features(tokens[:, :-1], cache=cache)
        last = gpt.unembed(gpt.features(tokens[:, -1:], cache=cache))
        return (gpt(tokens)[:, -1:] - last).abs().max().item()


def for_each_head(shared: Tensor, q: Tensor) -> Tensor:
    """Repeats keys or values (N, H_kv, S, K) for each head of a group that shares them: (N, H, S, K)."""
    return shared.repeat_interleave(q.shape[1] // shared.shape[1], dim=1)


def _difference(output: Tensor, call: Call) -> float:
    """Returns the largest |output - attended|, divided by the largest of the call's values if that is above 1."""
    error = (output - call.attended).abs().max()
    largest = call.v.abs().max().clamp(min=1)
    return (error / largest).item()


def weights_of(call: Call) -> Tensor:
    """Returns how much each query takes of each key's value, (N, H, T, S), in float32 at least.

    That is what `attend` returns if the values are the identity matrix: attention is linear in the values, so this is
    the map of whatever `attend` computes. The identity is passed in pieces of K columns, because an `attend` may rely
    on values of that width. Call it inside `undisturbed`.
    """
    S, K = call.v.shape[-2:]
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    identity = torch.eye(S, dtype=dtype, device=call.v.device)
    padded = F.pad(identity, (0, -S % K))
    columns = padded.expand(*call.v.shape[:-1], -1)
    q = call.q.to(dtype)
    k = call.k.to(dtype)
    pieces = [call.attend(q, k, values, call.mask) for values in columns.split(K, dim=-1)]
    return torch.cat(pieces, dim=-1)[..., :S]


def weights_of_blocks(call: Call, blocks: Tensor) -> Tensor:
    """Returns the rows of `weights_of` for some queries only, (N, H, R, S).

    blocks: the positions of neighbouring queries in each row; R positions in all.

    The whole map of a text takes S / K times as long as its attention. So `attend` gets the queries of each block with
    the keys up to its end, as it does with a cache. The result is checked with what `attend` returned in the whole
    text: if it computes something else there, the whole map is made.
    """
    S = call.k.shape[-2]
    some = []
    for block in blocks:
        end = int(block[-1]) + 1
        ending = call._replace(
            q=call.q[..., block, :],
            k=call.k[..., :end, :],
            v=call.v[..., :end, :],
            mask=None if call.mask is None else call.mask[..., block, :end],
        )
        some.append(F.pad(weights_of(ending), (0, S - end)))
    weights = torch.cat(some, dim=-2)
    queries = blocks.flatten()
    some_attended = call._replace(attended=call.attended[..., queries, :])
    if _difference(weights @ for_each_head(call.v, call.q), some_attended) > EXACT:
        return weights_of(call)[..., queries, :]
    return weights
