"""Takes a snapshot of a model: its attention maps, whether they can be trusted, and what its heads do.

The maps are of the two probes, short texts that people look at. The scores of the heads, and the sentences about them,
are of the many windows that `survey` reads. Both meet in one line of scores.jsonl (see `recording`) and on the page.

For the maps, the model runs in eval mode, without its compiled code. Every layer's call of `attend` is observed, and
the layer is then asked what it makes of the identity in place of the values: its weights, whatever `attend` computes.
Two numbers, of which 0 is best, say whether the maps can be trusted, unless attention draws random numbers:

    fidelity    max |weights @ values - what `attend` returned|, over all layers. Where the largest value of a layer is
                above 1, its difference is divided by that value, because rounding errors grow with the values. It is
                large for an `attend` that is not linear in the values or mixes heads.
    causality   the largest change of any logit before token j when token j is replaced; beyond rounding, a leak. Two
                tokens are replaced; `verdicts` also asks that no weight lies on a later token.

The other measurements (`survey`, `lens`, `attribution`, `ablation`) are made without autocast, so that rounding does
not blur them.

Shapes: L layers, H heads, T tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from model.gpt import GPT
from model.inspection.ablation import Change, changes, losses_without_each, part_means
from model.inspection.attribution import attribution
from model.inspection.lens import predictions, stages
from model.inspection.probes import Label, Probe
from model.inspection.recording import DETAILS_DIGITS, Checks, Recording, Snapshot, as_json
from model.inspection.survey import Windows, survey
from model.inspection.trace import AttendCall, blocks_of, in_float32, observed, trace, undisturbed


@torch.no_grad()
def read_maps(
    gpt: GPT, tokens: Tensor | Sequence[int], *, autocast: torch.dtype | None = None
) -> tuple[Tensor, Checks]:
    """Every attention map of the model on one sequence, (T,) or (1, T), and how far they can be trusted.

    The maps are (L, H, T, T) in float32, on the CPU. The model runs as in `undisturbed`; autocast: as there.

    Raises ValueError as `one_sequence` and `GPT.known_ids`, and for a sequence that is longer than the model's context.
    """
    sequence = gpt.known_ids(one_sequence(tokens))
    length = sequence.shape[1]
    calls: list[AttendCall] = []
    weights, errors = [], []
    leaks = {}  # by the token that was replaced
    with undisturbed(gpt, autocast):
        with observed([block.attention for block in blocks_of(gpt)], calls.append):
            logits = gpt(sequence)
        noise = [call.difference(call.attend(call.q, call.k, call.v)) for call in calls]  # other random numbers
        again = gpt(sequence)
        for position in sorted({length // 2, length - 1} - {0}):  # nothing comes before token 0
            replaced = sequence.clone()
            replaced[0, position] = 0 if replaced[0, position] else 1
            # A call of its own: in a batch of two other kernels might run, and rounding would look like a leak.
            change = gpt(replaced) - logits
            leaks[position] = change[:, :position].abs().max().item()
    with undisturbed(gpt):
        for call in calls:
            of_layer = call.weights()
            errors.append(call.infidelity(of_layer))
            weights.append(of_layer[0].float().cpu())
    maps = torch.stack(weights)
    by_layer = {
        "fidelity": errors,
        "future": maps.triu(1).abs().amax((1, 2, 3)).tolist(),
        "outside": (maps - maps.clamp(0, 1)).abs().amax((1, 2, 3)).tolist(),
        "random": noise,
    }
    checks = Checks(
        precision=str(calls[0].attended.dtype).removeprefix("torch."),
        fidelity=float(np.max(errors)),
        causality=float(np.max([0.0, *leaks.values()])),
        by_layer=by_layer,
        replaced=max(leaks, key=leaks.__getitem__, default=0),
        noise=(again - logits).abs().max().item(),
        logits=logits.abs().max().item(),
    )
    return maps, checks


def one_sequence(tokens: Tensor | Sequence[int]) -> Tensor:
    """Token ids (T,) or (1, T) as (1, T) of int64. Raises ValueError for no tokens, or more than one sequence."""
    sequence = torch.atleast_2d(torch.as_tensor(tokens))
    if len(sequence) != 1 or sequence.ndim != 2 or not sequence.numel() or sequence.is_floating_point():
        shape, dtype = tuple(sequence.shape), str(sequence.dtype).removeprefix("torch.")
        raise ValueError(f"one sequence of at least one token is needed, (T,) or (1, T), not {shape} of {dtype}")
    return sequence


Edited = Callable[[GPT, str], AbstractContextManager]


def take_snapshot(
    gpt: GPT,
    step: int,
    recording: Recording,
    label: Label = str,
    *,
    with_losses: bool = False,
    edited: Edited = lambda *_: nullcontext(),
    autocast: torch.dtype | None = None,
) -> Snapshot:
    """Measures a model on the probes and windows of a recording.

    Args:
        with_losses: measure what the model loses without each part too, which takes many times as long as all else.
        edited: from the model, or its copy in float32, and "text", "repeated" or "windows" to a context in which it is
            as it shall be measured there.
        autocast: see `read_maps`.
    """
    maps, checks = {}, []
    for name, probe in recording.probes.items():
        with edited(gpt, name):
            of_probe, trust = read_maps(gpt, probe.tokens, autocast=autocast)
        maps[name] = of_probe.numpy()
        checks.append(trust)
    exact = in_float32(gpt)
    details = read_details(exact, recording.probes, label, edited)
    with edited(exact, "windows"):
        heads = survey(exact, recording.windows)
        loss, ablation = measure_losses(exact, recording.windows) if with_losses else (None, None)
    return Snapshot(step, Checks.worst(checks), heads, loss, ablation, maps, details)


def read_details(gpt: GPT, probes: Mapping[str, Probe], label: Label, edited: Edited) -> dict:
    """What a model predicts at each token of the probes, and why, as `recording` describes it."""
    measured: dict[str, dict] = {}
    shown: set[int] = set()
    for name, probe in probes.items():
        with edited(gpt, name):
            traced = trace(gpt, torch.tensor(probe.tokens, device=gpt.token_embedding.weight.device))
        predicted = predictions(gpt, traced)
        parts, error = attribution(gpt, traced)
        shown.update(*predicted["top"], *predicted["lens"]["token"])
        given = {"attribution": torch.stack(list(parts.values())), "attribution_error": error}
        measured[name] = predicted | given
    texts = {str(token): label(token) for token in sorted(shown)}
    details = {"parts": list(parts), "sublayers": stages(gpt), "tokens": texts, "probes": measured}
    return as_json(details, DETAILS_DIGITS)


def measure_losses(gpt: GPT, windows: Mapping[str, Windows]) -> tuple[dict[str, float], dict[str, dict[str, Change]]]:
    """The loss on the windows of each kind, and how it changes without each part: `Snapshot.loss` and `.ablation`."""
    loss, ablation = {}, {}
    for name, of_kind in windows.items():
        means = part_means(gpt, of_kind.sample)  # another kind of text would add what a part never gives here
        losses = losses_without_each(gpt, gpt.known_ids(of_kind.tokens), means, of_kind.predictions)
        loss[name], ablation[name] = losses["nothing"].mean().item(), changes(losses)
    return loss, ablation


def metrics_of(snapshot: Snapshot) -> dict[str, float]:
    """What is logged: attention/fidelity, attention/causality, and attention/SCORE/layer_N, a layer's best head."""
    best = {
        f"attention/{name}/layer_{layer}": float(heads.max())
        for name, score in snapshot.scores.items()
        for layer, heads in enumerate(score)
    }
    return {"attention/fidelity": snapshot.checks.fidelity, "attention/causality": snapshot.checks.causality, **best}
