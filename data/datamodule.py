"""The LightningDataModule: reads a corpus, tokenises it, and yields batches for training and validation.

Letters: B sequences in a batch, T tokens of context.
"""

from __future__ import annotations

import logging
import math
import sys
from typing import Any

import lightning
import numpy as np
from torch import Tensor

from data import corpora
from data.corpora import CorpusOptions
from data.token_cache import CorpusCache
from data.tokenizers import Tokenizer, check_name
from data.windows import Batches, Repeats, TrainingWindows, adjacent_windows, as_batch
from model.mistakes import Mistake, check_range

_log = logging.getLogger(__name__)


class TextDataModule(lightning.LightningDataModule):
    """Reads a corpus, tokenises it, and yields batches for training and validation.

    A batch is {"tokens": (B, T), "targets": (B, T)}, int64. The target of a token is the token that follows it.
    Training never runs out of batches, and the seed alone decides their order. A pass over the validation split
    predicts each of its tokens but the first exactly once, in adjacent windows; where the last batch has no more text,
    its targets are `windows.IGNORED`.

    Args:
        tokenizer: bpe (trained on the training split), bytes, a published tiktoken encoding such as gpt2, or the path
            of a model to take the tokenizer from: a run, a checkpoint or a Hugging Face folder; the path must have a /
            (null: the tokenizer of --model.init_from). In Python, a dict from `Tokenizer.to_dict` instead of a path.
        vocab_size: number of tokens in the bpe tokenizer, end-of-text included (null: 2048). The size of every other
            tokenizer is fixed.
        context_length: tokens in a sequence (T).
        batch_size: sequences in a training batch (B), over all devices.
        validation_batch_size: sequences in a validation batch, over all devices (null: batch_size).
        repeat_fraction: share of the training windows, 0 to 1, that repeat their own first tokens over and over. The
            period is random, from 8 tokens to half of the context length. So a model has to look back for the same
            token to predict the next one, and induction heads form early. Not allowed with document_masking.
        repeat_from: the first step at which repeat_fraction applies, counted from 0.
        repeat_until: the first step at which repeat_fraction no longer applies (null: it applies until the end). A
            model that reads repetitions until the end of training also writes them.
        random_repeat_fraction: share of the training windows, 0 to 1, that repeat random tokens instead of text,
            throughout training. A small share keeps induction heads alive, and since random tokens are not text, it
            hardly changes what a model writes.
        document_masking: let each token attend only to its own document. Batches then also have "document_ids" (B, T).
        seed: decides the order of the training windows and how they repeat themselves.
        cache_dir: folder for tokenised text (null: $GLASSGPT_CACHE, or else .cache in the project's folder).
        corpus_options: the fields of CorpusOptions.

    Raises Mistake if options contradict each other, or if a value is empty, unknown or out of range.
    """

    def __init__(
        self,
        tokenizer: str | dict | None = "bpe",
        vocab_size: int | None = None,
        context_length: int = 128,
        batch_size: int = 16,
        validation_batch_size: int | None = None,
        repeat_fraction: float = 0.0,
        repeat_from: int = 0,
        repeat_until: int | None = None,
        random_repeat_fraction: float = 0.0,
        document_masking: bool = False,
        seed: int = 1337,
        cache_dir: str | None = None,
        **corpus_options: Any,
    ):
        super().__init__()
        options = CorpusOptions(**corpus_options)
        check_range("data.vocab_size", vocab_size, 257, 2**32 - 1)  # rustbpe's sizes have 32 bits
        check_range("data.batch_size", batch_size, 1)
        check_range("data.validation_batch_size", validation_batch_size, 1)
        check_range("data.repeat_fraction", repeat_fraction, 0, 1)
        check_range("data.repeat_from", repeat_from, 0)
        check_range("data.repeat_until", repeat_until, repeat_from)
        check_range("data.random_repeat_fraction", random_repeat_fraction, 0, 1)
        if repeat_fraction and document_masking:
            raise Mistake(
                "data.repeat_fraction repeats text across the boundaries of documents, but data.document_masking hides "
                "earlier documents: set --data.repeat_fraction 0 or --data.document_masking false"
            )
        if tokenizer is None:
            raise Mistake("data.tokenizer is null, the tokenizer of --model.init_from: set one of these two options")
        if isinstance(tokenizer, str) and tokenizer != "bpe":
            check_name(tokenizer)

        self.corpus = corpora.build(options)
        name_or_tokenizer = Tokenizer.from_dict(tokenizer) if isinstance(tokenizer, dict) else tokenizer
        self.cache = CorpusCache(self.corpus, name_or_tokenizer, vocab_size or 2048, options.token_limits, cache_dir)
        self.context_length = context_length
        self.batch_size = batch_size
        self.validation_batch_size = validation_batch_size or batch_size
        end = math.inf if repeat_until is None else repeat_until
        self.repeats = Repeats(repeat_fraction, repeat_from, end, random_repeat_fraction)
        self.document_masking = document_masking
        self.seed = seed
        self.windows_read = 0  # training windows, by all devices since the start of the run

    def setup(self, stage: str | None = None) -> None:
        """Tokenises the corpus, or opens its tokens in the cache. Raises Mistake if there are too few tokens."""
        self.tokenized = self.cache.prepare()
        self.windows = TrainingWindows(
            self.tokenized.train, self.context_length, self.seed, self.repeats, self.tokenizer
        )

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenized.tokenizer

    def on_before_batch_transfer(self, batch: dict[str, Tensor], dataloader_idx: int) -> dict[str, Tensor]:
        """Counts the windows of each training batch that the model gets."""
        if self.trainer.training:
            self.windows_read += self.batch_size
        return batch

    def state_dict(self) -> dict[str, int]:
        return {
            "training_text": self.tokenized.train.checksum,
            "windows_read": self.windows_read,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resumes reading where the checkpoint stopped. Warns if the training text is not the same."""
        if state.get("training_text") != self.tokenized.train.checksum:
            _log.warning("The training text has changed since this checkpoint; training continues with the new text.")
        self.windows_read = state["windows_read"]

    def train_dataloader(self) -> Batches:
        """Returns the batches up to the next validation, from the first window that the run has not read.

        Lightning asks for more after each validation. Without a Trainer the batches do not end.
        """
        step, batches_in_step, between_validations = 0, 1, sys.maxsize
        if self.trainer:
            step, batches_in_step = self.trainer.global_step, self.trainer.accumulate_grad_batches
            between_validations = self.trainer.limit_train_batches
        rows, first = self._rows("batch_size"), step * batches_in_step
        resumed_at = self.windows_read - first * self.batch_size  # not 0 if earlier batches had another size

        def read(batch: int) -> dict[str, Tensor]:
            numbers = resumed_at + batch * self.batch_size + np.array(rows)
            return self._batch(self.windows.read(numbers, batch // batches_in_step))

        return Batches(range(first, first - first % between_validations + between_validations), read)

    def val_dataloader(self) -> Batches:
        """Returns batches that have every window of the validation split once, divided among the devices."""
        tokens, batch_size = self.tokenized.validation, self.validation_batch_size
        rows = self._rows("validation_batch_size")

        def read(batch: int) -> dict[str, Tensor]:
            first = batch * batch_size + rows.start
            return self._batch(adjacent_windows(tokens, self.context_length, first, len(rows)))

        return Batches(range(math.ceil((tokens.num_tokens - 1) / (self.context_length * batch_size))), read)

    def _rows(self, option: str) -> range:
        """Returns this device's rows of each batch. Raises Mistake if the devices cannot share a batch equally."""
        batch_size = getattr(self, option)
        rank, devices = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        if batch_size % devices:
            raise Mistake(
                f"a batch of {batch_size} sequences cannot be divided among {devices} devices: "
                f"set --data.{option} to a multiple of {devices}"
            )
        share = batch_size // devices
        return range(rank * share, (rank + 1) * share)

    def _batch(self, windows: np.ndarray) -> dict[str, Tensor]:
        batch = as_batch(windows, self.tokenizer.end_of_text, self.document_masking)
        if self.trainer and self.trainer.strategy.root_device.type == "cuda":
            batch = {name: tensor.pin_memory() for name, tensor in batch.items()}  # copied while the GPU computes
        return batch
