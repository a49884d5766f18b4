"""The data module: training batches, validation batches and mistakes in options. tests/test_train.py resumes runs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data.datamodule import TextDataModule
from data.windows import IGNORED
from tests.command_lines import mistake

TRAINER = {"global_rank": 0, "world_size": 1, "global_step": 0, "accumulate_grad_batches": 1, "limit_train_batches": 9}
TRAINER["strategy"] = SimpleNamespace(root_device=torch.device("cpu"))
TEXT = "".join(f"Line {number} of a small book, é.\n" + "\n" * (number % 5 == 0) for number in range(3000))


@pytest.fixture
def module(tmp_path):
    (tmp_path / "book.txt").write_text(TEXT, encoding="utf-8")

    def make(rank=0, world_size=1, **options):
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


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_validation_predicts_every_token_once(module, world_size):
    stream = module().tokenized.validation.read(0, 10**9)
    found = []
    for rank in range(world_size):
        data = module(rank, world_size, validation_batch_size=12)
        batches = list(data.val_dataloader())
        assert len(batches) == len(data.val_dataloader())
        assert all(batch["tokens"].shape == (12 // world_size, 32) for batch in batches)
        found.append(torch.stack([torch.stack([batch["tokens"], batch["targets"]]) for batch in batches]))
    tokens, targets = torch.cat(found, dim=2).transpose(0, 1).flatten(1)  # batch by batch, rank by rank
    valid = targets != IGNORED
    assert np.array_equal(targets[valid], stream[1:])
    assert np.array_equal(tokens[valid], stream[:-1])


def test_document_ids_increase_at_each_end_of_text(module):
    data = module(corpus="repetitions", files=None, document_masking=True, context_length=400)
    end = data.tokenizer.end_of_text
    for loader in (data.train_dataloader(), data.val_dataloader()):
        batch = next(iter(loader))
        starts = batch["tokens"] == end
        assert starts[:, 1:].any() and batch["document_ids"].shape == starts.shape
        assert torch.equal(batch["document_ids"].diff(dim=1), starts[:, 1:].long())


@pytest.mark.parametrize("max_tokens, fraction, expected", [(1000, 0.25, 250), (999, 0.1, 99), (40, 0.01, 2)])
def test_max_tokens_cuts_the_validation_split_in_proportion(module, max_tokens, fraction, expected):
    data = module(max_tokens=max_tokens, validation_fraction=fraction)
    assert (data.tokenized.train.num_tokens, data.tokenized.validation.num_tokens) == (max_tokens, expected)
    assert len(list(data.val_dataloader())) >= 1


def test_a_loader_ends_at_the_next_validation_and_text_repeats_from_one_step_to_another(module):
    """Also after a resume with other batches. A step has two batches of 8 windows, and a validation follows step 5."""
    limits = {"accumulate_grad_batches": 2, "limit_train_batches": 10}
    data = module(repeat_fraction=1.0, repeat_from=3, repeat_until=4)
    for step, expected in ((0, [3 * 2, 3 * 2 + 1]), (2, [2, 3]), (5, [])):
        data.trainer, data.windows_read = SimpleNamespace(**TRAINER | limits | {"global_step": step}), 5 * step
        batches = [batch["tokens"].numpy() for batch in data.train_dataloader()]
        text = data.tokenized.train.gather(data.windows.starts(5 * step + np.arange(8 * len(batches))), 32)
        repeated = [n for n, batch in enumerate(batches) if (batch != text[8 * n : 8 * n + 8]).any()]
        assert len(batches) == (5 - step % 5) * 2 and repeated == expected


@pytest.mark.parametrize("devices", [2, 8])
def test_devices_share_the_batches_and_reading_continues_after_any_window(module, devices):
    """The windows of all devices are those of one, and those after window 20 do not depend on earlier batch sizes."""
    options = {"repeat_fraction": 0.5, "random_repeat_fraction": 0.125}
    expected = next(iter(module(batch_size=92, **options).train_dataloader()))["tokens"][20:]
    shares = []
    for rank in range(devices):
        data = module(rank, devices, **options)
        data.windows_read = 20
        shares.append(torch.stack([batch["tokens"] for batch in data.train_dataloader()]))
    assert torch.equal(torch.cat(shares, dim=1).flatten(0, 1), expected)


def test_a_batch_size_that_the_devices_do_not_divide_is_named(module):
    with mistake(r"8 .*3 devices.*--data.batch_size"):
        module(0, 3).train_dataloader()
    with mistake(r"8 .*3 devices.*--data.validation_batch_size"):
        module(0, 3, batch_size=9, validation_batch_size=8).val_dataloader()
