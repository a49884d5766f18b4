"""Hugging Face's models become GPTs and GPTs become theirs, with equal logits; what has no equivalent is refused."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch.testing import assert_close

from data.tokenizers import Tokenizer, byte_level, train_bpe
from model.exchange.huggingface import config_of, from_huggingface, to_huggingface
from model.generation import generate
from model.mistakes import Mistake
from tests.attentions import ALIBI
from tests.command_lines import mistake
from tests.gpts import CONFIGS, loss_of, random_gpt
from tests.strangers import Calls

safetensors = pytest.importorskip("safetensors.torch")

GPT2 = replace(CONFIGS["gpt2"], vocab_size=260, context_length=64)
GROUPED = replace(CONFIGS["grouped heads"], vocab_size=260, context_length=64)
OURS = replace(GROUPED, num_kv_heads=4, value_embeddings=True, ngram_sizes=[2, 3], ngram_buckets=64, window=5)
OURS = replace(OURS, activation="swiglu", logit_soft_cap=15.0)
GPTS = [
    ("GPT2LMHeadModel", GPT2),
    ("GPT2LMHeadModel", replace(GPT2, activation="gelu_exact", tie_embeddings=False, dropout=0.2)),
    ("GlassGPTForCausalLM", replace(GPT2, feed_forward_dim=48)),  # llama.cpp would read this as GPT-2's
    ("GlassGPTForCausalLM", replace(GROUPED, tie_embeddings=True)),
    ("GlassGPTForCausalLM", OURS),
    ("GlassGPTForCausalLM", replace(GPT2, bias=False, logit_soft_cap=20.0)),
]
# The options that transformers' GPT2Config writes.
GPT2_OPTIONS = json.loads("""{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768,
    "n_layer": 12, "n_head": 12, "n_inner": null, "activation_function": "gelu_new", "resid_pdrop": 0.1,
    "layer_norm_epsilon": 1e-5, "scale_attn_weights": true, "scale_attn_by_inverse_layer_idx": false}""")


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def gpt_of(config):
    return random_gpt(config, std=0.15)


def same_weights(one, other):
    same = map(torch.equal, one.state_dict().values(), other.state_dict().values())
    return one.config == other.config and all(same)


@pytest.fixture
def exported(tmp_path):
    """Exports a random GPT; returns it and its folder."""

    def export(config=GPT2, tokenizer=None):
        gpt = gpt_of(config)
        to_huggingface(gpt, tmp_path / "model", tokenizer)
        return gpt, tmp_path / "model"

    return export


@pytest.fixture
def loaded(transformers):
    """Loads a folder with transformers."""
    return lambda folder: transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()


def refuse(folder, message, kind=Mistake):
    with pytest.raises(kind, match=message):
        from_huggingface(folder)


@pytest.mark.slow
@pytest.mark.parametrize("class_name, config", GPTS)
def test_an_exported_model_has_equal_logits_and_comes_back_bit_for_bit(class_name, config, exported, loaded):
    gpt, folder = exported(config, byte_level())
    imported = from_huggingface(folder)
    assert same_weights(imported, gpt) and not imported.training
    assert imported.num_parameters() == gpt.num_parameters()  # tied weights count once
    # torch.save would keep a transposed view, and a kernel may need contiguous rows.
    assert all(weight.is_contiguous() for weight in imported.state_dict().values())
    peer = loaded(folder)
    assert type(peer).__name__ == class_name
    tokens = torch.randint(260, (2, 40))
    with torch.no_grad():
        assert_close(peer(tokens).logits, gpt(tokens), atol=1e-5, rtol=0)
        loss = peer(tokens, labels=tokens).loss
    assert_close(loss, loss_of(gpt, tokens[:, :-1], tokens[:, 1:]), atol=1e-5, rtol=0)
    written = peer.generate(tokens[:1, :10], max_new_tokens=50, do_sample=False)
    assert torch.equal(written, generate(gpt, tokens[:1, :10], 50, temperature=0))
    for _ in range(2):  # the second is not made of the first one's zeros
        imported = from_huggingface(peer)
        assert same_weights(imported, gpt)
        torch._foreach_zero_([*imported.state_dict().values()])


def test_a_weight_or_attention_that_gpt2_lacks_is_exported_with_the_code(tmp_path, replace_attend):
    gpt = gpt_of(GPT2)
    gpt.blocks[1].attention.sink = torch.nn.Parameter(torch.zeros(2))
    assert to_huggingface(gpt, tmp_path / "weight") == "GlassGPTForCausalLM"
    replace_attend(ALIBI)
    assert to_huggingface(gpt_of(GPT2), tmp_path / "attend") == "GlassGPTForCausalLM"


@pytest.mark.slow
@pytest.mark.parametrize("config", [GPT2, OURS])
def test_a_model_that_transformers_has_saved_again_comes_back(config, transformers, loaded, tmp_path):
    gpt = gpt_of(config)
    for tokenizer in (byte_level(), train_bpe([Path(__file__).read_text()], 260)):
        first, second = tmp_path / tokenizer.name, tmp_path / f"{tokenizer.name} again"
        to_huggingface(gpt, first, tokenizer)
        their_tokenizer = transformers.AutoTokenizer.from_pretrained(first, trust_remote_code=True)
        their_tokenizer.pad_token = their_tokenizer.eos_token
        their_tokenizer(["a text", "another"], padding=True, truncation=True, max_length=3)  # it saves these options
        for saved in (loaded(first), their_tokenizer):
            saved.save_pretrained(second)
        assert same_weights(from_huggingface(second), gpt)
        assert Tokenizer.from_folder(second).to_dict() == tokenizer.to_dict()


def test_llama_cpp_finds_every_option_that_it_reads(exported):
    """Its convert_hf_to_gguf.py reads these options of a GPT2LMHeadModel, and takes 4 D for the hidden layer."""
    _, folder = exported()
    options = json.loads((folder / "config.json").read_text())
    read = {"n_ctx": 64, "n_embd": 32, "n_head": 4, "n_layer": 3, "layer_norm_epsilon": 1e-5, "n_inner": 128}
    assert read.items() <= options.items()


@pytest.mark.slow
def test_padded_texts_have_the_logits_and_continuations_that_each_has_alone(exported, loaded):
    """In our own source; for GPT-2 transformers handles padding."""
    gpt, folder = exported(OURS)
    peer = loaded(folder)
    lengths = (5, 20, 13)
    tokens, attends = torch.randint(260, (3, 20)), torch.zeros(3, 20, dtype=torch.long)
    for row, length in enumerate(lengths):
        attends[row, -length:] = 1
    with torch.no_grad():
        texts = [row[None, -length:] for row, length in zip(tokens, lengths, strict=True)]
        losses = [loss_of(gpt, text[:, :-1], text[:, 1:]) * (text.shape[1] - 1) for text in texts]
        loss, padded = peer(tokens, attention_mask=attends, labels=tokens, return_dict=False)
        assert_close(loss, sum(losses) / (sum(lengths) - 3), atol=1e-5, rtol=0)
    for refused in ({"position_ids": torch.arange(20)}, {"past_key_values": ()}, {"output_attentions": True}):
        with pytest.raises(ValueError, match=next(iter(refused))):
            peer(tokens, attention_mask=attends, **refused)
    options = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    written = peer.generate(tokens, attention_mask=attends, **options)
    for row, (length, alone) in enumerate(zip(lengths, texts, strict=True)):
        assert_close(padded[row, -length:], gpt(alone)[0].detach(), atol=1e-5, rtol=0)
        assert torch.equal(written[row, -length - 10 :], generate(gpt, alone, 10, temperature=0)[0])


def test_a_folder_with_our_network_needs_only_torch_and_transformers(transformers, exported, loaded):
    gpt, folder = exported(OURS, byte_level())
    absent = dict.fromkeys(["model", "data", "lightning", "tiktoken", "matplotlib"])
    with patch.dict(sys.modules, absent):
        for name in [*sys.modules]:
            if name.partition(".")[0] in absent:
                sys.modules[name] = None
            if name.startswith("transformers_modules"):  # of another test: it would not be imported again
                del sys.modules[name]
        theirs = loaded(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        inputs = tokenizer("def f(x):\n", return_tensors="pt")
        written = theirs.generate(**inputs, max_new_tokens=50, do_sample=False, eos_token_id=None)
        logits = theirs(**inputs).logits
    tokens = inputs["input_ids"]
    assert tokens[0].tolist() == [*b"def f(x):\n"]
    assert torch.equal(written, generate(gpt, tokens, 50, temperature=0))
    assert_close(logits, gpt(tokens), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_folder_of_shards_is_read_and_a_missing_one_is_named(transformers, tmp_path):
    config = transformers.GPT2Config(vocab_size=500, n_positions=16, n_embd=32, n_layer=2, n_head=4)
    peer = transformers.GPT2LMHeadModel(config)
    peer.save_pretrained(tmp_path / "model", max_shard_size="50KB")
    shards = sorted((tmp_path / "model").glob("*.safetensors"))
    assert len(shards) > 1 and same_weights(from_huggingface(tmp_path / "model"), from_huggingface(peer))
    shards[1].unlink()
    refuse(tmp_path / "model", r"model .* absent")


def test_half_precision_and_the_names_and_masks_of_published_files_are_read_and_copies_left_alone(tmp_path):
    """On the Hub GPT-2's weights have other names, and each layer stores the causal mask."""
    gpt = gpt_of(GPT2).bfloat16()
    to_huggingface(gpt, tmp_path / "model")
    assert json.loads((tmp_path / "model/config.json").read_text())["dtype"] == "bfloat16"
    weights = safetensors.load_file(tmp_path / "model/model.safetensors")
    published = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
    published |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64).tril() for layer in range(3)}
    safetensors.save_file(published, tmp_path / "model/model.safetensors")
    safetensors.save_file({"wpe.weight": torch.zeros(64, 32)}, tmp_path / "model/model_old.safetensors")
    assert same_weights(from_huggingface(tmp_path / "model"), gpt.float())


def test_options_that_a_config_leaves_out_have_transformers_defaults():
    theirs = pytest.importorskip("transformers").GPT2Config().to_dict()
    assert config_of({"model_type": "gpt2"}) == config_of(theirs)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"activation_function": "silu"}, "activation_function is 'silu'.*gelu_new"),
        ({"n_layer": "many"}, "n_layer .*'many'"),
        ({"n_layer": 10**9}, "num_layers .*1000000000"),  # refused before it takes memory
        ({"n_embd": 12 * 10**30}, ""),
        ({"n_head": 7}, "n_head=7 does not divide"),
        ({"model_type": "llama"}, "model_type .*'llama'.* gpt2 .*glassgpt"),
        ({"model_type": "glassgpt", "gpt": {"dreams": 2}}, "dreams"),
    ],
)
def test_an_option_that_a_gpt_does_not_have_is_named(options, message, exported):
    _, folder = exported()
    (folder / "config.json").write_text(json.dumps(GPT2_OPTIONS | options))
    refuse(folder, f"{folder}.*{message}")


@pytest.mark.parametrize(
    "name, weight, message",
    [
        ("transformer.h.1.mlp.c_fc.weight", None, r"blocks\.1\.feed_forward\.up_proj\.weight .*absent"),
        ("score.weight", torch.ones(2, 2), r"no place, such as score\.weight"),
        ("transformer.h.0.mlp.c_fc.weight", torch.ones(128, 32), r"up_proj\.weight.*\[32, 128\].*\[128, 32\]"),
        ("transformer.wpe.weight", torch.ones(64, 32).int(), "int32"),
        ("lm_head.weight", torch.ones(257, 32), "tie_word_embeddings"),
    ],
)
def test_weights_that_do_not_fit_are_named(name, weight, message, exported):
    _, folder = exported()
    weights = {**safetensors.load_file(folder / "model.safetensors"), name: weight}
    present = {name: weight for name, weight in weights.items() if weight is not None}
    safetensors.save_file(present, folder / "model.safetensors")
    refuse(folder, message)


def test_no_code_in_a_folder_is_run(exported, here):
    """Its source is ignored, and a pickle is refused."""
    _, folder = exported(OURS)
    for source in folder.glob("*.py"):
        source.write_text("import pathlib; pathlib.Path('trapped').touch()")
    from_huggingface(folder)
    for name in ("model.safetensors", "pytorch_model.bin"):
        (folder / "model.safetensors").unlink(missing_ok=True)
        (folder / name).write_bytes(pickle.dumps(Calls(Path("trapped").touch)))
        refuse(folder, r"model\.safetensors is (damaged|missing)")
    assert not Path("trapped").exists()


def test_damaged_or_missing_files_are_named(exported, tmp_path):
    _, folder = exported()
    for name in ("model.safetensors", "config.json"):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-100])
        refuse(folder, f"{name} is damaged")
        path.unlink()
        refuse(folder, rf"{name} is missing|has no {name}", FileNotFoundError)
    refuse(tmp_path / "nowhere", "nowhere", FileNotFoundError)


def test_an_export_overwrites_nothing_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    gpt = gpt_of(GPT2)
    (tmp_path / "taken").mkdir()
    to_huggingface(gpt, tmp_path / "taken")  # an empty folder
    with mistake("taken exists"):
        to_huggingface(gpt, tmp_path / "taken")
    with mistake(r"257 .*256"):
        to_huggingface(gpt_of(replace(GPT2, vocab_size=256)), tmp_path / "new", byte_level())

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    (tmp_path / "own").mkdir()
    for name in ("new", "own"):
        with mistake("No space"):
            to_huggingface(gpt, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "taken"]
    assert not any((tmp_path / "own").iterdir())


def test_the_message_for_a_missing_package_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with mistake(r"safetensors.*pip install -r requirements-hf\.txt"):
        to_huggingface(gpt_of(GPT2), tmp_path / "model")
