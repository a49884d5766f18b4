"""Probes, hand-made maps, and recordings of heads that learn a pattern."""

import math

import numpy as np
import torch

from model.gpt import GPTConfig
from model.inspection.film import BEGIN, WORD
from model.inspection.heads import table_of, values_of
from model.inspection.maps import Checks
from model.inspection.parts import Change
from model.inspection.reading import RecordedReading, read
from model.inspection.recording import Recording, Snapshot
from model.inspection.texts import Texts, repeated_tokens
from tests.by_hand import turned
from tests.gpts import TOKENS, random_gpt

TEXT = TOKENS.tolist()
LABELS = [f" t{i}" for i in range(12)]
WORDS = Texts.of([[*range(word, word + WORD), *range(word, word + BEGIN + 1)] for word in (3, 20)])  # of a film


def text_of(tokens, labels=None, kind="text", **options):
    """A single text, by default with equal labels."""
    return Texts(torch.tensor([list(tokens)]), [list(labels or ["x"] * len(tokens))], kind, **options)


def new_recording(folder=None):
    """A recording of a text; with windows, and resumed, if a folder is given."""
    repeated = Texts.of(repeated_tokens(range(50), 7, first=0), kind="repeated")
    probes = {"text": Texts.of(TEXT), "repeated": repeated}
    windows = {"text": Texts.of([TEXT, TEXT[::-1]]), "repeated": repeated}
    return Recording(probes, windows, "fingerprint", folder=folder).resumed(10**9) if folder else Recording(probes)


def causal_softmax(scores):
    """The maps (..., T, T) of these scores, with a causal mask."""
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


def uniform_maps(length):
    """A map (T, T) in which each query q spreads its weight equally: 1 / (q + 1) on each visible key."""
    return causal_softmax(torch.zeros(length, length))


def heads_of(maps, probes):
    """The head scores of hand-made maps (L, H, T, T), with each probe as the only window of its kind."""
    layers = {kind: torch.as_tensor(maps[kind])[:, None] for kind in probes}
    return table_of(probes, {kind: values_of(layers[kind], texts) for kind, texts in probes.items()})


def snapshot_of(maps, probes, step=0, checks=None, figures=None, **measured):
    """A snapshot with hand-made maps and the given measurements."""
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


def probes_of(labels, period=9, first=1):
    """A text with these labels, and distinct tokens that are repeated once, after one other token or none."""
    tokens = [99] * first + 2 * list(range(period))
    text = text_of([labels.index(label) for label in labels], labels)
    return {"text": text, "repeated": text_of(tokens, [f"r{token}" for token in tokens], "repeated")}


def noise(probes, layers=2, heads=3, seed=0):
    """Normal random scores (L, H, T, T) for each probe."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {kind: (layers, heads, probe.length, probe.length) for kind, probe in probes.items()}
    return {kind: torch.randn(size, generator=generator) for kind, size in sizes.items()}


def learned_recording(layers=2, heads=3, labels=LABELS, steps=(0, 1, 2, 4, 8), seed=0, folder=None, **checks):
    """Head 0.0 becomes a previous-token head, and the last one an induction head; the others keep random maps.

    labels: the tokens of the text. folder: where snapshots are written, as a run does.
    """
    probes = probes_of(labels)
    random = noise(probes, layers, heads, seed)
    recording = Recording(probes, tokenizer="tokenizer", name="demo", folder=folder)
    for step in steps:
        maps = {}
        for name, probe in probes.items():
            scores = random[name] * (2 + 0.2 * math.log1p(step))
            scores[0, 0] += 2 * math.log1p(step) ** 2 * torch.eye(probe.length).roll(1, 0)
            if name == "repeated":
                scores[-1, -1, 10:] += math.log1p(step) ** 2 * torch.eye(probe.length)[2:11]
            maps[name] = causal_softmax(scores).half()
        recording.append(random_snapshot(maps, probes, step, checks))
    return recording


def random_snapshot(maps, probes, step, checks):
    """A snapshot with figures of a random GPT, which differs at each step, and random ablations."""
    layers, heads = maps["text"].shape[:2]
    config = GPTConfig(100, context_length=99, num_layers=layers, num_heads=heads, embed_dim=4 * heads)
    gpt, figures = random_gpt(config, step), {}
    for kind, probe in probes.items():
        labels = dict(zip(probe.tokens[0].tolist(), probe.labels[0], strict=True))
        figures[kind] = read(gpt, probe, label=lambda token, labels=labels: labels.get(token, f"({token})")).figures
    draw = np.random.default_rng(step)
    parts = figures["text"]["parts"]
    ablation = {kind: {part: Change(float(draw.normal()), 1e-4) for part in parts} for kind in probes}
    return snapshot_of(maps, probes, step, checks, figures, loss=dict.fromkeys(probes, 2.5), ablation=ablation)


def raised(exact, head, written, query, key):
    """By how much `written` (T, D), a part of the stream, raises a score of the last layer above the query's mean.

    The norms have the scales that they have for the whole stream and for the whole key.
    """
    config, seen, attention = exact.config, exact.layers[-1], f"blocks.{exact.config.num_layers - 1}.attention"
    place = config.num_heads + head // (config.num_heads // config.num_kv_heads)  # of the key among all heads
    normed = exact.share_of_norm(written, seen["stream into the block"], f"{attention}_norm")
    keys = normed @ exact.weights[f"{attention}.qkv_proj.weight"].split(config.head_dim)[place].T
    if config.qk_norm:
        whole = seen["queries, keys, values"].split(config.head_dim, dim=-1)[place]
        keys = keys / whole.square().mean(-1, keepdim=True).sqrt()
    if config.position == "rotary":
        keys = turned(keys)
    query_vector = seen.get("queries, turned", seen["queries"])[head, query]
    scores = keys @ query_vector / math.sqrt(config.head_dim)
    return (scores[key] - scores[seen["mask"][query]].mean()).item()
