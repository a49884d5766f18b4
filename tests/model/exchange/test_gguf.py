"""A GGUF file holds the weights, options and tokenizer of a GPT of GPT-2's family, as llama.cpp reads them."""

import re

import pytest
import torch

from data.tokenizers import byte_level, printable, train_bpe
from model.exchange.gguf import to_gguf
from model.gpt import GPTConfig
from tests.gpts import GPT2, random_gpt

gguf = pytest.importorskip("gguf")

SIZES = {"vocab_size": 320, "context_length": 16, "num_layers": 2, "num_heads": 4, "embed_dim": 32}


@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_and_option_can_be_read_back(tied, tmp_path):
    gpt = random_gpt(GPTConfig(**SIZES, **{**GPT2, "tie_embeddings": tied}))
    to_gguf(gpt, tmp_path / "model.gguf", byte_level())
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    tensors = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}
    block = gpt.blocks[1]
    expected = {
        "token_embd.weight": gpt.token_embedding.weight,
        "position_embd.weight": gpt.position_embedding.weight,
        "blk.1.attn_norm.bias": block.attention_norm.bias,
        "blk.1.attn_qkv.weight": block.attention.qkv_proj.weight,
        "blk.1.attn_output.weight": block.attention.output_proj.weight,
        "blk.1.ffn_norm.weight": block.feed_forward_norm.weight,
        "blk.1.ffn_up.bias": block.feed_forward.up_proj.bias,
        "blk.1.ffn_down.weight": block.feed_forward.down_proj.weight,
        "output_norm.weight": gpt.final_norm.weight,
    }
    if not tied:
        expected["output.weight"] = gpt.head.weight
    for name, weight in expected.items():
        assert torch.equal(tensors[name], weight), name
    assert sum(tensor.numel() for tensor in tensors.values()) == gpt.num_parameters()
    # llama.cpp refuses a file in which a tensor of its architecture has another name.
    known = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.GPT2]}
    assert {re.sub(r"^blk\.\d", "blk.{bid}", name.rpartition(".")[0]) for name in tensors} <= known
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == "gpt2"
    assert fields["gpt2.context_length"] == 16 and fields["gpt2.attention.head_count"] == 4
    assert fields["gpt2.feed_forward_length"] == 128 and fields["gpt2.block_count"] == 2
    assert fields["gpt2.attention.layer_norm_epsilon"] == pytest.approx(block.attention_norm.eps)


def test_tokens_and_merges_are_those_of_the_tokenizer_and_no_file_is_overwritten(tmp_path):
    gpt = random_gpt(GPTConfig(**SIZES, **GPT2))
    tokenizer = train_bpe(["the cat and the hat and the rat sat and sat. " * 20], 270)
    to_gguf(gpt, tmp_path / "model.gguf", tokenizer)
    with pytest.raises(FileExistsError, match="exists already"):
        to_gguf(gpt, tmp_path / "model.gguf", tokenizer)
    fields = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "model.gguf").fields.items()}
    tokens = fields["tokenizer.ggml.tokens"]
    assert len(tokens) == 320  # one for each row of the embedding
    assert tokens[:269] == [printable(tokenizer.token_bytes(token)) for token in range(269)]
    assert tokens[269] == "<|endoftext|>" and tokens[270] == "[unused 270]"
    assert fields["tokenizer.ggml.bos_token_id"] == fields["tokenizer.ggml.eos_token_id"] == 269
    made = [pair.replace(" ", "") for pair in fields["tokenizer.ggml.merges"]]
    assert list(dict.fromkeys(made)) == tokens[256:269]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_llama_cpp_computes_the_same(kind, tmp_path):
    """Where llama-cpp-python is installed. It rounds GELU to float16, which moves a logit of 1 by 0.0005."""
    llama_cpp = pytest.importorskip("llama_cpp")
    gpt = random_gpt(GPTConfig(**{**SIZES, "context_length": 64}, **GPT2), std=0.15)
    text = "the cat and the hat, and the rat: Ünïcödé"
    tokenizer = byte_level() if kind == "bytes" else train_bpe([text * 20], 280)
    to_gguf(gpt, tmp_path / "model.gguf", tokenizer)
    llama = llama_cpp.Llama(str(tmp_path / "model.gguf"), n_ctx=64, logits_all=True, n_threads=1, verbose=False)
    tokens = tokenizer.encode(text)
    assert llama.tokenize(text.encode(), add_bos=False) == tokens
    llama.eval(tokens)
    logits = torch.from_numpy(llama.scores[: len(tokens)].copy())
    llama.close()
    torch.testing.assert_close(logits, gpt(torch.tensor([tokens]))[0].detach(), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "it has position rotary"),
        ({**GPT2, "activation": "gelu_exact"}, "it has activation gelu_exact"),
        ({**GPT2, "window": 4}, "it has window 4"),
        ({**GPT2, "bias": False}, "it has bias False"),
    ],
)
def test_another_family_is_refused_by_the_option_that_differs(options, message, tmp_path):
    gpt = random_gpt(GPTConfig(**SIZES, **options))
    with pytest.raises(ValueError, match=f"GPT-2's family only.*{message}"):
        to_gguf(gpt, tmp_path / "model.gguf", byte_level())
    assert not any(tmp_path.iterdir())
