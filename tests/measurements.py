"""Random but consistent measurements of snapshots, in the form in which a recording has them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from model.inspection.ablation import Change
from model.inspection.heads import SCORES, threshold, uniform_attention
from model.inspection.probes import Probe
from model.inspection.recording import DETAILS_DIGITS, Checks, Recording, Snapshot, as_json
from model.inspection.survey import measure, summary, windows_of


def causal_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Maps (..., T, T) of these scores."""
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


def survey_maps(maps, probes):
    """What hand-made maps (L, H, T, T) say of the heads: each probe is the only window of its kind."""
    windows = windows_of(probes)
    layers = {name: torch.as_tensor(maps[name]).float() for name in windows}
    measured = {}
    for name, of in windows.items():
        by_layer = [measure(of, layer[None]) for layer in layers[name]]
        measured[name] = {key: torch.stack([one[key] for one in by_layer]) for key in by_layer[0]}
    return summary(windows, measured)


def snapshot_of(maps, probes, step=0, checks=None, **measured) -> Snapshot:
    """A snapshot of hand-made maps, and other measurements as given."""
    heads, arrays = survey_maps(maps, probes), {name: np.asarray(of_probe) for name, of_probe in maps.items()}
    by_layer = {name: [0.0] * len(heads.reach) for name in ("fidelity", "future", "outside", "random")}
    good = {"precision": "float32", "fidelity": 1e-7, "causality": 0.0, "by_layer": by_layer}
    return Snapshot(step, Checks(**good | (checks or {})), heads, maps=arrays, **measured)


def snapshot_with(scores, probes, step=0) -> Snapshot:
    """A snapshot with these scores, which are the same in both halves of the windows."""
    shape = (*next(iter(scores.values())).shape, 1, 1)
    uniform = {name: uniform_attention(len(probe.tokens)).repeat(shape) for name, probe in probes.items()}
    snapshot = snapshot_of(uniform, probes, step)
    of_uniform = snapshot.heads.uniform
    formed = {name: SCORES[name].is_pattern & (score > threshold(of_uniform[name])) for name, score in scores.items()}
    heads = replace(snapshot.heads, scores=scores, formed=snapshot.heads.formed | formed)
    return replace(snapshot, heads=heads)


def learned_recording(
    layers=2, heads=3, labels=12, steps=(0, 1, 2, 4, 8), seed=0, induction=True, **checks
) -> Recording:
    """Head 0.0 becomes a previous-token head, and the last one an induction head; the others keep random maps.

    labels: the tokens of the text, or their number.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = [f" t{i}" for i in range(labels)] if isinstance(labels, int) else list(labels)
    repeated = Probe([99, *range(9), *range(9)], ["<end>", *2 * [f"r{i}" for i in range(9)]], 9)
    probes = {"text": Probe([*range(len(labels))], labels), "repeated": repeated}
    sizes = {name: len(probe.tokens) for name, probe in probes.items()}
    random = {name: 2 * torch.randn(layers, heads, size, size, generator=generator) for name, size in sizes.items()}
    recording = Recording(probes, name="demo")
    for step in steps:
        maps = {}
        for name, size in sizes.items():
            scores = random[name] * (1 + 0.1 * math.log1p(step))
            scores[0, 0] += 2 * math.log1p(step) ** 2 * torch.eye(size).roll(1, 0)
            if induction and name == "repeated":
                scores[-1, -1, 10:] += math.log1p(step) ** 2 * torch.eye(size)[2:11]
            maps[name] = causal_softmax(scores).half().numpy()
        recording.append(measured(snapshot_of(maps, probes, step, checks), probes))
    return recording


def write_recording(recording: Recording, folder: Path) -> Recording:
    """The snapshots in files, as a run leaves them."""
    written = Recording(recording.probes, recording.windows, "tokenizer", folder=folder)
    for snapshot in recording.snapshots:
        written.append(snapshot)
    return written


def measured(snapshot: Snapshot, probes) -> Snapshot:
    """With random numbers for what is measured beside the maps, others at each step."""
    layers, heads = snapshot.shape
    parts, sublayers = ["token embedding"], ["embeddings"]
    for layer in range(layers):
        parts += [*(f"head {layer}.{head}" for head in range(heads)), f"feed-forward {layer}"]
        sublayers += [f"attention {layer}", f"feed-forward {layer}"]
    labels = sorted({label for probe in probes.values() for label in probe.labels})
    texts = {str(token): label for token, label in enumerate(labels)}
    about = {"parts": parts, "sublayers": sublayers, "tokens": texts}
    draw = np.random.default_rng(snapshot.step)
    ablation = {name: {part: Change(float(draw.normal()), 1e-4) for part in parts} for name in probes}
    details = as_json(
        about | {"probes": {name: random_details(draw, about, len(probe.tokens)) for name, probe in probes.items()}},
        DETAILS_DIGITS,
    )
    return replace(snapshot, loss=dict.fromkeys(probes, 2.5), ablation=ablation, details=details)


def random_details(draw: np.random.Generator, about: dict, T: int) -> dict:
    """Of a probe of T tokens, as `recording` describes them."""
    parts, sublayers, V = (len(about[name]) for name in ("parts", "sublayers", "tokens"))
    has_next, top = np.arange(T) < T - 1, min(5, V)
    return {
        "bits": [*draw.exponential(4, T - 1).tolist(), None],
        "rank": [*draw.integers(V, size=T - 1).tolist(), None],
        "top": [draw.permutation(V)[:top].tolist() for _ in range(T)],
        "top_probability": -np.sort(-draw.dirichlet(np.ones(top + 1), T)[:, :top]),
        "lens": {
            "token": draw.integers(V, size=(sublayers, T)),
            "probability": np.where(has_next, draw.uniform(size=(sublayers, T)), np.nan),
            "divergence": draw.exponential(size=(sublayers, T)),
        },
        "attribution": np.where(has_next, draw.normal(size=(parts, T)), np.nan),
        "attribution_error": 2e-7,
    }
