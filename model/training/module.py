"""The LightningModule: what one training step and one validation pass do.

A training step runs in this order:

    training_step                   the loss of a batch, which data/windows.py has cut from the tokenised corpus
    zero_grad, backward             with accumulated gradients, only the last batch of a step continues from here
    on_before_optimizer_step        sets the learning rates
    gradient clipping               if trainer.gradient_clip_val is set
    MuonAdamW.step                  updates the weights
    EndOfStep.on_train_batch_end    logs train/loss and the speed, every trainer.log_every_n_steps
    validation                      if due: on_validation_epoch_start, validation_step for each batch, ..._epoch_end
    EndOfStep.end_step              what is due: records maps, logs val/loss, writes samples and the page, saves, stops;
                                    then seeds what the next step draws, so that a resumed run draws the same

Lightning passes the first four lines to `MuonAdamW.step` as a closure, so in a traceback they are inside it (but not
with 16-mixed precision).
"""

import dataclasses
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from model.gpt import GPT, GPTConfig
from model.losses import count_nats, loss_and_bits, next_token_loss
from model.mistakes import Mistake
from model.training.hardware import CompileMode, compile_options
from model.training.optimizer import MuonAdamW, OptimizerConfig, build_optimizer, with_own_options
from model.training.schedule import ScheduleConfig, learning_rate_factor


class GPTModule(LightningModule):
    """Trains a GPT.

    A batch is a dict of `tokens` and `targets` (B, T), and with data.document_masking also of `document_ids` (B, T).
    `configure_model` builds the network, `gpt`, once the tokenizer is known.
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
            compile: whether torch.compile compiles the network; auto: only on a GPU, where it soon pays off, and there
                with CUDA graphs if gradients are not added up over batches or devices; reduce-overhead: always with
                CUDA graphs; true: never with them. Without a C++ compiler the network is not compiled.
            init_from: start from this model's weights instead of random ones. A run, a checkpoint, a folder in Hugging
                Face's format, or a name on the Hub such as gpt2. The model also sets the tokenizer and the options of
                the network, except dropout and context_length; if its positions are learned, context_length can only
                be shortened.
        """
        super().__init__()
        self.gpt_config, self.optimizer_config, self.schedule_config = gpt, optimizer, schedule
        self.compile_mode = compile
        self.trained: Any = None  # the model of init_from, as `open_run` returns it
        self.gpt: GPT | None = None
        self.validation_sums: list[Tensor]  # the result of `count_nats` for each batch of a validation
        self.token_lengths: Tensor  # (V,), in bytes
        self.validation_metrics: dict[str, float] = {}
        self.validation_targets = 0  # how many targets a validation has measured

    def configure_model(self) -> None:
        if self.gpt is None:
            self.gpt = new_gpt(self.gpt_config, self.trainer.datamodule.tokenizer, self.trained)
            self.trained = None  # frees its memory
            self.compile_losses()

    def compile_losses(self) -> None:
        """Compiles training_loss and validation_nats, if that pays off; raises a `Mistake` if it would be wrong.

        Decides also whether the gradient of n-gram tables is sparse: then it has only the rows that the batch read.
        """
        device, trainer = self.trainer.strategy.root_device, self.trainer
        adds_gradients = trainer.accumulate_grad_batches > 1 or trainer.world_size > 1
        if self.compile_mode == "reduce-overhead" and adds_gradients:
            raise Mistake(
                "--model.compile reduce-overhead overwrites the gradients of each batch with the next one's, so they "
                "cannot be added up over batches or devices: leave trainer.accumulate_grad_batches and trainer.devices "
                "at 1, or write --model.compile true"
            )
        options = compile_options(self.compile_mode, device, adds_gradients=adds_gradients)
        if options is not None:
            self.training_loss = torch.compile(self.training_loss, **options)  # type: ignore[method-assign]
            self.validation_nats = torch.compile(self.validation_nats, **options)  # type: ignore[method-assign]
        if self.gpt.ngram_embedding is not None:
            # Compiled code, clipping, GPUs and several devices need a dense gradient.
            allows_sparse = trainer.world_size == 1 and not trainer.gradient_clip_val
            self.gpt.ngram_embedding.sparse = device.type == "cpu" and options is None and allows_sparse

    def configure_optimizers(self) -> torch.optim.Optimizer:
        learning_rate_factor(0, self.trainer.max_steps, self.schedule_config)  # raises now if max_steps is missing
        optimizer = build_optimizer(self.gpt, self.optimizer_config)
        optimizer.register_load_state_dict_pre_hook(with_own_options)
        if self.gpt.ngram_embedding is not None and not isinstance(optimizer, MuonAdamW):
            self.gpt.ngram_embedding.sparse = False  # most of PyTorch's optimizers refuse a sparse gradient
        return optimizer

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Returns the loss of a batch, for the optimizer to lower.

        `self.log("train/mine", value)`, here or in `training_loss`, adds a column to metrics.csv, a chart to the run's
        page, and a metric to every other logger. A row has your value for its last batch; train/loss is the mean over
        all batches since the previous row. To look at gradients, use `on_before_optimizer_step`; on a CPU the gradient
        of n-gram tables can be sparse.
        """
        return self.training_loss(**batch).clone()  # for code that keeps it: a CUDA graph's next step overwrites it

    def training_loss(self, tokens: Tensor, targets: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Forward pass and loss.

        A term that you add here changes only training: it is part of train/loss in metrics.csv, not of val/loss. For a
        term of the logits, `self.gpt.unembed(features)` returns them: a second time, which costs up to half the speed,
        and all at once, which needs memory with a large vocabulary (see LOGITS_AT_ONCE in model/losses.py).
        """
        features = self.gpt.features(tokens, document_ids=document_ids)
        loss = next_token_loss(self.gpt, features, targets)
        return loss

    def validation_nats(self, tokens: Tensor, targets: Tensor, document_ids: Tensor | None = None) -> Tensor:
        """Returns the loss of each target, in nats: (B x T,)."""
        features = self.gpt.features(tokens, document_ids=document_ids)
        return next_token_loss(self.gpt, features, targets, "none")

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        factor = learning_rate_factor(self.global_step, self.trainer.max_steps, self.schedule_config)
        for group in optimizer.param_groups:
            # PyTorch's optimizers have no initial_lr: before the first update, it is their rate.
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raises a `Mistake` unless the checkpoint has the same tokenizer and config (dropout and init may differ)."""
        saved = dataclasses.asdict(GPTConfig(**checkpoint["gpt_config"]))
        for name, value in dataclasses.asdict(self.gpt_config).items():
            if name not in ("dropout", "init") and saved[name] != value:  # these two fit any weights
                raise Mistake(f"the checkpoint is of another model: its {name} is {saved[name]}, here it is {value}")
        tokenizer = self.trainer.datamodule.tokenizer
        if checkpoint["tokenizer"] != tokenizer.to_dict():
            raise Mistake(
                f"the checkpoint's model has another tokenizer: {checkpoint['tokenizer'].get('name')!r}, trained on "
                f"other text or of another size than {tokenizer.name!r} here: use the data it was trained on, or write "
                "--data.tokenizer runs/NAME to use the tokenizer of that run"
            )

    def on_validation_epoch_start(self) -> None:
        self.zero_grad()  # frees the gradients' memory; with CUDA graphs, validation would overwrite it
        self.validation_sums = []
        self.token_lengths = torch.from_numpy(self.trainer.datamodule.tokenizer.lengths).to(self.device)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        nats = self.validation_nats(**batch)
        self.validation_sums.append(count_nats(nats, batch["targets"].flatten(), self.token_lengths))

    def on_validation_epoch_end(self) -> None:
        """Sets validation_metrics: val/loss in nats per token, and val/bits_per_byte, comparable across tokenizers."""
        sums = self.trainer.strategy.reduce(torch.stack(self.validation_sums).sum(dim=0), reduce_op="sum")
        loss, bits = loss_and_bits(sums)
        self.validation_targets = int(sums[1])
        self.validation_metrics = {"val/loss": loss, "val/bits_per_byte": bits}
        # Only for the progress bar and callbacks that monitor a metric: EndOfStep passes the metrics to the loggers,
        # in full precision.
        self.log_dict(self.validation_metrics, prog_bar=True, logger=False, sync_dist=True)


def new_gpt(config: GPTConfig, tokenizer: Any, trained: Any) -> GPT:
    """Returns a GPT with random weights, or with those of `trained`, the model of --model.init_from.

    Sets an unset config.vocab_size to the tokenizer's. Raises a `Mistake` if tokenizer and network do not fit.
    """
    num_tokens = tokenizer.vocab_size
    if trained and trained.tokenizer.fingerprint != tokenizer.fingerprint:
        raise Mistake(
            f"the model of --model.init_from needs its own tokenizer, {trained.tokenizer.name!r}, but the data has "
            f"another, {tokenizer.name!r} with {num_tokens:,} tokens: leave out --data.tokenizer to use the model's"
        )
    if config.vocab_size is None:
        config.vocab_size = num_tokens
    if config.vocab_size < num_tokens:  # a larger one is fine: it may be rounded up for speed
        raise Mistake(
            f"model.gpt.vocab_size is {config.vocab_size}, but the tokenizer has {num_tokens} tokens: set it to at "
            "least that, or to null"
        )
    gpt = GPT(config)
    if trained:
        weights = trained.gpt.state_dict()
        if config.position == "learned":  # a shorter context uses the beginning of the model's table
            weights["position_embedding.weight"] = weights["position_embedding.weight"][: config.context_length]
        gpt.load_state_dict(weights)
    return gpt
