"""The data module: training batches, validation batches and mistakes in options. tests/test_train.py resumes runs."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data.datamodule import TextDataModule
from data.windows import IGNORED
from model.mistakes import Mistake
from tests import programs

TRAINER = {"global_rank": 0, "world_size": 1, "global_step": 0, "accumulate_grad_batches": 1, "overfit_batches": 0.0}
TRAINER["strategy"] = SimpleNamespace(root_device=torch.device("cpu"))
AT_LEAST_ONE = dict.fromkeys(["batch_size", "validation_batch_size", "num_threads"], 1)
TEXT = "".join(f"Line {number} of a small book, é.\n" + "\n" * (number % 5 == 0) for number in range(3000))


@pytest.fixture
def module(tmp_path):
    (tmp_path / "book.txt").write_text(TEXT, encoding="utf-8")

    def make(rank: int = 0, world_size: int = 1, **options) -> TextDataModule:
        places = {"files": str(tmp_path / "book.txt"), "cache_dir": str(tmp_path / "cache")}
        sizes = {"tokenizer": "bytes", "context_length": 32, "batch_size": 8, "seed": 5}
        data = TextDataModule(**places | sizes | options)
        data.setup()
        if world_size > 1:
            data.trainer = SimpleNamespace(**TRAINER | {"global_rank": rank, "world_size": world_size})
        return data

    return make


def test_targets_are_the_next_tokens_and_loaders_do_not_use_the_global_random_generator(module):
    """A resumed run makes its loaders at another moment, and would then draw other dropout masks."""
    data, before = module(), torch.random.get_rng_state()
    batch, _ = (next(iter(loader)) for loader in (data.train_dataloader(), data.val_dataloader()))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert list(batch) == ["tokens", "targets"]
    assert all((x.shape, x.dtype, x.is_contiguous()) == ((8, 32), torch.int64, True) for x in batch.values())
    windows = np.lib.stride_tricks.sliding_window_view(data.tokenized.train.read(0, 10**9), 33)
    for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
        assert np.array_equal(tokens[1:], targets[:-1])
        assert (windows == np.append(tokens[:1], targets)).all(axis=1).any()


@pytest.mark.parametrize("world_size, num_workers", [(1, 0), (2, 2), (4, 0)])
def test_validation_predicts_every_token_once(module, world_size, num_workers):
    stream = module().tokenized.validation.read(0, 10**9)
    found = []
    for rank in range(world_size):
        data = module(rank, world_size, num_workers=num_workers, validation_batch_size=12)
        batches = list(data.val_dataloader())
        assert len(batches) == len(data.val_dataloader())
        assert all(batch["tokens"].shape == (12 // world_size, 32) for batch in batches)
        found.append(torch.stack([torch.stack([batch["tokens"], batch["targets"]]) for batch in batches]))
    tokens, targets = torch.cat(found, dim=2).transpose(0, 1).flatten(1)  # batch by batch, rank by rank
    valid = targets != IGNORED
    assert np.array_equal(targets[valid], stream[1:])
    assert np.array_equal(tokens[valid], stream[:-1])
    assert tokens.min() >= 0
    assert len(targets) % (12 * 32) == 0


def test_document_ids_increase_at_each_end_of_text(module):
    data = module(corpus="repetitions", files=None, document_masking=True, context_length=400)
    end = data.tokenizer.end_of_text
    for loader in (data.train_dataloader(), data.val_dataloader()):
        batch = next(iter(loader))
        starts = batch["tokens"] == end
        assert starts[:, 1:].any() and batch["document_ids"].shape == starts.shape
        assert torch.equal(batch["document_ids"].diff(dim=1), starts[:, 1:].long())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"corpus": "files", "files": None}, "data.corpus files .*--data.files"),
        ({"corpus": "hub", "files": None}, "data.corpus hub .*--data.dataset"),
        ({"dataset": "x/y"}, "data.files .*data.dataset"),
        ({"streaming": True}, "data.streaming .*--data.max_tokens"),
        ({"corpus": "wiki", "files": None}, "data.corpus 'wiki': .*stdlib, files, hub, "),
        ({"tokenizer": "gpt9"}, "'gpt9': .*bpe, bytes, gpt2"),
        *(({"validation_fraction": value}, f"validation_fraction .* 0 .* 1, not {value}") for value in (0, 1, 1.5)),
        *(
            ({"files": None, option: nothing}, f"data.{option} ")
            for option in ("files", "validation_files", "dataset")
            for nothing in ("", [], ["a.txt", ""])
        ),
        *(({"repeat_fraction": value}, f"repeat_fraction .* 0 .* 1, not {value}") for value in (-0.1, 1.1)),
        ({"repeat_fraction": 0.5, "document_masking": True}, "data.repeat_fraction .*data.document_masking"),
        ({"tokenizer": "bpe", "vocab_size": 5 * 10**9}, r"257 .*4294967295"),
        *(
            ({option: least - 1}, f"data.{option} .* {least}.* {least - 1}")
            for option, least in {"num_workers": 0, "max_tokens": 2, "vocab_size": 257, **AT_LEAST_ONE}.items()
        ),
    ],
)
def test_a_mistake_in_the_options_is_named(module, options, message):
    with pytest.raises(Mistake, match=message):
        module(**options)


@pytest.mark.parametrize("max_tokens, fraction, expected", [(1000, 0.25, 250), (999, 0.1, 99), (40, 0.01, 2)])
def test_max_tokens_cuts_the_validation_split_in_proportion(module, max_tokens, fraction, expected):
    data = module(max_tokens=max_tokens, validation_fraction=fraction)
    assert (data.tokenized.train.num_tokens, data.tokenized.validation.num_tokens) == (max_tokens, expected)
    assert len(list(data.val_dataloader())) >= 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_loader_processes_ignore_ctrl_c_and_end_with_the_program(module, tmp_path):
    """Ctrl-C reaches every process of a terminal, and the main process still needs batches to end its step."""
    module()  # tokenises
    places = {"files": str(tmp_path / "book.txt"), "cache_dir": str(tmp_path / "cache")}
    program = f"""
import multiprocessing, os, signal
from data.datamodule import TextDataModule
data = TextDataModule(tokenizer="bytes", num_workers=2, **{places})
data.setup()
batches = iter(data.train_dataloader())
for moment in range(9):
    for loader in multiprocessing.active_children():
        os.kill(loader.pid, signal.SIGINT)
        os.kill(loader.pid, signal.SIGTERM)
    next(batches)
"""
    programs.run("-c", program)


def test_a_run_cannot_be_resumed_with_overfit_batches_that_it_has_passed(module):
    data = module()
    data.trainer = SimpleNamespace(**TRAINER | {"overfit_batches": 3, "global_step": 6})
    data.windows_read = 48
    with pytest.raises(Mistake, match="overfit_batches"):
        data.train_dataloader()


def test_a_batch_size_that_the_devices_do_not_divide_is_named(module):
    with pytest.raises(Mistake, match=r"8 .*3 devices.*--data.batch_size"):
        module(0, 3).train_dataloader()
    with pytest.raises(Mistake, match=r"8 .*3 devices.*--data.validation_batch_size"):
        module(0, 3, batch_size=9, validation_batch_size=8).val_dataloader()
