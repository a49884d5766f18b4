"""scripts/convert_huggingface.py: models come back as they were exported, and mistakes get a sentence."""

import json
from dataclasses import replace
from importlib.util import find_spec

import pytest

from data.tokenizers import byte_level
from model.checkpoint import load_gpt
from model.exchange.huggingface import to_huggingface
from scripts.convert_huggingface import main
from tests.command_lines import call, check_mistakes
from tests.gpts import CONFIGS, random_gpt, save_checkpoint
from tests.small_runs import assert_same

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")


def gpt_of(name, vocab_size=260):
    return random_gpt(replace(CONFIGS[name], vocab_size=vocab_size))


@pytest.fixture
def gpt():
    return gpt_of("gpt2")


@pytest.mark.parametrize("name, exported", [("gpt2", "GPT2LMHeadModel"), ("window", "GlassGPTForCausalLM")])
def test_a_run_is_exported_and_imported_bit_for_bit(name, exported, tmp_path, capsys):
    """The folder of a GPT that is no GPT-2 holds our source, which a user must trust."""
    gpt = gpt_of(name)
    save_checkpoint(tmp_path / "run/checkpoints/best.ckpt", gpt)
    status, out, _ = call(main, capsys, "export", tmp_path / "run", tmp_path / "folder")
    assert status == 0 and exported in out and ("trust_remote_code=True" in out) == (name != "gpt2")
    status, out, _ = call(main, capsys, "import", tmp_path / "folder", tmp_path / "again.ckpt")
    assert status == 0 and f"{gpt.num_parameters():,} parameters, tokenizer bytes" in out
    again, _ = load_gpt(tmp_path / "again.ckpt")
    assert_same((again.config, dict(again.state_dict())), (gpt.config, dict(gpt.state_dict())))


def test_a_folder_without_a_tokenizer_needs_the_option_tokenizer(gpt, tmp_path, capsys):
    to_huggingface(gpt, tmp_path / "folder")
    typed = f"import {tmp_path}/folder {tmp_path}/our.ckpt"
    check_mistakes(main, capsys, {typed: "tokenizer.json --tokenizer"})
    assert main([*typed.split(), "--tokenizer", "bytes"]) == 0
    assert load_gpt(tmp_path / "our.ckpt")[1]["tokenizer"] == byte_level().to_dict()


MISTAKES = {
    "import small new.ckpt": "257 200",
    "import 'gpt2 x' new.ckpt": "gpt2 x",
    "import folder our.ckpt": "our.ckpt exists",
    "import our.ckpt new.ckpt": "our.ckpt folder",
    "import folder new.ckpt --tokenizer bpe": "bpe bytes",
    "export nothing new": "nothing",
    "export our.ckpt folder": "folder exists",
}


def test_every_mistake_gets_one_sentence_and_leaves_nothing(gpt, tmp_path, capsys, here):
    save_checkpoint(tmp_path / "our.ckpt", gpt)
    to_huggingface(gpt, tmp_path / "folder", byte_level())
    to_huggingface(gpt_of("gpt2", 200), tmp_path / "small")
    for name, content in byte_level().huggingface_files().items():
        (tmp_path / "small" / name).write_text(json.dumps(content))
    before = sorted(path.name for path in tmp_path.iterdir())
    check_mistakes(main, capsys, MISTAKES)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
