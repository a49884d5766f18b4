"""Takes a snapshot of a model: its attention maps, whether they can be trusted, and what its heads do.

The maps are of the two probes, short texts that people look at. The scores of the heads, and the sentences about them,
are of the many windows that `survey` reads. Both meet in one line of scores.jsonl (see `archive`) and on the page.

For the maps, the model runs in eval mode, without its compiled code. Every layer's call of `attend` is observed, and
the layer is then asked what it makes of the identity in place of the values: its weights, whatever `attend` computes.
Two numbers, of which 0 is best, say whether the maps can be trusted, unless attention draws random numbers:

    fidelity    max |weights @ values - what `attend` returned|, over all layers. Where the largest value of a layer is
                above 1, its difference is divided by that value, because rounding errors grow with the values. It is
                large for an `attend` that is not linear in the values or mixes heads.
    causality   the largest change of any logit before token j when token j is replaced; beyond rounding, a leak. Two
                tokens are replaced; `verdicts` also asks that no weight lies on a later token.

The other measurements (`survey`, `lens`, `attribution`, `ablation`, `copying`) are made without autocast, so that
rounding does not blur them.

Shapes: L layers, H heads, H_kv key and value heads, T tokens, K head width.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.gpt import GPT
from model.inspection.ablation import part_means, without_each
from model.inspection.archive import DETAILS_DIGITS, AttentionArchive, Snapshot, as_json
from model.inspection.attribution import attribution
from model.inspection.copying import copying_scores, value_norms
from model.inspection.lens import predictions, stages
from model.inspection.probes import Label, Probes
from model.inspection.survey import Windows, survey, windows_of
from model.inspection.trace import AttendCall, blocks_of, in_float32, observed, trace, undisturbed

Edited = Callable[[str, GPT], AbstractContextManager]


def unedited(*_: Any) -> AbstractContextManager:
    return nullcontext()


@dataclass(frozen=True)
class Capture:
    """The maps of one sequence and how far they can be trusted.

    weights: (L, H, T, T) in float32, on the CPU.
    precision: the type of the values that attention returned, such as "bfloat16".
    fidelity, causality: as the module's docstring defines them.
    checks: the figures behind them: of each layer "fidelity", "future", the largest weight on a later token, and
        "outside", how far a weight lies outside [0, 1], and "random", by how much two calls with the same q, k and v
        differ, relative as fidelity is; "replaced", the token whose change moved the logits before it most; "noise", by
        how much the logits change when the same tokens are read again; and "logits", the largest of them.
    """

    weights: Tensor
    precision: str
    fidelity: float
    causality: float
    checks: dict[str, Any]


@torch.no_grad()
def capture(gpt: GPT, tokens: Tensor | Sequence[int], *, autocast: torch.dtype | None = None) -> Capture:
    """Every attention map of the model on one sequence, (T,) or (1, T). The model runs as in `undisturbed`.

    autocast: as there.

    Raises ValueError as `one_sequence` and `GPT.known_ids`, and for a sequence that is longer than the model's context.
    """
    sequence = gpt.known_ids(one_sequence(tokens))
    length = sequence.shape[1]
    calls: list[AttendCall] = []
    weights, errors, noise = [], [], []
    leaks = {}  # by the token that was replaced
    with undisturbed(gpt, autocast):
        with observed([block.attention for block in blocks_of(gpt)], calls.append):
            logits = gpt(sequence)
        for call in calls:  # other random numbers are drawn each time
            noise.append(call.difference(call.attend(call.q, call.k, call.v)))
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
    precision = str(calls[0].attended.dtype).removeprefix("torch.")
    maps = torch.stack(weights)
    checks = {
        "fidelity": errors,
        "future": maps.triu(1).abs().amax((1, 2, 3)).tolist(),
        "outside": (maps - maps.clamp(0, 1)).abs().amax((1, 2, 3)).tolist(),
        "random": noise,
        "replaced": max(leaks, key=leaks.__getitem__, default=0),
        "noise": (again - logits).abs().max().item(),
        "logits": logits.abs().max().item(),
    }
    return Capture(maps, precision, float(np.max(errors)), float(np.max([0.0, *leaks.values()])), checks)


def one_sequence(tokens: Tensor | Sequence[int]) -> Tensor:
    """Token ids (T,) or (1, T) as (1, T) of int64. Raises ValueError for no tokens, or more than one sequence."""
    sequence = torch.atleast_2d(torch.as_tensor(tokens))
    if len(sequence) != 1 or sequence.ndim != 2 or not sequence.numel() or sequence.is_floating_point():
        shape, dtype = tuple(sequence.shape), str(sequence.dtype).removeprefix("torch.")
        raise ValueError(f"one sequence of at least one token is needed, (T,) or (1, T), not {shape} of {dtype}")
    return sequence


def record_snapshot(
    archive: AttentionArchive, gpt: GPT, step: int, label: Label = str, *, autocast: torch.dtype | None = None
) -> dict[str, float]:
    """Adds what `take_snapshot` measures on the archive's probes to the archive, and returns the metrics to log.

    Keys: attention/fidelity, attention/causality, and attention/SCORE/layer_N, the best head of each layer.
    """
    taken = take_snapshot(gpt, archive.probes, step, label, windows=archive.windows, autocast=autocast)
    snapshot, maps, details = taken
    archive.add(snapshot, maps, details)
    best = {
        f"attention/{name}/layer_{layer}": float(heads.max())
        for name, score in snapshot.scores.items()
        for layer, heads in enumerate(score)
    }
    return {"attention/fidelity": snapshot.fidelity, "attention/causality": snapshot.causality, **best}


def take_snapshot(
    gpt: GPT,
    probes: Probes,
    step: int,
    label: Label = str,
    *,
    windows: Mapping[str, Windows] | None = None,
    edited: Edited = unedited,
    autocast: torch.dtype | None = None,
) -> tuple[Snapshot, dict[str, np.ndarray], dict]:
    """Measures a model on the probes "text" and "repeated".

    Args:
        windows: over which heads are measured and ablated parts averaged; the probes if None.
        edited: from "text", "repeated" or "windows" and the model, or its copy in float32, to a context in which that
            is as it shall be measured there.
        autocast: see `capture`.

    Returns:
        The snapshot, each probe's maps (L, H, T, T), and the details as `archive` describes them.
    """
    windows = windows or windows_of(probes)
    coarse, gpt = gpt, in_float32(gpt)
    snapshot, maps = take_maps(coarse, gpt, probes, step, windows, edited=edited, autocast=autocast)
    device = gpt.token_embedding.weight.device
    tokens = {name: torch.tensor(probe.tokens, device=device) for name, probe in probes.items()}
    losses, changes, measured = {}, {}, {}
    shown: set[int] = set()
    with undisturbed(gpt):  # what is computed beside the model must not run under an autocast of the caller either
        means = part_means(gpt, windows["text"].sample)
        for name, probe in probes.items():
            second_half = 0 if probe.period is None else len(probe.tokens) - probe.period
            with edited(name, gpt):
                losses[name], changes[name] = without_each(gpt, tokens[name], means, first=second_half)
                traced = trace(gpt, tokens[name])
            predicted = predictions(gpt, traced)
            parts, error = attribution(gpt, traced)
            shown.update(*predicted["top"], *predicted["lens"]["token"])
            given = {"attribution": torch.stack(list(parts.values())), "attribution_error": error}
            measured[name] = predicted | given | {"value_norms": value_norms(gpt, traced)}
        copying = copying_scores(gpt).numpy()
    texts = {str(token): label(token) for token in sorted(shown)}
    details = {"parts": list(parts), "sublayers": stages(gpt), "tokens": texts, "probes": measured}
    snapshot = replace(snapshot, loss=losses, ablation=changes, copying=copying)
    return snapshot, maps, as_json(details, DETAILS_DIGITS)


def take_maps(
    gpt: GPT,
    exact: GPT,
    probes: Probes,
    step: int,
    windows: Mapping[str, Windows],
    *,
    edited: Edited = unedited,
    autocast: torch.dtype | None = None,
) -> tuple[Snapshot, dict[str, np.ndarray]]:
    """The maps of a model, and what is known from attention alone: the rest of the snapshot is None.

    exact: the model `in_float32`. windows, edited, autocast: see `take_snapshot`.
    """
    captures = {}
    for name, probe in probes.items():
        with edited(name, gpt):
            captures[name] = capture(gpt, probe.tokens, autocast=autocast)
    taken = list(captures.values())
    worst = {name: np.max([one.checks[name] for one in taken], axis=0) for name in taken[0].checks}
    with edited("windows", exact):
        scores, habits = survey(exact, windows)
    fidelity, causality = np.max([(one.fidelity, one.causality) for one in taken], axis=0).tolist()  # NaN if one is
    checks = worst | {"replaced": max(taken, key=lambda one: one.causality).checks["replaced"]}
    precision = captures["text"].precision
    snapshot = Snapshot(step, precision, fidelity, causality, scores, habits, checks=checks)
    return snapshot, {name: one.weights.numpy() for name, one in captures.items()}
