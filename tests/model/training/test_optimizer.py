"""MuonAdamW updates matrices by Muon, tables by Adagrad, others as PyTorch's AdamW does; only matrices decay."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from model.gpt import GPT, GPTConfig
from model.training.optimizer import MuonAdamW, OptimizerConfig, build_optimizer, orthogonalize
from tests.gpts import loss_of

SMALL = GPTConfig(vocab_size=32, context_length=8, num_layers=2, num_heads=2, embed_dim=8)
BOTH = pytest.mark.parametrize("algorithm", ["muon", "adamw"])


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 16, 64), (2, 48, 48)])
def test_orthogonalize_gives_the_polar_factor_of_any_scale(shape):
    u, _, vh = torch.linalg.svd(torch.randn(shape, dtype=torch.float64), full_matrices=False)
    # Known singular values within the range that `orthogonalize` promises: the largest is below the Frobenius norm.
    values = torch.linspace(0.1, 1, shape[1], dtype=torch.float64)
    for scale in (1, 2**-20):
        result = orthogonalize(((u * values) @ vh).float() * scale)
        assert_close(result, (u @ vh).float(), atol=0.03, rtol=0)
    assert orthogonalize(torch.zeros(1, 4, 8)).abs().max() == 0


MUON = {"lr": 0.1, "momentum": 0.9, "rule": "muon"}
ADAMW = {"betas": (0.8, 0.95), "eps": 1e-8}
OPTIONS: dict = ADAMW | {"weight_decay": 0.0, "parts": {}}


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 24)])
def test_the_first_muon_step_moves_all_directions_equally_after_decay(shape):
    start, gradient = torch.randn(shape), torch.randn(shape)
    for decay in (0.0, 0.5):
        weight = torch.nn.Parameter(start.clone())
        weight.grad = gradient.clone()
        MuonAdamW([{"params": [weight], "weight_decay": decay, **MUON}], **OPTIONS).step()
        moved = torch.linalg.svdvals(start * (1 - 0.1 * decay) - weight.detach())
        expected = 0.1 * max(1.0, shape[0] / shape[1]) ** 0.5
        assert_close(moved, torch.full_like(moved, expected), rtol=0.03, atol=0)


def test_queries_keys_and_values_in_one_weight_move_as_separate_matrices():
    """Otherwise the values, whose gradient is largest at first, would leave nothing for queries and keys."""
    gpt = GPT(replace(SMALL, num_heads=4, num_kv_heads=2, embed_dim=32))
    optimizer = build_optimizer(gpt, OptimizerConfig(matrix_learning_rate=0.1))
    weight = gpt.blocks[0].attention.qkv_proj.weight
    before = weight.detach().clone()
    weight.grad = torch.randn_like(weight)
    weight.grad[-16:] *= 1000  # the rows of the values
    optimizer.step()
    for moved in (before - weight.detach()).split([32, 16, 16]):
        size = torch.linalg.matrix_norm(moved) / 0.1
        assert size.item() == pytest.approx(len(moved) ** 0.5, rel=0.05)


def take_steps(optimizers, weights, twins):
    """Makes three steps with equal gradients for `weights` and `twins`."""
    for _ in range(3):
        for weight, twin in zip(weights, twins, strict=True):
            weight.grad = torch.randn_like(weight)
            twin.grad = weight.grad.clone()
        for optimizer in optimizers:
            optimizer.step()


def test_matrices_in_one_batch_move_as_each_does_alone():
    shapes = [(6, 6), (6, 12), (12, 6), (6, 6), (12, 6)]
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    alone = [torch.nn.Parameter(weight.detach().clone()) for weight in weights]
    group = MUON | {"lr": 0.02, "weight_decay": 0.1}
    batches = (weights, *([twin] for twin in alone))
    optimizers = [MuonAdamW([{"params": members, **group}], **OPTIONS) for members in batches]
    take_steps(optimizers, weights, alone)
    assert_close(weights, alone, atol=5e-3, rtol=0)  # bfloat16 products round by batch


def test_other_weights_move_as_with_torchs_adamw():
    weights, twins = ([torch.nn.Parameter(torch.ones(5, 3))] for _ in range(2))
    group = {"lr": 0.01, "weight_decay": 0.1}
    ours = MuonAdamW([{"params": weights, **group}], **OPTIONS)
    theirs = torch.optim.AdamW(twins, **group, **ADAMW)
    take_steps([ours, theirs], weights, twins)
    assert_close(weights, twins)
    assert ours.state[weights[0]].keys() == theirs.state[twins[0]].keys()  # as checkpoints have them


@pytest.mark.parametrize("is_sparse", [True, False])
def test_tables_move_by_adagrad_with_one_rate_a_row_and_unread_rows_do_not_move(is_sparse):
    table = torch.nn.Embedding(7, 3, sparse=is_sparse)
    weight, start = table.weight, table.weight.detach().clone()
    optimizer = MuonAdamW([{"params": [weight], "lr": 0.1, "rule": "adagrad"}], **OPTIONS)
    expected, squares = start.double(), torch.zeros(7, dtype=torch.double)
    for ids in ([1, 1, 4], [4, 2, 1], [4, 4, 4]):
        for part in (ids[:2], ids[2:]):  # accumulated over two batches
            (table(torch.tensor(part)) * torch.tensor([1.0, -2.0, 0.5])).square().sum().backward()
        gradient = weight.grad.to_dense().double()
        squares += gradient.square().mean(1)
        expected -= 0.1 * gradient / (squares.sqrt() + 1e-8)[:, None]
        optimizer.step()
        optimizer.zero_grad()
        assert_close(weight.detach().double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(weight[[0, 3, 5, 6]], start[[0, 3, 5, 6]])


def test_an_own_algorithm_gets_learning_rate_for_tables_which_do_not_decay():
    config = OptimizerConfig(algorithm="torch.optim.SGD", learning_rate=0.3, rate_scale=0.5, weight_decay=0.1)
    groups = build_optimizer(GPT(replace(SMALL, ngram_sizes=(2,), ngram_buckets=8)), config).param_groups
    [tables] = [group for group in groups if group["name"] == "tables"]
    assert (tables["lr"], tables["weight_decay"]) == (0.15, 0)


def updated(config, algorithm):
    """A GPT and its optimizer after one update."""
    gpt = GPT(config)
    optimizer = build_optimizer(gpt, OptimizerConfig(algorithm=algorithm))
    loss_of(gpt, torch.zeros(1, 8, dtype=torch.long), torch.ones(1, 8, dtype=torch.long)).backward()
    optimizer.step()
    return gpt, optimizer


@BOTH
def test_a_restored_optimizer_moves_its_step_counts_to_the_weights_device(algorithm):
    """A checkpoint is read to the CPU, and Lightning moves the optimizer's state to the device except step counts."""
    elsewhere = GPT(SMALL).to("meta")
    restored = build_optimizer(elsewhere, OptimizerConfig(algorithm=algorithm))
    restored.load_state_dict(updated(SMALL, algorithm)[1].state_dict())
    for state in restored.state.values():
        state.update({name: value if name == "step" else value.to("meta") for name, value in state.items()})
    for parameter in elsewhere.parameters():
        parameter.grad = torch.zeros_like(parameter)
    restored.step()
    assert {value.device.type for state in restored.state.values() for value in state.values()} == {"meta"}


@BOTH
def test_the_state_of_other_parameters_is_refused(algorithm):
    _, optimizer = updated(SMALL, algorithm)
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    number, own = next(iter(state["state"].items()))
    name, value = list(own.items())[-1]
    for other in (own | {name: value.flatten()}, own | {name: 3}, 3):
        with pytest.raises(Exception):  # noqa: B017 (any but a silent one will do)
            optimizer.load_state_dict({**state, "state": {**state["state"], number: other}})
