"""Whether the recorded maps can be trusted, and if not one sentence for people that says why.

The terminal, the report, the pages and the scripts all show these sentences.
"""

import math
from collections.abc import Callable, Sequence

from model.checks import listed
from model.inspection.reading import Checks
from model.inspection.recording import Snapshot

# What rounding explains, by the type that attention was computed in: of fidelity (see `Checks`), and of a change of
# the logits, relative to the largest where that is above 1. A kernel that adds in another order moves logits by 2e-6 in
# float32, 4e-3 in float16 and 3e-2 in bfloat16 (random models of up to 12 layers, on a CPU); a leak of 0.001 of the
# weight moves them by 2e-4 or more, and shows in the weights, which are in float32 always.
FIDELITY_LIMITS = {"float16": 5e-3, "bfloat16": 2e-2}
LOGIT_LIMITS = {"float16": 1e-2, "bfloat16": 5e-2}
EXACT = 1e-5  # in any other type; of a weight, in all types
PAGE_ERROR = 0.004  # of a weight that a page and its pictures show


def _fidelity_limit(checks: Checks) -> float:
    return FIDELITY_LIMITS.get(checks.precision, EXACT)


def _moves(checks: Checks, change: float) -> bool:
    """Whether a change of the logits is more than rounding explains. False for NaN."""
    return change > LOGIT_LIMITS.get(checks.precision, EXACT) * max(1, checks.logits)


def verdicts(checks: Checks) -> dict[str, bool | None]:
    """By the name of each check whether it holds; None for those that judge noise, because the model is random."""
    wrong = _problems(checks)
    is_random = "repeatable" in wrong
    found = {name: None if is_random else name not in wrong for name in CHECKS}
    return found | {"repeatable": not is_random}


def warnings(snapshots: Sequence[Snapshot]) -> list[str]:
    """What is out of bounds, a sentence each, about the last snapshot that shows it. Empty if all is well."""
    return [*_failed(snapshots).values()]


def new_warnings(snapshots: Sequence[Snapshot]) -> list[str]:
    """What is out of bounds at the last snapshot and was not at any before it."""
    known = _failed(snapshots[:-1])
    return [sentence for name, sentence in _failed(snapshots[-1:]).items() if name not in known]


def _failed(snapshots: Sequence[Snapshot]) -> dict[str, str]:
    """By the name of each check that fails, what to say of the last snapshot that shows it."""
    failed: dict[str, str] = {}
    for one in snapshots:
        failed |= {name: f"At step {one.step} {problem}." for name, problem in _problems(one.checks).items()}
    return failed


def _problems(checks: Checks) -> dict[str, str]:
    """By the name of each check that fails, what is wrong; of a random model only that, as the others judge noise."""
    if noise := _noise(checks):
        return {"repeatable": noise}
    return {name: sentence for name, problem in CHECKS.items() if (sentence := problem(checks))}


def _noise(checks: Checks) -> str | None:
    layers = [layer for layer, error in enumerate(checks.by_layer["random"]) if error > _fidelity_limit(checks)]
    if not (layers or _moves(checks, checks.noise)):
        return None
    who = f"attention of {_layers(layers)}" if layers else "the model"
    return (
        f"{who} is random in eval mode, so neither its maps nor whether it looks into the future can be told: draw "
        "random numbers, such as dropout, only `if self.training`"
    )


def _leak(checks: Checks) -> str | None:
    if math.isnan(checks.causality):
        return "the logits are not numbers: the model diverged"
    # Only two tokens are changed, and no leak reaches the logits of a new model whose last matrices are zero. A weight
    # on a later token shows both. Layers that are not faithful have no maps and are left out.
    layers = enumerate(zip(checks.by_layer["future"], checks.by_layer["fidelity"], strict=True))
    leaking = [layer for layer, (weight, error) in layers if weight > EXACT and error <= _fidelity_limit(checks)]
    if _moves(checks, checks.causality):
        shown = f"changing token {checks.changed_token} moves the logits before it by {checks.causality:.2g}"
    elif leaking:
        shown = f"a later token has a weight of up to {max(checks.by_layer['future'][layer] for layer in leaking):.2g}"
    else:
        return None
    who, verb = _layers(leaking) if leaking else "the model", "look" if len(leaking) > 1 else "looks"
    return f"{who} {verb} into the future: {shown}; the loss means nothing"


def _unfaithful(checks: Checks) -> str | None:
    limit = _fidelity_limit(checks)
    if math.isnan(checks.fidelity):
        return "the attention maps are not numbers: the model diverged"
    if checks.fidelity <= limit:
        return None
    wrong = [layer for layer, error in enumerate(checks.by_layer["fidelity"]) if error > limit]
    return (
        f"the maps of {_layers(wrong)} are not what the model computes: weights times values differ from what `attend` "
        f"returns by {checks.fidelity:.2g}, where rounding explains {limit:g}; an `attend` that is not linear in the "
        "values or mixes heads has no maps"
    )


def _outside(checks: Checks) -> str | None:
    outside = checks.by_layer["outside"]
    layers = [layer for layer, distance in enumerate(outside) if distance > PAGE_ERROR]
    if not layers:
        return None
    return (
        f"weights of {_layers(layers)} are below 0 or above 1, by up to {max(outside):.2g}: pages and pictures show "
        "them as 0 or 1; inspect_attention.py --output maps.csv has them as they are"
    )


def _layers(layers: Sequence[int]) -> str:
    """Such as "layer 0" or "layers 0, 1 and 4"."""
    return f"layer{'s' * (len(layers) > 1)} {listed([str(layer) for layer in layers])}"


# By name, most of which pages show: what is said if it fails, or None.
CHECKS: dict[str, Callable[[Checks], str | None]] = {
    "repeatable": _noise,
    "causal": _leak,
    "faithful": _unfaithful,
    "in_range": _outside,
}
