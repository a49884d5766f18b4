"""With weights sharded over two processes, both optimizers update them as on one device.

tests/test_train.py has runs on two devices, with --trainer.strategy ddp and fsdp.
"""

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from model.gpt import GPT, GPTConfig
from model.training import optimizer, sharding
from tests.forks import run_ranks


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
