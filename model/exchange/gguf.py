"""A GPT of GPT-2's family as a GGUF file, which llama.cpp opens: its architecture "gpt2", all weights in float32."""

from pathlib import Path
from typing import Any

from model.exchange.huggingface import (
    GPT2_MODULES,
    check_computes_as_gpt2,
    check_tokenizer,
    not_in_gpt2,
    optional_package,
    their_names,
)
from model.gpt import GPT


def to_gguf(gpt: GPT, path: str | Path, tokenizer: Any) -> None:
    """Writes the model with its tokenizer. quantize of llama.cpp makes smaller files of this one.

    llama.cpp splits text into pieces by rules that it knows by name. GPT-2's and bytes are among them; for others
    GPT-4's rule, the nearest, is named, so that it may cut a text elsewhere than the tokenizer, mostly at the beginning
    of indented lines.

    Raises:
        FileExistsError: if there is something at `path` already.
        ValueError: if the model is not of GPT-2's family; the message names the option. Or if the tokenizer has more
            tokens than the model. And as `check_computes_as_gpt2`.
        ModuleNotFoundError: if an optional package is missing.
    """
    gguf = optional_package("gguf")
    path, config = Path(path), gpt.config
    if obstacle := not_in_gpt2(config) or (config.activation != "gelu" and f"activation {config.activation}"):
        raise ValueError(
            f"a GGUF file holds a GPT of GPT-2's family only, which this is not: it has {obstacle}; "
            "name an output without .gguf for a folder that transformers opens"
        )
    check_tokenizer(gpt, tokenizer)
    if path.exists():
        raise FileExistsError(f"{path} exists already: name a new file")
    check_computes_as_gpt2(gpt)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.aside")
    writer = gguf.GGUFWriter(aside, "gpt2")
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.embed_dim)
    writer.add_feed_forward_length(config.feed_forward_dim)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_layer_norm_eps(1e-5)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)

    content = tokenizer.huggingface_files()["tokenizer.json"]
    model, special = content["model"], {added["id"]: added["content"] for added in content["added_tokens"]}
    texts = {rank: text for text, rank in model["vocab"].items()} | special
    kinds = dict.fromkeys(model["vocab"].values(), gguf.TokenType.NORMAL)
    kinds |= dict.fromkeys(special, gguf.TokenType.CONTROL)
    ids = range(config.vocab_size)  # which may be rounded up
    writer.add_tokenizer_model("gpt2")  # which means byte-pair encoding
    has_gpt2_rule = tokenizer.name in ("gpt2", "r50k_base", "bytes")  # without merges any rule will do
    writer.add_tokenizer_pre("gpt-2" if has_gpt2_rule else "llama-bpe")
    writer.add_token_list([texts.get(token, f"[unused {token}]") for token in ids])
    writer.add_token_types([kinds.get(token, gguf.TokenType.UNUSED) for token in ids])
    # llama.cpp wants at least one merge. The byte 0xff is in no text, so this one never happens.
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]] or ["ÿ ÿ"])
    writer.add_bos_token_id(tokenizer.end_of_text)
    writer.add_eos_token_id(tokenizer.end_of_text)
    writer.add_add_bos_token(False)

    weights, names = gpt.state_dict(), gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config.num_layers)
    for ours, theirs in their_names(gpt, GPT2_MODULES).items():
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(name, weights[ours].float().cpu().contiguous().numpy())
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
