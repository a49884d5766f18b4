"""Other code than the code that trained a checkpoint is told by what it computes. Equal code is never complained of."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from data.tokenizers import byte_level
from model import gpt
from model.attention import CausalSelfAttention
from model.checkpoint import entries_of, load_gpt, read_checkpoint
from model.proof import difference, prove
from model.rotary import rotary_angles
from tests.attentions import ALIBI, with_scores
from tests.gpts import CONFIGS, MODERN, change_checkpoint, random_gpt, save_checkpoint
from tests.small_runs import assert_same


def trained_gpt():
    return random_gpt(replace(MODERN, vocab_size=257), std=0.1)


OTHER = {
    "sigmoid": (CausalSelfAttention, "attend", with_scores(lambda scores: scores.sigmoid().log())),
    "ALiBi": (CausalSelfAttention, "attend", ALIBI),
    "activation": (gpt.ACTIVATIONS, "relu2", F.relu),
    "norm": (gpt, "rms_norm", lambda x: F.layer_norm(x, x.shape[-1:])),
    "position": (gpt, "rotary_angles", lambda positions, head_dim: rotary_angles(2 * positions, head_dim)),
}
EQUAL = {
    "the formula step by step": (CausalSelfAttention, "attend", with_scores(lambda scores: scores)),
    "initial weights": (gpt.GPT, "init_weights", lambda self: None),
}


@pytest.mark.parametrize("change", [*OTHER, *EQUAL])
def test_code_that_computes_something_else_is_told_once_and_equal_code_is_not(tmp_path, monkeypatch, caplog, change):
    path = tmp_path / "x.ckpt"
    save_checkpoint(path, trained_gpt())
    owner, name, replacement = (OTHER | EQUAL)[change]
    patch = monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr
    patch(owner, name, replacement)
    load_gpt(path)
    assert [str(path) in message for message in caplog.messages] == [True] * (change in OTHER)


def test_weights_that_are_no_numbers_are_not_blamed_on_the_code(tmp_path):
    path, model = tmp_path / "x.ckpt", trained_gpt()
    save_checkpoint(path, model)
    torch.nn.init.constant_(model.lm_head.weight, torch.nan)
    assert difference(path, model, read_checkpoint(path)["proof"]) == ""
    torch.nn.init.ones_(model.lm_head.weight)
    assert difference(path, model, read_checkpoint(path)["proof"])


def test_the_rounding_of_large_logits_is_not_told(tmp_path):
    model = random_gpt(replace(MODERN, vocab_size=257, logit_soft_cap=None), std=0.1)
    model.lm_head.weight.data *= 100_000
    proof = prove(model, torch.arange(100))
    exact = prove(model.double(), torch.arange(100))
    assert (exact["nats"] - proof["nats"]).abs().max() > 1e-2
    assert difference(tmp_path, model, proof) == ""


def losses(model, text):
    logprobs = model(text[None, :-1])[0].log_softmax(-1).detach()
    return -logprobs[range(len(text) - 1), text[1:]]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_losses_are_those_of_the_saved_weights_in_float32_without_dropout(name):
    """Whatever the model's own weights are: a callback may save an average, and they may be in bfloat16."""
    saved = random_gpt(CONFIGS[name], std=0.1)
    text = torch.randint(saved.config.vocab_size, (40,))
    expected = [losses(saved, text[i : i + 17]) for i in (0, 16, 32)]
    trains = copy.deepcopy(saved).bfloat16().train()
    trains.config.dropout = 0.5
    before, random_state = copy.deepcopy(trains.state_dict()), torch.get_rng_state()
    weights = {f"gpt.{name}": weight for name, weight in saved.state_dict().items()}
    proof = entries_of(trains, weights, byte_level(), text, document_masking=False)["proof"]
    assert_close(proof["nats"], torch.cat(expected), atol=1e-5, rtol=0)
    assert torch.equal(torch.get_rng_state(), random_state) and trains.training
    assert_same(trains.state_dict(), before)


def test_the_losses_are_computed_without_tf32():
    model, seen, precision = trained_gpt(), [], torch.get_float32_matmul_precision
    model.blocks[0].register_forward_pre_hook(lambda *_: seen.append(precision()))
    torch.set_float32_matmul_precision("high")
    prove(model, torch.arange(9))
    assert (seen, precision()) == (["highest"], "high")
    torch.set_float32_matmul_precision("highest")


def test_a_large_model_is_proved_with_fewer_tokens(monkeypatch):
    model = trained_gpt()
    monkeypatch.setattr("model.proof.NUM_PRODUCTS", 12.5 * model.num_parameters())
    assert len(prove(model, torch.arange(200))["nats"]) == 12


def test_a_model_that_attends_within_documents_is_proved_so():
    model, text = trained_gpt(), torch.tensor([256, *range(10), 256, *range(5)])
    masked, plain = (prove(model, text, begins)["nats"][11:] for begins in (256, None))
    alone = losses(model, text[11:])
    assert_close(masked, alone, atol=1e-5, rtol=0)
    assert (plain - alone).abs().max() > 1e-3


DAMAGED = [
    {"text": torch.full((20,), 257)},
    {"text": torch.zeros(20, 1, dtype=torch.long)},
    {"text": torch.zeros(1025, dtype=torch.long), "nats": torch.zeros(1024)},
    {"nats": torch.zeros(3)},
    {"end_of_text": "text"},
]


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_proof_is_refused_before_the_model_reads_it(tmp_path, damage):
    path, model = tmp_path / "x.ckpt", trained_gpt()
    save_checkpoint(path, model)
    change_checkpoint(path, proof=prove(model, torch.arange(20)) | damage)
    with pytest.raises(ValueError, match=r"x\.ckpt is damaged"):
        load_gpt(path)
