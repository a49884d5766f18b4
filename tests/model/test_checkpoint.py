"""A checkpoint comes back as the same GPT; any other file is refused before it takes memory."""

import functools
import sys
import zipfile

import pytest
import torch

from data.tokenizers import byte_level
from model import gpt as gpt_module
from model.checkpoint import load_gpt, read_checkpoint
from model.gpt import GPT, GPTConfig
from tests.command_lines import mistake
from tests.gpts import GPT2, change_checkpoint, random_gpt, save_checkpoint
from tests.small_runs import assert_same
from tests.strangers import Calls, doubled, limited_memory

READS = [read_checkpoint, functools.partial(read_checkpoint, on_disk=True)]
SIZES = {"vocab_size": 20, "context_length": 8, "num_layers": 2, "num_heads": 2, "embed_dim": 8}


def save(path, gpt, **changes):
    save_checkpoint(path, gpt)
    change_checkpoint(path, **changes)
    return path


@pytest.fixture
def gpt():
    return GPT(GPTConfig(**SIZES, ngram_sizes=[2, 3], ngram_buckets=32))


@pytest.mark.parametrize("options", [{"ngram_sizes": [2, 3], "ngram_buckets": 32}, GPT2])
def test_a_gpt_comes_back_unchanged_from_a_file_and_from_a_run(tmp_path, options):
    gpt = random_gpt(GPTConfig(**SIZES, **options))
    path = save(tmp_path / "run/checkpoints/last.ckpt", gpt)
    for source in (path, str(tmp_path / "run")):
        loaded, info = load_gpt(source)
        assert_same(loaded.state_dict(), gpt.state_dict())
        assert not loaded.training and info == {"tokenizer": byte_level().to_dict(), "global_step": 7}
        assert (loaded.lm_head.weight is loaded.token_embedding.weight) == gpt.config.tie_embeddings
    save(path.with_name("best.ckpt"), gpt, global_step=5)
    assert load_gpt(tmp_path / "run")[1]["global_step"] == 5


def test_half_precision_weights_come_back_in_float32_and_integers_are_refused(tmp_path, gpt):
    half = {f"gpt.{name}": weight.bfloat16() for name, weight in gpt.state_dict().items()}
    loaded, _ = load_gpt(save(tmp_path / "x.ckpt", gpt, state_dict=half))
    for name, weight in loaded.state_dict().items():
        assert weight.dtype == torch.float32 and torch.equal(weight, half[f"gpt.{name}"].float())
    with mistake(r"x\.ckpt .*torch\.int64"):
        load_gpt(save(tmp_path / "x.ckpt", gpt, state_dict=half | {"gpt.lm_head.weight": torch.ones(20, 8).long()}))


def test_buffers_of_ones_own_and_weights_that_layers_share_come_back(tmp_path, monkeypatch):
    def build_norm(config):
        norm = torch.nn.Identity()
        norm.slopes = torch.arange(2)
        norm.register_buffer("mask", norm.slopes > norm.slopes[0].item())
        return norm

    monkeypatch.setattr(gpt_module, "build_norm", build_norm)
    gpt = GPT(GPTConfig(**SIZES | {"num_layers": 9}))
    gpt.blocks = torch.nn.ModuleList(9 * [gpt.blocks[0]])
    loaded, _ = load_gpt(save(tmp_path / "x.ckpt", gpt))
    assert_same(loaded.state_dict(), gpt.state_dict())
    assert loaded.final_norm.slopes.tolist() == [0, 1]


def test_parts_of_a_checkpoint_and_other_content_are_refused(tmp_path, gpt):
    path = tmp_path / "x.ckpt"
    whole = save(path, gpt).read_bytes()
    for part in (b"", whole[:1000], whole[:-1], {"weights": torch.zeros(2)}, [1, 2], 3):
        path.write_bytes(part) if isinstance(part, bytes) else torch.save(part, path)
        with mistake(r"x\.ckpt is damaged"):
            load_gpt(path)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"gpt_config": None}, ""),
        ({"gpt_config": SIZES | {"num_layers": "two"}}, ""),
        ({"global_step": "x"}, "'x'"),
        ({"state_dict": {1: torch.zeros(2)}}, ""),
        ({"state_dict": {"gpt.lm_head.weight": 1}}, ""),
        ({"gpt_config": SIZES | {"num_layers": 3}}, r"blocks\.2\..* absent"),
        ({"gpt_config": SIZES | {"bigram_buckets": 64}}, "bigram_buckets"),  # an option of an earlier version
    ],
    ids=str,
)
def test_weights_that_do_not_fit_the_description_are_refused(tmp_path, gpt, changes, reason):
    path = save(tmp_path / "x.ckpt", gpt, **changes)
    with mistake(rf"x\.ckpt\b.*{reason}[^\n]*$"):
        load_gpt(path)


def test_an_error_while_weights_are_loaded_is_passed_on(tmp_path, gpt, monkeypatch):
    """Such as full memory, or an error in the user's own layer: it is not about weights that do not fit."""
    path = save(tmp_path / "x.ckpt", gpt)

    def fail(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch.nn.Embedding, "_load_from_state_dict", fail)
    with pytest.raises(RuntimeError, match="allocate memory"):
        load_gpt(path)


ENORMOUS = torch.zeros(1).expand(2**20, 2**20)  # one stored number with a stride of 0
LARGE = [{"num_layers": 1_000_000}, {"embed_dim": 32768}, {"embed_dim": 2**70}, {"vocab_size": 2**40}]
LARGE += [{"ngram_sizes": [2], "ngram_buckets": 10**12}, {"feed_forward_dim": 10**12}]
LARGE += [{"value_embeddings": True, "vocab_size": 10**12}, {"context_length": 10**12, "position": "learned"}]
TOO_LARGE = {str(sizes): {"gpt_config": SIZES | sizes} for sizes in LARGE} | {
    "weight": {"state_dict": {"gpt.lm_head.weight": ENORMOUS}},
    "optimizer": {"optimizer_states": [{"state": {0: {"momentum": ENORMOUS}}}]},
    "config": {"gpt_config": {"num_layers": doubled(100)}},
    "tokenizer": {"tokenizer": {"name": doubled(100)}},
    "bytearray": {"loops": Calls(bytearray, 2**31)},
    "tensor": {"loops": Calls(torch.Tensor, 2**20, 2**20)},
    "storage": {"loops": Calls(torch.UntypedStorage, 2**31)},
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory as Linux does")
@pytest.mark.parametrize("changes", TOO_LARGE.values(), ids=TOO_LARGE)
def test_a_file_that_describes_more_than_it_holds_is_refused_before_memory_is_taken(tmp_path, gpt, changes):
    path = save(tmp_path / "x.ckpt", gpt, **changes)
    for read in [load_gpt] if "gpt_config" in changes else READS:
        with limited_memory(), mistake(r"x\.ckpt ") as refusal:
            read(path)
        assert not isinstance(refusal.value.__cause__, MemoryError) and "alloc" not in str(refusal.value)


@pytest.mark.parametrize("read", READS)
def test_a_compressed_file_is_refused(tmp_path, gpt, read):
    """It could be a thousandth of its unpacked size, so that reading it would fill the memory."""
    path, packed = save(tmp_path / "x.ckpt", gpt, extra=torch.zeros(10**6)), tmp_path / "packed.ckpt"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for record in source.infolist():
            target.writestr(record.filename, source.read(record))
    with mistake(r"packed\.ckpt .*unpacked"):
        read(packed)
