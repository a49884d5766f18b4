"""What a page that runs a model is packed with. That it runs is tested in test_engine.py."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from data.tokenizers import byte_level
from model.attention import CausalSelfAttention
from model.gpt import GPTConfig
from model.inspection.parts import part_means
from model.inspection.recording import Recording, take_snapshot
from model.inspection.texts import Texts, repeated_windows
from model.mistakes import Mistake
from model.pages import weights
from model.pages.page import run_page
from tests.attentions import with_scores
from tests.gpts import CONFIGS, MODERN, TOKENS, random_gpt, repeating_gpt
from tests.html_pages import Page

TOKENIZER = byte_level()
PROBE = Texts.of(TOKENS)


@torch.no_grad()
def test_rounding_is_within_half_a_step_and_its_cost_is_told(monkeypatch):
    gpt = random_gpt(MODERN)
    exact = gpt(TOKENS[None])[0].log_softmax(-1)
    for limit, kind, largest in ((weights.EXACT_BYTES, "bfloat16", 2**-8), (0, "int8", 0.5 / 127)):
        monkeypatch.setattr(weights, "EXACT_BYTES", limit)
        packed = weights.pack([(3, gpt)], TOKENIZER, PROBE)
        assert packed.manifest["kind"] == kind and packed.manifest["steps"] == [3]
        rounded = random_gpt(MODERN)
        for weight, before in zip(rounded.parameters(), gpt.parameters(), strict=True):
            row = weight.abs().amax(1, keepdim=True)
            weight.copy_(weight.bfloat16() if kind == "bfloat16" else (weight * 127 / row).round() * row / 127)
            assert ((weight - before).abs() <= 1.001 * largest * row).all()
        cost = F.kl_div(rounded(TOKENS[None])[0].log_softmax(-1), exact, reduction="batchmean", log_target=True)
        assert packed.manifest["parity"]["bits"] == [pytest.approx(cost.item() / math.log(2), rel=1e-3)]


def test_the_packed_model_stays_as_it_was_whatever_its_type():
    gpt = random_gpt(MODERN).bfloat16().train()
    before = {name: weight.clone() for name, weight in gpt.state_dict().items()}
    packed = weights.pack([(0, gpt)], TOKENIZER, PROBE)
    assert packed.manifest["parity"]["bits"] == [0.0]  # nothing is rounded
    assert gpt.training and all(torch.equal(weight, before[name]) for name, weight in gpt.state_dict().items())


def test_every_part_has_a_mean_and_a_tied_head_is_stored_once():
    gpt = random_gpt(replace(CONFIGS["tables"], tie_embeddings=True, position="learned"))
    manifest = weights.pack([(0, gpt)], TOKENIZER, PROBE).manifest
    tensors, means = ([tensor["name"] for tensor in manifest[kind]] for kind in ("tensors", "means"))
    assert tensors == [name for name, _ in gpt.named_parameters()] and "head.weight" not in tensors
    assert means == list(part_means(gpt, PROBE))


def test_a_model_that_is_too_large_is_refused_with_its_size(monkeypatch):
    wide = GPTConfig(vocab_size=50257, context_length=16, num_layers=1, num_heads=1, embed_dim=32)
    packed = weights.pack([(0, random_gpt(wide))], TOKENIZER, PROBE)  # such a vocabulary fits where the model is small
    assert len(packed.blocks[0]) < weights.EXACT_BYTES
    with pytest.raises(Mistake, match="in each of 9 snapshots"):
        weights.pack([(step, random_gpt(wide)) for step in range(9)], TOKENIZER, PROBE)
    monkeypatch.setattr(weights, "MAX_BYTES", 3_000_000)
    size = r"would take 5 MB, and the limit is 3 MB: it has 3,22\d,\d+ weights"
    with pytest.raises(Mistake, match=size):
        weights.pack([(0, random_gpt(wide))], TOKENIZER, PROBE)


def test_an_attention_that_differs_only_beyond_the_probe_is_refused(monkeypatch):
    gpt = random_gpt(replace(MODERN, context_length=3 * PROBE.length))
    far = torch.ones(3 * PROBE.length, 3 * PROBE.length).tril(-PROBE.length).bool()
    nearest = with_scores(lambda scores: scores.masked_fill(far[: len(scores[0, 0]), : len(scores[0, 0])], -torch.inf))
    monkeypatch.setattr(CausalSelfAttention, "attend", nearest)
    with pytest.raises(Mistake, match="this model's attend gives something else"):
        weights.pack([(0, gpt)], TOKENIZER, PROBE)


def test_a_weight_may_be_a_single_number():
    gpt = random_gpt(MODERN)
    gpt.blocks[0].attention.gate = torch.nn.Parameter(torch.tensor(0.5))
    assert weights.pack([(0, gpt)], TOKENIZER, PROBE).blocks


def recording_of(models) -> Recording:
    """Of random letters, in which repetitions come about by chance."""
    tokenizer, length, letters = byte_level(), models[0][1].config.context_length, range(97, 123)
    windows = {
        "text": Texts.of(list(letters), tokenizer.label),
        "repeated": Texts.of(repeated_windows(letters, length), tokenizer.label, kind="repeated"),
    }
    recording = Recording({kind: texts.pieces(1)[0] for kind, texts in windows.items()}, windows, name="tiny")
    for step, model in models:
        recording.append(take_snapshot(model, step, recording))
    return recording


def test_a_page_holds_the_weights_of_some_steps_measures_what_was_not_recorded_there_and_says_when_heads_formed():
    gpt, tokenizer = repeating_gpt(), byte_level()
    untrained = random_gpt(gpt.config)
    recording = recording_of([(0, untrained), (3, gpt), (8, gpt)])
    page = Page(run_page("tiny", recording, models=[(0, untrained), (5, gpt), (8, gpt)], tokenizer=tokenizer))
    run = page.data["run"]
    assert run["formation"]["induction"] == {"0.1": 3} and run["opening"]["head"] == 1
    held = {shown["step"]: shown.get("weights") for shown in run["snapshots"]}
    assert held == {0: 0, 3: None, 5: 1, 8: 2} and page.json("manifest")["steps"] == [0, 5, 8]
    assert [bool(shown["ablation"]) for shown in run["snapshots"]] == [True, False, True, True]
    assert page.data["text"] == tokenizer.decode(recording.probes["text"].tokens[0].tolist())
    assert page.data["experiments"]["effects"]


def test_the_page_of_a_model_that_cannot_be_in_it_says_so_and_has_everything_else(monkeypatch):
    gpt, diverged = (random_gpt(repeating_gpt().config) for _ in range(2))
    diverged.head.weight.data[3, 4] = math.nan
    recording = recording_of([(0, gpt), (5, diverged)])
    for models, limit, said in (
        ([(0, gpt)], 1000, "and the limit is 0 MB"),
        ([(0, gpt), (5, diverged)], weights.MAX_BYTES, "at step 5 has diverged"),
    ):
        monkeypatch.setattr(weights, "MAX_BYTES", limit)
        page = Page(run_page("tiny", recording, models=models, tokenizer=byte_level()))
        (note,) = [note for note in page.data["notes"] if note.startswith("One cannot type")]
        assert said in note and "text" not in page.data and "manifest" not in page.scripts
        assert page.data["run"]["snapshots"][0]["mapped"]
        # Nor is anything measured for it: of a model too large for a page that takes hours on a processor.
        assert not any(shown["ablation"] for shown in page.data["run"]["snapshots"])
