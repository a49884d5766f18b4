"""Batches for training and validation: corpus, tokenizer, token files and order, as a LightningDataModule.

Letters: B sequences in a batch, T tokens of context.
"""

from __future__ import annotations

import atexit
import logging
import math
import multiprocessing
import signal
import weakref
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from data import corpora, tokenizers
from data.corpora import CorpusOptions
from data.token_cache import CorpusCache
from data.tokenizers import Tokenizer
from data.windows import Repeats, TrainingWindows, ValidationWindows, WindowSampler, as_batch
from model.mistakes import Mistake, check_range

_log = logging.getLogger(__name__)

_loading: weakref.WeakSet[BaseProcess] = weakref.WeakSet()  # processes that load data


class TextDataModule(lightning.LightningDataModule):
    """Text as batches {"tokens": (B, T), "targets": (B, T)}, int64; targets are the tokens that follow.

    Training never ends, and the order of its windows depends on the seed alone. Validation is one exact pass over
    adjacent windows: each token of the text is predicted once, and the rest of the last batch has targets of
    `windows.IGNORED`.

    Args:
        corpus: stdlib (the source of Python's standard library), files, hub (any name or folder for `datasets`), or
            repetitions (generated, to see induction heads form).
        max_tokens: tokens to train on at most, from the beginning of the corpus; the validation split is cut to
            validation_fraction of it. Default: all.
        tokenizer: bpe (trained on the training split), bytes, a published tiktoken encoding such as gpt2, or the path,
            with a /, of a model that has its own: a run, a checkpoint or a folder of Hugging Face's; null: that of
            --model.init_from. In Python, `Tokenizer.to_dict` of it.
        vocab_size: tokens of the bpe tokenizer, end-of-text included (default 2048); the others bring their own.
        context_length: tokens T in a sequence.
        batch_size: sequences B in a batch, over all devices.
        validation_batch_size: sequences in a validation batch, over all devices (default: batch_size).
        repeat_fraction: share of the training windows that repeat their own first tokens over and over. The period is
            random, between 8 and T/2, so a model must look back for the same token to predict the next one, which
            makes induction heads form early. Not together with document_masking.
        repeat_from, repeat_until: the windows that a run has read when this begins and when it ends (default: from the
            first to the last). A model that learns until the end that text repeats itself writes such text.
        random_repeat_fraction: share of the training windows, until the end, that repeat random tokens in the same
            way. A few keep induction heads, and as they are no text, they change little in what a model writes.
        document_masking: also yield "document_ids" (B, T), which tell tokens of different documents apart.
        seed: of the order of the training windows.
        num_workers: loader processes; 0 is right unless a profile says otherwise.
        num_threads: threads that tokenise at once (default: one a core).
        cache_dir: where tokens are kept (default: $GLASSGPT_CACHE, or .cache in a checkout, or the user's cache).
        corpus_options: those of CorpusOptions.

    Raises Mistake for options that contradict each other or name nothing.
    """

    def __init__(
        self,
        corpus: str = "stdlib",
        max_tokens: int | None = None,
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
        num_workers: int = 0,
        num_threads: int | None = None,
        cache_dir: str | None = None,
        **corpus_options: Any,
    ):
        super().__init__()
        options = CorpusOptions(**corpus_options)
        check_range("data.max_tokens", max_tokens, 2)
        check_range("data.vocab_size", vocab_size, 257, 2**32 - 1)  # rustbpe's sizes have 32 bits
        check_range("data.batch_size", batch_size, 1)
        check_range("data.validation_batch_size", validation_batch_size, 1)
        check_range("data.num_workers", num_workers, 0)
        check_range("data.num_threads", num_threads, 1)
        check_range("data.validation_fraction", options.validation_fraction, 0, 1, low_open=True, high_open=True)
        check_range("data.repeat_fraction", repeat_fraction, 0, 1)
        check_range("data.repeat_from", repeat_from, 0)
        check_range("data.repeat_until", repeat_until, repeat_from)
        check_range("data.random_repeat_fraction", random_repeat_fraction, 0, 1)
        if repeat_fraction and document_masking:
            raise Mistake(
                "data.repeat_fraction repeats text across the ends of documents, and data.document_masking hides what "
                "lies before them: set --data.repeat_fraction 0 or --data.document_masking false"
            )
        if options.streaming and max_tokens is None:
            raise Mistake("data.streaming reads without an end: set --data.max_tokens to the tokens to train on")
        if tokenizer is None:
            raise Mistake("data.tokenizer is null, which is the tokenizer of --model.init_from: name one of these")
        if isinstance(tokenizer, str):
            tokenizers.check_name(tokenizer)

        self.corpus = corpora.build(corpus, options)
        validation_tokens = None if max_tokens is None else max(int(max_tokens * options.validation_fraction), 2)
        limits = {"train": max_tokens, "validation": validation_tokens}
        own = Tokenizer.from_dict(tokenizer) if isinstance(tokenizer, dict) else tokenizer
        self.cache = CorpusCache(self.corpus, own, vocab_size or 2048, limits, cache_dir)
        self.context_length = context_length
        self.batch_size = batch_size
        self.validation_batch_size = validation_batch_size or batch_size
        end = math.inf if repeat_until is None else repeat_until
        self.repeats = Repeats(repeat_fraction, repeat_from, end, random_repeat_fraction)
        self.document_masking = document_masking
        self.seed = seed
        self.num_workers = num_workers
        self.num_threads = num_threads
        self.windows_read: int | None = 0  # of the training text, by all devices since the beginning of the run

    def setup(self, stage: str | None = None) -> None:
        """Tokenises the corpus unless the cache holds it. Raises Mistake where there are too few tokens."""
        self.tokenized = self.cache.prepare(self.num_threads)
        self.sampler = WindowSampler(self.tokenized.train.num_tokens, self.context_length, self.seed)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenized.tokenizer

    def on_before_batch_transfer(self, batch: dict[str, Tensor], dataloader_idx: int) -> dict[str, Tensor]:
        """Counts the windows of a training batch when the model takes it; loaders have read ahead."""
        if self.trainer.training:
            self.windows_read += self.batch_size
        return batch

    def state_dict(self) -> dict[str, int]:
        return {
            "training_text": self.tokenized.train.checksum,
            "validation_text": self.tokenized.validation.checksum,
            "windows_read": self.windows_read,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes on where the checkpoint has stopped reading. Warns if a resumed run trains on a different text."""
        if state.get("training_text") != self.tokenized.train.checksum:
            _log.warning("The training text is not the one that this checkpoint was trained on; going on with it.")
        self.windows_read = state.get("windows_read")

    def train_dataloader(self) -> DataLoader:
        """Endless batches, from the first window on that the run has not read."""
        if self.windows_read is None:  # an earlier version did not save it, but read as many in every step
            batches = self.trainer.global_step * self.trainer.accumulate_grad_batches
            self.windows_read = batches * self.batch_size
        if self.windows_read and self.trainer.overfit_batches:  # which would be others
            raise Mistake("a run with trainer.overfit_batches cannot be resumed: start a new one")
        vocabulary = [token for token in range(self.tokenizer.vocab_size) if token != self.tokenizer.end_of_text]
        first, rows = self.windows_read, self._rows("batch_size")
        return self._loader(
            TrainingWindows(self.tokenized.train, self.sampler, first, self.repeats, vocabulary, self.batch_size, rows)
        )

    def val_dataloader(self) -> DataLoader:
        """Every window of the validation split, once over all devices."""
        sizes, rows = (self.context_length, self.validation_batch_size), self._rows("validation_batch_size")
        return self._loader(ValidationWindows(self.tokenized.validation, *sizes, rows))

    def _rows(self, option: str) -> range:
        """Those of each batch that this device reads. Raises Mistake if the devices cannot share it equally."""
        batch_size = getattr(self, option)
        rank, devices = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        if batch_size % devices:
            raise Mistake(
                f"a batch of {batch_size} sequences cannot be shared by {devices} devices: "
                f"set --data.{option} to a multiple of {devices}"
            )
        share = batch_size // devices
        return range(rank * share, (rank + 1) * share)

    def _loader(self, windows: TrainingWindows | ValidationWindows) -> DataLoader:
        return Loader(
            windows,
            batch_size=None,  # the data set yields whole batches
            collate_fn=partial(as_batch, end_of_text=self.tokenizer.end_of_text, with_documents=self.document_masking),
            num_workers=self.num_workers,
            pin_memory=self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
            generator=torch.Generator(),  # otherwise each new iterator would advance the global one
        )


class Loader(DataLoader):
    """Its processes start with signals blocked, and so never get any.

    Ctrl-C reaches every process of a terminal; the main one still needs batches to end its step, and then ends these.
    """

    def __iter__(self) -> Any:
        if not hasattr(signal, "pthread_sigmask"):  # on Windows
            return super().__iter__()
        others = set(multiprocessing.active_children())
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            _loading.update(set(multiprocessing.active_children()) - others)


@atexit.register
def _kill_loaders() -> None:
    """Those that are still there: Python would end them by SIGTERM, which they never get, and wait for ever."""
    for process in _loading & set(multiprocessing.active_children()):
        process.kill()
