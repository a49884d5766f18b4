"""FSDP: weights, gradients and optimizer state sharded over the devices, with one checkpoint file for all of them.

PyTorch's `fully_shard` makes every parameter a DTensor, which keeps the name and the shape of the whole matrix, so
parameter groups and Muon work as on one device. Lightning's own "fsdp" flattens the parameters, and needs GPUs.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from model.checkpoint import WEIGHT_PREFIX, without_weights
from model.gpt import GPT


class FullyShardedStrategy(ModelParallelStrategy):
    """The strategy of `--trainer.strategy fsdp`, on CPUs and GPUs.

    A checkpoint is the same file as from one device, and resumes on any number of devices, sharded or not.
    """

    def __init__(self) -> None:
        super().__init__(save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def setup(self, trainer: Trainer) -> None:
        mesh = init_device_mesh(self.root_device.type, (self.world_size,))
        gpt = self.lightning_module.gpt
        for block in gpt.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(gpt, mesh=mesh)
        super().setup(trainer)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        def gather(value: Tensor, _: int) -> Tensor | None:
            gathered = whole(value.detach())
            return gathered.cpu() if self.is_global_zero else None

        return converted(optimizer.state_dict(), gather)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        return self.checkpoint_io.load_checkpoint(checkpoint_path)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        options = StateDictOptions(full_state_dict=True, strict=strict)
        set_model_state_dict(self.lightning_module, checkpoint["state_dict"], options=options)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        (optimizer,), (state,) = self.optimizers, checkpoint["optimizer_states"]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

        def shard(value: Tensor, number: int) -> Tensor:
            return shard_like(value, parameters[number]) if value.ndim else value.to(self.root_device)

        optimizer.load_state_dict(converted(state, shard))


def converted(state: dict[str, Any], convert: Callable[[Tensor, int], Tensor | None]) -> dict[str, Any]:
    """An optimizer's state with what `convert` makes of each of its tensors and the number of its parameter."""
    numbers = state["state"].items()
    return {**state, "state": {n: {name: convert(value, n) for name, value in of.items()} for n, of in numbers}}


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded; if it is, every rank must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """`tensor`, which every rank holds whole, sharded as `like` is; `tensor` itself if `like` is not sharded."""
    if not isinstance(like, DTensor):
        return tensor
    on_device = tensor.to(like.device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)  # sends nothing


def whole_gpt(trainer: Trainer, module: LightningModule) -> GPT | None:
    """The network with whole weights on the first rank, None on the others; every rank must call it."""
    if not isinstance(trainer.strategy, FullyShardedStrategy):
        return module.gpt if trainer.is_global_zero else None
    weights = trainer.strategy.lightning_module_state_dict()
    if not trainer.is_global_zero:
        return None
    gpt = without_weights(module.gpt.config)
    gpt.load_state_dict({name.removeprefix(WEIGHT_PREFIX): weight for name, weight in weights.items()}, assign=True)
    return gpt.to(module.device).train(module.training)
