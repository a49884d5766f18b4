"""With weights sharded over two processes, both optimizers update them as on one device; and runs with --strategy fsdp.

tests/test_train.py has a run on two devices.
"""

import os
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from model.checkpoint import load_gpt, read_checkpoint
from model.gpt import GPT, GPTConfig
from model.training import optimizer, sharding
from tests.ranks import run_ranks


def check_sharded_updates() -> None:
    """In each of two processes."""
    optimizer.has_fast_bfloat16 = lambda device: False  # else rounding would hide a difference
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))

    def train(algorithm, density, is_sharded):
        torch.manual_seed(0)
        sizes = {"num_layers": 2, "num_heads": 3, "embed_dim": 18, "bigram_buckets": 9}  # that two do not divide
        # A rounding must not decide which weights a sparse run keeps; 1 keeps all.
        beginning, rate = ("scaled", 0.01) if density == 1 else ("gpt2", 0.001)
        gpt = GPT(GPTConfig(vocab_size=33, context_length=8, init=beginning, **sizes))
        if is_sharded:
            for module in [*gpt.blocks, gpt]:
                fully_shard(module, mesh=mesh)
        config = optimizer.OptimizerConfig(algorithm, learning_rate=rate, weight_decay=0.1, density=density)
        update = optimizer.build_optimizer(gpt, config)
        for _ in range(5):
            tokens = torch.randint(33, (4, 9))
            if is_sharded:
                tokens = tokens.chunk(2)[distributed.get_rank()]
            gpt.loss(tokens[:, :-1], tokens[:, 1:]).backward()
            torch.nn.utils.clip_grad_norm_(gpt.parameters(), 0.5)
            update.step()
            update.zero_grad()
        return gpt

    for case in [("muon", 1), ("adamw", 1), ("adamw", 0.2)]:
        expected = train(*case, is_sharded=False).state_dict()
        for name, shard in train(*case, is_sharded=True).state_dict().items():
            assert shard.to_local().numel() < expected[name].numel(), (case, name)
            torch.testing.assert_close(sharding.whole(shard), expected[name], atol=1e-5, rtol=0)
            assert torch.equal(sharding.shard_like(sharding.whole(shard), shard).to_local(), shard.to_local())


@pytest.mark.slow
def test_sharded_weights_are_updated_as_whole_ones():
    run_ranks(check_sharded_updates)


@pytest.fixture
def one_process():
    """A group of one process, as Lightning makes it for a sharded run on one device, is left after the test."""
    before = dict(os.environ)
    yield
    if distributed.is_initialized():
        distributed.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.slow
def test_a_sharded_run_leaves_what_another_one_leaves_and_each_resumes_the_others(train, one_process, metrics):
    short, usual, longer = "--trainer.max_steps=5", "--trainer.strategy=auto", "--trainer.max_steps=8"
    sharded = ["--trainer.strategy=fsdp", "--trainer.devices=1"]
    assert train("--name=usual", "--model.schedule.decay=none", short) == 0
    assert train("--name=sharded", "--model.schedule.decay=none", short, *sharded) == 0
    saved = [read_checkpoint(Path(f"runs/{name}/checkpoints/last.ckpt")) for name in ("usual", "sharded")]
    assert saved[0].keys() == saved[1].keys()
    one, other = (flat({name: one[name] for name in ("state_dict", "optimizer_states")}) for one in saved)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert type(value) is type(other[name]), name
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(other[name], value, atol=1e-3, rtol=1e-3)
    files = [sorted(p.name for p in Path("runs", name).rglob("*")) for name in ("usual", "sharded")]
    assert files[0] == files[1]

    assert train("--resume=runs/usual", longer, *sharded) == 0
    assert train("--resume=runs/sharded", longer, usual) == 0
    one, other = (
        [float(row["val/loss"]) for row in metrics(f"runs/{n}") if row["val/loss"]] for n in ("usual", "sharded")
    )
    assert one == pytest.approx(other, abs=1e-3)
    assert load_gpt("runs/usual/checkpoints/last.ckpt")[1]["global_step"] == 8


def flat(value, name=""):
    """What nested lists and dictionaries hold, by its path."""
    if isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {path: leaf for key, item in items for path, leaf in flat(item, f"{name}/{key}").items()}
    return {name: value}
