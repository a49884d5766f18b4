"""Random but consistent measurements of snapshots, in the form in which a recording has them."""

import math
from pathlib import Path

import numpy as np
import torch

from model.inspection.heads import HeadTable, figures_of, table_of
from model.inspection.maps import Checks
from model.inspection.parts import Change
from model.inspection.reading import DIGITS, RecordedReading, as_json
from model.inspection.recording import Recording, Snapshot
from model.inspection.texts import Texts, repeated_tokens
from tests.gpts import TOKENS

TEXT = TOKENS.tolist()


def text_of(tokens, labels=None, kind="text", **options) -> Texts:
    """A single text, by default with labels that say nothing."""
    return Texts(torch.tensor([list(tokens)]), [list(labels or ["x"] * len(tokens))], kind, **options)


def new_recording(folder=None, text=TEXT) -> Recording:
    """Of a text and of windows; resumed where there is one in the folder."""
    repeated = Texts.of(repeated_tokens(range(50), 7, first=0), kind="repeated")
    probes = {"text": Texts.of(text), "repeated": repeated}
    windows = {"text": Texts.of([text, text[::-1]]), "repeated": repeated}
    return Recording(probes) if folder is None else Recording.resume(folder, probes, windows, "fingerprint")


def causal_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Maps (..., T, T) of these scores."""
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


def uniform_maps(length: int) -> torch.Tensor:
    """(T, T): every key that a query sees gets the same, 1 / (q + 1) from query q."""
    return causal_softmax(torch.zeros(length, length))


def heads_of(maps, probes) -> HeadTable:
    """What hand-made maps (L, H, T, T) say of the heads: each probe is the only window of its kind."""
    measured = {}
    for kind, texts in probes.items():
        by_layer = [figures_of(layer[None], texts) for layer in torch.as_tensor(maps[kind]).float()]
        measured[kind] = {name: torch.stack([one[name] for one in by_layer]) for name in by_layer[0]}
    return table_of(probes, measured)


def snapshot_of(maps, probes, step=0, checks=None, figures=None, **measured) -> Snapshot:
    """A snapshot of hand-made maps, and other measurements as given."""
    heads = heads_of(maps, probes)
    by_layer = {name: [0.0] * len(heads.reach) for name in ("fidelity", "future", "outside")}
    good = {"precision": "float32", "fidelity": 1e-7, "causality": 0.0, "noise": 0.0, "logits": 1.0}
    readings = {}
    for kind, probe in probes.items():
        readings[kind] = RecordedReading(
            probe.labels[0], torch.as_tensor(maps[kind]).float(), (figures or {}).get(kind)
        )
    trust = Checks(by_layer=by_layer, **good | (checks or {}))
    return Snapshot(step, trust, heads, readings=readings, **measured)


def learned_recording(
    layers=2, heads=3, labels=12, steps=(0, 1, 2, 4, 8), seed=0, induction=True, **checks
) -> Recording:
    """Head 0.0 becomes a previous-token head, and the last one an induction head; the others keep random maps.

    labels: the tokens of the text, or their number.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = [f" t{i}" for i in range(labels)] if isinstance(labels, int) else list(labels)
    repeated = text_of([99, *range(9), *range(9)], ["<end>", *2 * [f"r{i}" for i in range(9)]], "repeated")
    probes = {"text": text_of(range(len(labels)), labels), "repeated": repeated}
    sizes = {name: probe.length for name, probe in probes.items()}
    random = {name: 2 * torch.randn(layers, heads, size, size, generator=generator) for name, size in sizes.items()}
    recording = Recording(probes, name="demo")
    for step in steps:
        maps = {}
        for name, size in sizes.items():
            scores = random[name] * (1 + 0.1 * math.log1p(step))
            scores[0, 0] += 2 * math.log1p(step) ** 2 * torch.eye(size).roll(1, 0)
            if induction and name == "repeated":
                scores[-1, -1, 10:] += math.log1p(step) ** 2 * torch.eye(size)[2:11]
            maps[name] = causal_softmax(scores).half()
        recording.append(random_snapshot(maps, probes, step, checks))
    return recording


def write_recording(recording: Recording, folder: Path) -> Recording:
    """The snapshots in files, as a run leaves them."""
    written = Recording(recording.probes, recording.windows, "tokenizer", folder=folder)
    for snapshot in recording.snapshots:
        written.append(snapshot)
    return written


def random_snapshot(maps, probes, step=0, checks=None) -> Snapshot:
    """With random numbers for what is measured beside the maps, others at each step."""
    layers, heads = maps["text"].shape[:2]
    parts, sublayers = ["token embedding"], ["embeddings"]
    for layer in range(layers):
        parts += [*(f"head {layer}.{head}" for head in range(heads)), f"feed-forward {layer}"]
        sublayers += [f"attention {layer}", f"feed-forward {layer}"]
    labels = sorted({label for probe in probes.values() for label in probe.labels[0]})
    texts = {str(token): label for token, label in enumerate(labels)}
    about = {"parts": parts, "sublayers": sublayers, "tokens": texts}
    draw = np.random.default_rng(step)
    ablation = {name: {part: Change(float(draw.normal()), 1e-4) for part in parts} for name in probes}
    figures = {name: random_figures(draw, about, probe.length) for name, probe in probes.items()}
    return snapshot_of(maps, probes, step, checks, figures, loss=dict.fromkeys(probes, 2.5), ablation=ablation)


def random_figures(draw: np.random.Generator, about: dict, T: int) -> dict:
    """Of a text of T tokens, as `Reading.figures` describes them."""
    parts, sublayers, V = (len(about[name]) for name in ("parts", "sublayers", "tokens"))
    has_next, top = np.arange(T) < T - 1, min(5, V)
    figures = {
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
    return as_json(about | figures, DIGITS)
