"""Random but consistent measurements of captures, in the form in which an archive and a page have them."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from model.gpt import GPTConfig
from model.inspection.archive import AttentionArchive, Snapshot
from model.inspection.heads import uniform_attention
from model.inspection.probes import Probe
from model.inspection.recorder import take_snapshot
from model.inspection.survey import measure, stacked, summary, windows_of
from model.pages.captures import Captures
from tests.gpts import random_gpt


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
    """A capture of hand-made maps: what they say about the heads, and other measurements as given."""
    scores, habits = survey_maps(maps, probes)
    values = {"precision": "float32", "fidelity": 1e-7, "causality": 0.0} | measured
    return Snapshot(step, scores=scores, habits=habits, **values)


def over_many_windows(snapshot: Snapshot) -> Snapshot:
    """The same figures as means over a thousand windows, so that none of them is chance."""
    queries = {name: [1000 * count for count in halves] for name, halves in snapshot.habits.queries.items()}
    return replace(snapshot, habits=replace(snapshot.habits, queries=queries))


def snapshot_with(scores, probes, step=0) -> Snapshot:
    """A capture with these scores in both halves of many windows, and uniform attention in all else."""
    shape = (*next(iter(scores.values())).shape, 1, 1)
    uniform = {name: uniform_attention(len(probe.tokens)).repeat(shape) for name, probe in probes.items()}
    snapshot = snapshot_of(uniform, probes, step)
    halves = {name: np.stack([score, score]) for name, score in scores.items()}
    return over_many_windows(replace(snapshot, scores=scores, habits=replace(snapshot.habits, halves=halves)))


def learned_captures(
    layers=2, heads=3, labels=12, steps=(0, 1, 2, 4, 8), seed=0, induction=True, **snapshot
) -> Captures:
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
    return Captures("demo", probes, snapshots, maps.get, list(steps))


def write_archive(captures: Captures, folder: Path) -> AttentionArchive:
    """The captures in files, as a run leaves them."""
    archive = AttentionArchive(folder, captures.probes, "tokenizer")
    for snapshot in captures.snapshots:
        archive.add(snapshot, captures.load(snapshot.step))
    return archive


def measured(captures: Captures) -> Captures:
    """The captures with what is measured of a random GPT, another at each step, on tokens with these labels."""
    vocabulary = sorted({label for probe in captures.probes.values() for label in probe.labels})
    probes = {
        name: replace(probe, tokens=[vocabulary.index(label) for label in probe.labels])
        for name, probe in captures.probes.items()
    }
    layers, heads = captures.snapshots[0].shape
    longest = max(len(probe.tokens) for probe in probes.values())
    config = GPTConfig(len(vocabulary), longest, layers, heads, embed_dim=8 * heads, bigram_buckets=7)
    snapshots, details = [], {}
    for snapshot in captures.snapshots:
        gpt = random_gpt(config, seed=snapshot.step)
        taken, _, details[snapshot.step] = take_snapshot(gpt, probes, 0, vocabulary.__getitem__)
        snapshots.append(replace(snapshot, ablation=taken.ablation, copying=taken.copying))
    return replace(captures, snapshots=snapshots, details=details.get)
