"""Tests scripts/convert_huggingface.py: export and import again, and one sentence for each mistake."""

import json
import shlex
from importlib.util import find_spec

import pytest
import torch

from data.tokenizers import byte_level
from model.checkpoint import load_gpt
from model.exchange.huggingface import to_huggingface
from model.gpt import GPTConfig
from scripts.convert_huggingface import main
from tests.command_lines import call, refused, tells
from tests.gpts import GPT2, random_gpt, save_checkpoint

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")

SIZES = {"vocab_size": 260, "context_length": 16, "num_layers": 2, "num_heads": 2, "embed_dim": 16}


@pytest.fixture
def gpt():
    return random_gpt(GPTConfig(**SIZES, **GPT2))


@pytest.mark.parametrize(
    ("options", "exported"), [(GPT2, "GPT2LMHeadModel"), ({"window": 4}, "GlassGPTForCausalLM")], ids=["gpt2", "modern"]
)
def test_a_run_is_exported_and_imported_bit_for_bit(options, exported, tmp_path, capsys):
    """A model other than GPT-2 is exported with its source code, which the user must trust."""
    gpt = random_gpt(GPTConfig(**SIZES, **options))
    save_checkpoint(tmp_path / "run/checkpoints/best.ckpt", gpt)
    status, out, _ = call(main, capsys, "export", tmp_path / "run", tmp_path / "folder")
    assert status == 0 and exported in out and ("trust_remote_code=True" in out) == (options is not GPT2)
    status, out, _ = call(main, capsys, "import", tmp_path / "folder", tmp_path / "again.ckpt")
    assert status == 0 and f"{gpt.num_parameters():,} parameters, tokenizer bytes" in out
    again, info = load_gpt(tmp_path / "again.ckpt")
    assert again.config == gpt.config and info["tokenizer"] == byte_level().to_dict()
    assert all(map(torch.equal, again.state_dict().values(), gpt.state_dict().values()))


def test_a_model_without_tokenizer_takes_the_named_one(gpt, tmp_path, capsys):
    to_huggingface(gpt, tmp_path / "folder")
    sentence = refused(main, capsys, "import", tmp_path / "folder", tmp_path / "our.ckpt")
    assert "has no tokenizer.json" in sentence and "--tokenizer" in sentence
    assert call(main, capsys, "import", tmp_path / "folder", tmp_path / "our.ckpt", "--tokenizer", "bytes")[0] == 0
    assert load_gpt(tmp_path / "our.ckpt")[1]["tokenizer"] == byte_level().to_dict()


MISTAKES = {
    "import small new.ckpt": "257 200",
    "import 'gpt2 x' new.ckpt": "gpt2 x",
    "import folder our.ckpt": "our.ckpt exists",
    "import our.ckpt new.ckpt": "our.ckpt folder",
    "import folder new.ckpt --tokenizer bpe": "--tokenizer bytes",
    "export nothing new": "nothing",
    "export our.ckpt folder": "folder exists",
}


def test_a_mistake_gets_one_sentence_and_leaves_nothing(gpt, tmp_path, capsys, here):
    save_checkpoint(tmp_path / "our.ckpt", gpt)
    to_huggingface(gpt, tmp_path / "folder", byte_level())
    to_huggingface(random_gpt(GPTConfig(**{**SIZES, "vocab_size": 200}, **GPT2)), tmp_path / "small")
    for name, content in byte_level().huggingface_files().items():
        (tmp_path / "small" / name).write_text(json.dumps(content))
    before = sorted(path.name for path in tmp_path.iterdir())
    for typed, words in MISTAKES.items():
        assert tells(refused(main, capsys, *shlex.split(typed)), words)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
