"""The LightningModule: what one training step and one validation pass do."""

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from model.gpt import GPT, GPTConfig
from model.training.checkpointing import check_same_model, check_same_optimizer
from model.training.hardware import CompileMode, compile_where_it_pays
from model.training.optimizer import OptimizerConfig, build_optimizer
from model.training.schedule import ScheduleConfig, learning_rate_factor
from model.training.sharding import FullyShardedStrategy


class GPTModule(LightningModule):
    """Trains a GPT on batches of `tokens` and `targets` (B, T), and `document_ids` (B, T) where they are masked.

    The network is built in `configure_model`, once the tokenizer is known, and lives in `gpt`.
    """

    def __init__(
        self,
        gpt: GPTConfig,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        compile: CompileMode = "auto",
    ):
        """
        Args:
            gpt: the network.
            optimizer: how the weights are updated.
            schedule: how the learning rates move over the run.
            compile: torch.compile the network; auto: on a GPU, where it soon pays; reduce-overhead: with CUDA graphs,
                for networks so small that the GPU waits for Python. Without a compiler, and sharded over devices, it
                runs as it is.
        """
        super().__init__()
        self.gpt_config = gpt
        self.optimizer_config = optimizer
        self.schedule_config = schedule
        self.compile_mode = compile
        self.gpt: GPT | None = None
        self.validation_metrics: dict[str, float] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning notes 44 times a step which hook it is in; to a module that might be a parameter, and takes 0.1 ms.
        if type(value) is str:
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    def configure_model(self) -> None:
        if self.gpt is not None:
            return
        config, num_tokens = self.gpt_config, self.trainer.datamodule.tokenizer.vocab_size
        if config.vocab_size is None:
            config.vocab_size = num_tokens
        if config.vocab_size < num_tokens:  # more are no mistake: it may be rounded up
            raise ValueError(
                f"model.gpt.vocab_size is {config.vocab_size}, but the tokenizer has {num_tokens} tokens: make it at "
                "least as many, or null"
            )
        self.gpt = GPT(self.gpt_config)
        strategy = self.trainer.strategy
        if self.compile_mode == "reduce-overhead" and self.trainer.accumulate_grad_batches > 1:
            raise ValueError(
                "--model.compile reduce-overhead overwrites the gradients of a batch with those of the next, so none "
                "can be accumulated: leave trainer.accumulate_grad_batches at 1 or write --model.compile true"
            )
        mode = False if isinstance(strategy, FullyShardedStrategy) else self.compile_mode
        self.loss = compile_where_it_pays(self.gpt.loss, mode, strategy.root_device)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.learning_rate_factor()  # complains about a schedule that needs an end before the run has begun
        optimizer = build_optimizer(self.gpt, self.optimizer_config)
        self.group_options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        return optimizer

    def on_train_start(self) -> None:
        # A checkpoint brings its own options back; a resumed run may have been given others.
        for group, options in zip(self.trainer.optimizers[0].param_groups, self.group_options, strict=True):
            group.update(options)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch["tokens"], batch["targets"], document_ids=batch.get("document_ids"))

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        factor = self.learning_rate_factor()
        for group, options in zip(optimizer.param_groups, self.group_options, strict=True):
            group["lr"] = options["lr"] * factor

    def learning_rate_factor(self) -> float:
        """What the next update's learning rates are multiplied by."""
        return learning_rate_factor(self.global_step, self.trainer.max_steps, self.schedule_config)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_same_model(checkpoint, self.gpt_config, self.trainer.datamodule.tokenizer.to_dict())
        if self.trainer.state.fn == "fit":
            check_same_optimizer(checkpoint, self.optimizer_config.algorithm)

    def on_validation_epoch_start(self) -> None:
        self.zero_grad()  # room for the validation, whose CUDA graph would overwrite them
        # Float32 would lose digits over millions of tokens; Apple's GPUs have nothing wider.
        dtype = torch.float32 if self.device.type == "mps" else torch.float64
        self.validation_sums = torch.zeros(2, dtype=dtype, device=self.device)  # nats, tokens

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        targets = batch["targets"]
        nats = self.loss(batch["tokens"], targets, document_ids=batch.get("document_ids"), reduction="sum")
        self.validation_sums += torch.stack((nats.to(self.validation_sums.dtype), (targets != -100).sum()))

    def on_validation_epoch_end(self) -> None:
        """Sets validation_metrics: val/loss, nats per token, and val/bits_per_byte, which no tokenizer flatters."""
        nats, tokens = self.trainer.strategy.reduce(self.validation_sums, reduce_op="sum").tolist()
        data = self.trainer.datamodule
        # limit_val_batches may cut the pass short; the bytes are those of all the text.
        num_bytes = data.validation_bytes * tokens / (data.validation_tokens - 1)  # the first token has none before
        self.validation_metrics = {"val/loss": nats / tokens, "val/bits_per_byte": nats / math.log(2) / num_bytes}
        # For callbacks that watch a metric; callbacks.Metrics writes the figures down, and in full precision.
        self.log_dict(self.validation_metrics, logger=False, sync_dist=True)
