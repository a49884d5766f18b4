"""Other code than the code that trained a checkpoint is told by what it computes. Equal code is never complained of."""

import copy

import pytest
import torch
import torch.nn.functional as F

from data import windows
from model import generation, gpt
from model.attention import CausalSelfAttention
from model.checkpoint import load_gpt
from model.gpt import ACTIVATIONS, GPT, GPTConfig
from model.proof import prove
from model.rotary import rotary_angles
from tests.attentions import ALIBI, with_scores
from tests.gpts import CONFIGS, change_checkpoint, random_gpt, save_checkpoint
from tests.small_runs import assert_same

SIZES = {"vocab_size": 257, "context_length": 16, "num_layers": 2, "num_heads": 2, "embed_dim": 32}


def trained_gpt():
    return random_gpt(GPTConfig(**SIZES), std=0.1)


def layer_norm(x):
    return F.layer_norm(x, x.shape[-1:])


def doubled_angles(positions, head_dim):
    return rotary_angles(2 * positions, head_dim)


OTHER = {
    "sigmoid": (CausalSelfAttention, "attend", with_scores(lambda scores: scores.sigmoid().log())),
    "ALiBi": (CausalSelfAttention, "attend", ALIBI),
    "activation": (ACTIVATIONS, "relu2", F.relu),
    "norm": (gpt, "rms_norm", layer_norm),
    "position": (gpt, "rotary_angles", doubled_angles),
}
EQUAL = {
    "the formula step by step": (CausalSelfAttention, "attend", with_scores(lambda scores: scores)),
    "initial weights": (GPT, "init_weights", lambda self: None),
    "order of the data": (windows, "permute", lambda positions, *_: positions),
    "sampling": (generation, "sample", lambda logits, *_, **__: logits.argmax(-1)),
}


@pytest.mark.parametrize("change", [*OTHER, *EQUAL])
def test_code_that_computes_something_else_is_told_once_and_equal_code_is_not(tmp_path, monkeypatch, caplog, change):
    path = tmp_path / "x.ckpt"
    save_checkpoint(path, trained_gpt())
    owner, name, replacement = (OTHER | EQUAL)[change]
    patch = monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr
    patch(owner, name, replacement)
    load_gpt(path)
    assert len(caplog.records) == (change in OTHER)
    assert (str(path) in caplog.text) == (change in OTHER)


def losses(model, text):
    logprobs = model(text[None, :-1])[0].log_softmax(-1).detach()
    return -logprobs[range(len(text) - 1), text[1:]]


@pytest.mark.parametrize("name", CONFIGS)
def test_the_losses_are_those_of_the_saved_weights_in_float32_without_dropout(name):
    """Whatever the model's own weights are: a callback may save an average, and they may be in bfloat16."""
    saved = random_gpt(CONFIGS[name], std=0.1)
    text = torch.randint(saved.config.vocab_size, (40,))
    expected = [losses(saved, text[i : i + 17]) for i in (0, 16)]
    trains = copy.deepcopy(saved).bfloat16().train()
    trains.config.dropout = 0.5
    before, random_state = copy.deepcopy(trains.state_dict()), torch.get_rng_state()
    proof = prove(trains, saved.state_dict(), text)
    torch.testing.assert_close(proof["nats"], torch.cat(expected), atol=1e-5, rtol=0)
    assert torch.equal(torch.get_rng_state(), random_state) and trains.training
    assert_same(trains.state_dict(), before)


def test_the_losses_are_computed_without_tf32():
    model, seen, precision = trained_gpt(), [], torch.get_float32_matmul_precision
    model.register_forward_pre_hook(lambda *_: seen.append(precision()))
    torch.set_float32_matmul_precision("high")
    prove(model, model.state_dict(), torch.arange(9))
    assert (seen, precision()) == (["highest"], "high")
    torch.set_float32_matmul_precision("highest")


def test_a_large_model_is_proved_with_fewer_tokens(monkeypatch):
    model = trained_gpt()
    monkeypatch.setattr("model.proof.NUM_PRODUCTS", 12.5 * model.num_parameters())
    proof = prove(model, model.state_dict(), torch.arange(200))
    assert len(proof["nats"]) == 12 and torch.equal(proof["text"], torch.arange(13))


def test_a_model_that_attends_within_documents_is_proved_so():
    model, text = trained_gpt(), torch.tensor([256, *range(10), 256, *range(5)])
    masked, plain = (prove(model, model.state_dict(), text, begins)["nats"] for begins in (256, None))
    alone = losses(model, text[11:])
    torch.testing.assert_close(masked[11:], alone, atol=1e-5, rtol=0)
    assert (plain[11:] - alone).abs().max() > 1e-3


DAMAGED = [
    {"text": torch.zeros(20)},
    {"text": torch.full((20,), 257)},
    {"text": torch.zeros(20, 1, dtype=torch.long)},
    {"text": torch.zeros(1, dtype=torch.long)},
    {"text": torch.zeros(1025, dtype=torch.long), "nats": torch.zeros(1024)},
    {"nats": torch.zeros(3)},
    {"nats": None},
    {"end_of_text": "text"},
]


def test_a_damaged_proof_is_refused_before_the_model_reads_it(tmp_path):
    path, model = tmp_path / "x.ckpt", trained_gpt()
    save_checkpoint(path, model)
    proof = prove(model, model.state_dict(), torch.arange(20))
    for damaged in (None, *(proof | changes for changes in DAMAGED)):
        change_checkpoint(path, proof=damaged)
        with pytest.raises(ValueError, match=r"x\.ckpt is damaged"):
            load_gpt(path)
