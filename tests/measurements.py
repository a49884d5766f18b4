"""Random but consistent measurements of snapshots, in the form in which an archive and a page have them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from model.inspection.archive import DETAILS_DIGITS, AttentionArchive, Snapshot, as_json
from model.inspection.heads import uniform_attention
from model.inspection.probes import Probe
from model.inspection.survey import measure, stacked, summary, windows_of
from model.pages.history import History


def causal_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Maps (..., T, T) of these scores."""
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


def survey_maps(maps, probes):
    """The scores and habits of hand-made maps (L, H, T, T): each probe is the only window of its kind."""
    windows = windows_of(probes)
    layers = {name: torch.as_tensor(maps[name]).float() for name in windows}
    measured = {name: [measure(of, layer[None]) for layer in layers[name]] for name, of in windows.items()}
    return summary(windows, {name: stacked(of_layers) for name, of_layers in measured.items()})


def snapshot_of(maps, probes, step=0, **measured) -> Snapshot:
    """A snapshot of hand-made maps: what they say about the heads, and other measurements as given."""
    scores, habits = survey_maps(maps, probes)
    values = {"precision": "float32", "fidelity": 1e-7, "causality": 0.0} | measured
    return Snapshot(step, scores=scores, habits=habits, **values)


def over_many_windows(snapshot: Snapshot) -> Snapshot:
    """The same figures as means over a thousand windows, so that none of them is chance."""
    queries = {name: [1000 * count for count in halves] for name, halves in snapshot.habits.queries.items()}
    return replace(snapshot, habits=replace(snapshot.habits, queries=queries))


def snapshot_with(scores, probes, step=0) -> Snapshot:
    """A snapshot with these scores in both halves of many windows, and uniform attention in all else."""
    shape = (*next(iter(scores.values())).shape, 1, 1)
    uniform = {name: uniform_attention(len(probe.tokens)).repeat(shape) for name, probe in probes.items()}
    snapshot = snapshot_of(uniform, probes, step)
    halves = {name: np.stack([score, score]) for name, score in scores.items()}
    return over_many_windows(replace(snapshot, scores=scores, habits=replace(snapshot.habits, halves=halves)))


def learned_history(layers=2, heads=3, labels=12, steps=(0, 1, 2, 4, 8), seed=0, induction=True, **snapshot) -> History:
    """Head 0.0 becomes a previous-token head, and the last one an induction head; the others keep random maps.

    labels: the tokens of the text, or their number.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = [f" t{i}" for i in range(labels)] if isinstance(labels, int) else list(labels)
    repeated = Probe([99, *range(9), *range(9)], ["<end>", *2 * [f"r{i}" for i in range(9)]], 9)
    probes = {"text": Probe([*range(len(labels))], labels), "repeated": repeated}
    sizes = {name: len(probe.tokens) for name, probe in probes.items()}
    random = {name: 2 * torch.randn(layers, heads, size, size, generator=generator) for name, size in sizes.items()}
    maps, snapshots = {}, []
    for step in steps:
        maps[step] = {}
        for name, size in sizes.items():
            scores = random[name] * (1 + 0.1 * math.log1p(step))
            scores[0, 0] += 2 * math.log1p(step) ** 2 * torch.eye(size).roll(1, 0)
            if induction and name == "repeated":
                scores[-1, -1, 10:] += math.log1p(step) ** 2 * torch.eye(size)[2:11]
            maps[step][name] = causal_softmax(scores).half().numpy()
        snapshots.append(over_many_windows(snapshot_of(maps[step], probes, step, **snapshot)))
    return measured(History("demo", probes, snapshots, maps.get, list(steps)))


def write_archive(history: History, folder: Path) -> AttentionArchive:
    """The snapshots in files, as a run leaves them."""
    archive = AttentionArchive(folder, history.probes, "tokenizer")
    for snapshot in history.snapshots:
        archive.add(snapshot, history.load(snapshot.step), history.details(snapshot.step))
    return archive


def measured(history: History) -> History:
    """The snapshots with random numbers for what is measured beside their maps, others at each step."""
    (layers, heads), names = history.snapshots[0].shape, history.probes
    parts, sublayers = ["token embedding"], ["embeddings"]
    for layer in range(layers):
        parts += [*(f"head {layer}.{head}" for head in range(heads)), f"feed-forward {layer}"]
        sublayers += [f"attention {layer}", f"feed-forward {layer}"]
    labels = sorted({label for probe in history.probes.values() for label in probe.labels})
    texts = {str(token): label for token, label in enumerate(labels)}
    about, snapshots, details = {"parts": parts, "sublayers": sublayers, "tokens": texts}, [], {}
    for snapshot in history.snapshots:
        draw = np.random.default_rng(snapshot.step)
        ablation = {name: {part: float(draw.normal()) for part in parts} for name in names}
        loss, copying = dict.fromkeys(names, 2.5), draw.uniform(-1, 1, (layers, heads))
        snapshots.append(replace(snapshot, loss=loss, ablation=ablation, copying=copying))
        probes = {name: random_details(draw, about, len(probe.tokens), heads) for name, probe in names.items()}
        details[snapshot.step] = as_json(about | {"probes": probes}, DETAILS_DIGITS)
    return replace(history, snapshots=snapshots, details=details.__getitem__)


def random_details(draw: np.random.Generator, about: dict, T: int, heads: int) -> dict:
    """Of a probe of T tokens, as `archive` describes them."""
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
        "value_norms": draw.uniform(size=(sublayers // 2, heads, T)),
    }
