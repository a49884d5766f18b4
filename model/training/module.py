"""The LightningModule: what one training step and one validation pass do.

For a step Lightning calls the optimizer's `step`, and this calls back: `training_step`, the backward pass,
`on_before_optimizer_step`. Then the weights are updated, and last comes `RunSequence.end_step`: from
`on_train_batch_end`, or from `on_validation_end` where Lightning validates after the step.
"""

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor

from model.exchange.evaluation import count_nats, loss_and_bits
from model.gpt import GPT, GPTConfig
from model.mistakes import Mistake
from model.training.hardware import CompileMode, compile_options
from model.training.optimizer import OptimizerConfig, build_optimizer
from model.training.schedule import ScheduleConfig, learning_rate_factor


class GPTModule(LightningModule):
    """Trains a GPT on batches of `tokens` and `targets` (B, T), and `document_ids` (B, T) if documents must not see
    each other.

    The network is built in `configure_model`, once the tokenizer is known, and lives in `gpt`.
    """

    def __init__(
        self,
        gpt: GPTConfig,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        compile: CompileMode = "auto",
        init_from: str | None = None,
    ):
        """
        Args:
            gpt: the network.
            optimizer: how the weights are updated.
            schedule: how the learning rates change over the run.
            compile: torch.compile the network; auto: on a GPU, where it soon pays; reduce-overhead: with CUDA graphs,
                for networks so small that the GPU waits for Python. The network is not compiled where there is no
                compiler.
            init_from: start from the weights of this model and not from random ones: a run, a checkpoint, a folder of
                Hugging Face's libraries, or a name on the Hub such as gpt2. The network is then that model's, but for
                context_length, which may be shorter, and dropout. Its tokenizer is taken too.
        """
        super().__init__()
        self.gpt_config, self.optimizer_config, self.schedule_config = gpt, optimizer, schedule
        self.compile_mode = compile
        self.trained: Any = None  # the model of init_from, which `open_run` has opened
        self.gpt: GPT | None = None
        self.validation_sums: list[Tensor]  # those of `count_nats`, of each batch of a validation
        self.token_lengths: Tensor  # (V,), in bytes
        self.validation_metrics: dict[str, float] = {}

    def configure_model(self) -> None:
        if self.gpt is not None:
            return
        config, tokenizer = self.gpt_config, self.trainer.datamodule.tokenizer
        num_tokens = tokenizer.vocab_size
        trained = self.trained
        if trained and trained.tokenizer.fingerprint != tokenizer.fingerprint:
            raise Mistake(
                f"the model of --model.init_from reads the tokens of its own {trained.tokenizer.name!r}, and the "
                f"tokenizer of the data is another, {tokenizer.name!r} with {num_tokens:,} tokens: leave out "
                "--data.tokenizer to take the model's"
            )
        if config.vocab_size is None:
            config.vocab_size = num_tokens
        if config.vocab_size < num_tokens:  # more are fine: it may be rounded up
            raise Mistake(
                f"model.gpt.vocab_size is {config.vocab_size}, but the tokenizer has {num_tokens} tokens: make it at "
                "least as many, or null"
            )
        self.gpt = GPT(config)
        if trained:
            weights = trained.gpt.state_dict()
            if config.position == "learned":  # of a longer table of positions its beginning
                weights["position_embedding.weight"] = weights["position_embedding.weight"][: config.context_length]
            self.gpt.load_state_dict(weights)
            self.trained = None  # which frees its memory
        needs_gradients = self.trainer.accumulate_grad_batches > 1 or self.trainer.world_size > 1
        if self.compile_mode == "reduce-overhead" and needs_gradients:
            raise Mistake(
                "--model.compile reduce-overhead overwrites the gradients of each batch with the next one's, so they "
                "can be added up neither over batches nor over devices: leave trainer.accumulate_grad_batches and "
                "trainer.devices at 1, or write --model.compile true"
            )
        device = self.trainer.strategy.root_device
        options = compile_options(self.compile_mode, device)
        if options is not None:
            self.training_loss = torch.compile(self.training_loss, **options)  # type: ignore[method-assign]
            self.validation_nats = torch.compile(self.validation_nats, **options)  # type: ignore[method-assign]
        if self.gpt.ngram_embedding is not None:
            # Of the rows that were read alone. Compiled code, clipping and other devices need a gradient of all rows.
            alone = self.trainer.world_size == 1 and not self.trainer.gradient_clip_val
            self.gpt.ngram_embedding.sparse = device.type == "cpu" and options is None and alone

    def configure_optimizers(self) -> torch.optim.Optimizer:
        learning_rate_factor(0, self.trainer.max_steps, self.schedule_config)  # raises if it has no end
        return build_optimizer(self.gpt, self.optimizer_config)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """What a batch's update makes smaller.

        `self.log("train/mine", value)` here makes a column of metrics.csv, and of every other logger: the value of the
        last batch before a row, where train/loss is the mean of all batches since the row before. Gradients are there
        in `on_before_optimizer_step`; that of n-gram tables is sparse on a processor.
        """
        return self.training_loss(**batch)

    def training_loss(self, tokens: Tensor, targets: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Forward pass and loss.

        A term that is added here changes training alone: train/loss in metrics.csv has it, and val/loss has not.
        """
        logits = self.gpt(tokens, document_ids=document_ids)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss

    def validation_nats(self, tokens: Tensor, targets: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """(B x T,): how unexpected each target is to the model."""
        logits = self.gpt(tokens, document_ids=document_ids)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        factor = learning_rate_factor(self.global_step, self.trainer.max_steps, self.schedule_config)
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raises Mistake unless the checkpoint's weights belong to this model and tokenizer."""
        saved = dataclasses.asdict(GPTConfig(**checkpoint["gpt_config"]))
        for name, value in dataclasses.asdict(self.gpt_config).items():
            if name not in ("dropout", "init") and saved[name] != value:  # these do not change what a weight means
                raise Mistake(f"the checkpoint is of another model: its {name} is {saved[name]}, here it is {value}")
        tokenizer = self.trainer.datamodule.tokenizer
        if checkpoint["tokenizer"] != tokenizer.to_dict():
            raise Mistake(
                f"the checkpoint is of a model with another tokenizer: {checkpoint['tokenizer'].get('name')!r} trained "
                f"on other text or of another size than {tokenizer.name!r} here; use the data it was trained on, or "
                "write --data.tokenizer runs/NAME to take the tokenizer of that run"
            )

    def on_validation_epoch_start(self) -> None:
        self.zero_grad()  # frees their memory; with CUDA graphs validation would overwrite them
        self.validation_sums = []
        self.token_lengths = torch.from_numpy(self.trainer.datamodule.tokenizer.lengths).to(self.device)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        nats = self.validation_nats(**batch)
        self.validation_sums.append(count_nats(nats, batch["targets"].flatten(), self.token_lengths))

    def on_validation_epoch_end(self) -> None:
        """Sets validation_metrics: val/loss, nats per token, and val/bits_per_byte, comparable across tokenizers."""
        sums = self.trainer.strategy.reduce(torch.stack(self.validation_sums).sum(dim=0), reduce_op="sum")
        loss, bits = loss_and_bits(sums)
        self.validation_metrics = {"val/loss": loss, "val/bits_per_byte": bits}
        # For callbacks that monitor a metric, and the bar. RunSequence writes them to the loggers, in full precision.
        self.log_dict(self.validation_metrics, prog_bar=True, logger=False, sync_dist=True)
