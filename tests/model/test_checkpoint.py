"""A checkpoint is found where a person means, comes back as the same GPT, and is refused if it is anything else."""

import dataclasses
import os
import sys
import zipfile

import pytest
import torch

from model.checkpoint import load_gpt, read_checkpoint, read_description
from model.gpt import GPT, GPTConfig
from tests.gpts import GPT2, random_gpt
from tests.limited_memory import limited_memory

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="limits the memory as Linux does")


def save(path, gpt, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = {
        "state_dict": {f"gpt.{name}": weight for name, weight in gpt.state_dict().items()},
        "gpt_config": dataclasses.asdict(gpt.config),
        "tokenizer": {"name": "bytes"},
        "global_step": 7,
    }
    torch.save(checkpoint | changes, path)
    return path


@pytest.fixture
def gpt():
    return GPT(GPTConfig(vocab_size=20, context_length=8, num_layers=2, num_heads=2, embed_dim=8, bigram_buckets=32))


def test_the_same_gpt_comes_back(tmp_path, gpt):
    loaded, info = load_gpt(save(tmp_path / "x.ckpt", gpt))
    tokens = torch.randint(20, (2, 8))
    assert torch.equal(loaded(tokens), gpt.eval()(tokens))
    assert not loaded.training
    assert info == {"tokenizer": {"name": "bytes"}, "global_step": 7}


def test_a_tied_head_stays_tied(tmp_path):
    gpt = random_gpt(GPTConfig(vocab_size=20, context_length=8, num_layers=1, num_heads=2, embed_dim=8, **GPT2))
    loaded, _ = load_gpt(save(tmp_path / "x.ckpt", gpt))
    assert loaded.head.weight is loaded.token_embedding.weight
    tokens = torch.randint(20, (2, 8))
    assert torch.equal(loaded(tokens), gpt(tokens))


def test_weights_of_half_precision_come_back_in_float32(tmp_path, gpt):
    half = {f"gpt.{name}": weight.bfloat16() for name, weight in gpt.state_dict().items()}
    loaded, _ = load_gpt(save(tmp_path / "x.ckpt", gpt, state_dict=half))
    for name, weight in loaded.state_dict().items():
        assert weight.dtype == torch.float32 and torch.equal(weight, half[f"gpt.{name}"].float())
    whole = {name: weight.long() for name, weight in half.items()}
    with pytest.raises(ValueError, match=r"do not fit .*: gpt\.\S+ holds torch\.int64, not floats"):
        load_gpt(save(tmp_path / "x.ckpt", gpt, state_dict=whole))


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        load_gpt(tmp_path / "nowhere.ckpt")


@pytest.mark.parametrize("size", [0, 1, 1000, -1])
def test_a_truncated_file_is_refused(tmp_path, gpt, size):
    path = save(tmp_path / "x.ckpt", gpt)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"x\.ckpt is damaged, or no checkpoint"):
        load_gpt(path)


def test_a_flipped_bit_is_noticed(tmp_path, gpt):
    path = save(tmp_path / "x.ckpt", gpt)
    content = bytearray(path.read_bytes())
    weight = gpt.token_embedding.weight.detach().numpy().tobytes()
    content[content.index(weight) + 5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not match its checksum"):
        load_gpt(path)


class RunsCode:
    def __reduce__(self):
        return (os.mkdir, ("pwned",))


def test_a_file_that_would_run_code_is_refused_and_nothing_runs(tmp_path, gpt, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "x.ckpt", gpt, extra=RunsCode())
    with pytest.raises(ValueError, match="not a checkpoint of plain tensors and values"):
        load_gpt(path)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [{"weights": torch.zeros(2)}, torch.zeros(3), [1, 2]])
def test_a_checkpoint_of_something_else_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(ValueError, match=r"not a checkpoint of GlassGPT: it has no .*gpt_config"):
        load_gpt(tmp_path / "x.ckpt")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("gpt_config", None, "its gpt_config is of type NoneType, not dict"),
        ("tokenizer", "bytes", "its tokenizer is of type str, not dict"),
        ("global_step", None, "its global_step is of type NoneType, not int"),
        ("state_dict", {1: torch.zeros(2)}, "its state_dict has no tensor as 1"),
        ("state_dict", {"gpt.head.weight": 1}, "its state_dict has no tensor as 'gpt.head.weight'"),
    ],
)
def test_every_part_has_the_right_type(tmp_path, gpt, key, value, reason):
    path = save(tmp_path / "x.ckpt", gpt, **{key: value})
    with pytest.raises(ValueError, match=rf"x\.ckpt is not a checkpoint of GlassGPT: {reason}$"):
        load_gpt(path)


def test_weights_of_another_model_are_refused_with_the_reason(tmp_path, gpt):
    other = dataclasses.asdict(gpt.config) | {"num_layers": 3}
    path = save(tmp_path / "x.ckpt", gpt, gpt_config=other)
    with pytest.raises(ValueError, match=r"do not fit the model it describes: Missing key.*blocks\.2[^\n]*$"):
        load_gpt(path)
    path = save(tmp_path / "x.ckpt", gpt, gpt_config=other | {"colour": "red"})
    with pytest.raises(ValueError, match=r"do not fit the model it describes.*colour"):
        load_gpt(path)


@needs_linux
@pytest.mark.parametrize(
    "size",
    [
        {"num_layers": 1_000_000},
        {"embed_dim": 32768},
        {"embed_dim": 2**70},
        {"vocab_size": 2**40},
        {"bigram_buckets": 10**12},
        {"feed_forward_dim": 10**12},
        {"context_length": 10**12, "position": "learned"},
        {"value_embeddings": True, "vocab_size": 10**12},
    ],
    ids=str,
)
def test_a_description_larger_than_the_file_is_refused_before_memory_is_taken(tmp_path, gpt, size):
    path = save(tmp_path / "x.ckpt", gpt, gpt_config=dataclasses.asdict(gpt.config) | size)
    with (
        limited_memory(),
        pytest.raises(ValueError, match=r"not fit the model it describes|too large") as refusal,
    ):
        load_gpt(path)
    assert "alloc" not in str(refusal.value)


def doubled(times):
    """2^times values in a pickle of a few bytes."""
    value = [0]
    for _ in range(times):
        value = [value, value]
    return value


class Calls:
    """In a pickle, a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@needs_linux
@pytest.mark.parametrize("read", [read_checkpoint, read_description])
@pytest.mark.parametrize(
    "change",
    [
        {"state_dict": {"gpt.head.weight": torch.zeros(1).expand(2**20, 2**20)}},
        {"optimizer_states": [{"state": {0: {"momentum": torch.zeros(1).expand(2**20, 2**20)}}}]},
        {"gpt_config": {"num_layers": doubled(100)}},
        {"tokenizer": {"name": doubled(100)}},
        {"loops": Calls(bytearray, 2**31)},
        {"loops": Calls(torch.Tensor, 2**20, 2**20)},
        {"loops": Calls(torch.UntypedStorage, 2**31)},
    ],
    ids=["weight", "optimizer", "config", "tokenizer", "bytearray", "tensor", "storage"],
)
def test_values_larger_than_the_file_are_refused_before_memory_is_taken(tmp_path, gpt, change, read):
    path = save(tmp_path / "x.ckpt", gpt, **change)
    with (
        limited_memory(),
        pytest.raises(ValueError, match=r"more than its own size|plain tensors and values") as refusal,
    ):
        read(path)
    assert not isinstance(refusal.value.__cause__, MemoryError) and "alloc" not in str(refusal.value.__cause__)


@pytest.mark.parametrize("read", [read_checkpoint, read_description])
def test_a_compressed_file_is_refused(tmp_path, gpt, read):
    """Of a thousandth of its size, so that reading it would fill the memory."""
    path, packed = save(tmp_path / "x.ckpt", gpt, extra=torch.zeros(10**6)), tmp_path / "packed.ckpt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for record in source.infolist():
            target.writestr(record.filename, source.read(record))
    with pytest.raises(ValueError, match=r"packed\.ckpt is not a checkpoint of GlassGPT: unpacked it has 4,\d+"):
        read(packed)
