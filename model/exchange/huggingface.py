"""Hugging Face's models: from a folder, a name on the Hub or a transformers model to a GPT, and from a GPT to a folder.

    GPT2LMHeadModel       GPT-2's family; one table of options and one of weights, each read in both directions
    GlassGPTForCausalLM   every other GPT; its folder brings the source of this network, for trust_remote_code=True

Nothing that is read can run code: options are JSON, weights are safetensors, and source in a folder is ignored.
"""

import importlib
import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from model.checkpoint import with_weights
from model.gpt import GPT, GPTConfig
from model.mistakes import Missing, Mistake, file_errors, listed, parsing

CONFIG_JSON, WEIGHTS, GENERATION = "config.json", "model.safetensors", "generation_config.json"
MODELLING = "modeling_glassgpt"
GPT2_CLASS, OUR_CLASS = "GPT2LMHeadModel", "GlassGPTForCausalLM"
# The config.json of a GlassGPTForCausalLM, besides its GPTConfig.
OUR_OPTIONS: dict[str, Any] = {
    "model_type": "glassgpt",
    "architectures": [OUR_CLASS],
    "auto_map": {"AutoConfig": f"{MODELLING}.GlassGPTConfig", "AutoModelForCausalLM": f"{MODELLING}.{OUR_CLASS}"},
}

GPT2_OPTIONS = {  # our option -> GPT-2's
    "vocab_size": "vocab_size",
    "context_length": "n_positions",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "embed_dim": "n_embd",
    "feed_forward_dim": "n_inner",
    "tie_embeddings": "tie_word_embeddings",
    "dropout": "resid_pdrop",
}
# What GPT-2 has where a config.json says nothing.
GPT2_DEFAULTS = {"tie_word_embeddings": True, "resid_pdrop": 0.1, "activation_function": "gelu_new"}
GPT2_ACTIVATIONS = {  # the names that transformers has for one function -> ours; written is the first
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
}
# What makes a GPT one of GPT-2's family; all else is as GPTConfig has it without them.
GPT2_FAMILY: dict[str, Any] = {
    "position": "learned",
    "norm": "layernorm",
    "embedding_norm": False,
    "bias": True,
    "qk_norm": False,
    "logit_soft_cap": None,
    "init": "gpt2",
}
# Options of GPT-2 that a GPT lacks, and the value that it stands for.
GPT2_FIXED = {
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
# Our module -> GPT-2's; * is the number of the layer.
GPT2_MODULES = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "blocks.*.attention_norm": "transformer.h.*.ln_1",
    "blocks.*.attention.qkv_proj": "transformer.h.*.attn.c_attn",
    "blocks.*.attention.output_proj": "transformer.h.*.attn.c_proj",
    "blocks.*.feed_forward_norm": "transformer.h.*.ln_2",
    "blocks.*.feed_forward.up_proj": "transformer.h.*.mlp.c_fc",
    "blocks.*.feed_forward.down_proj": "transformer.h.*.mlp.c_proj",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
}
OUR_MODULES = {theirs: ours for ours, theirs in GPT2_MODULES.items()}
PREFIX = "gpt."  # of our names in a GlassGPTForCausalLM


def from_huggingface(source: str | Path | nn.Module) -> GPT:
    """The GPT of a Hugging Face model, in evaluation mode and float32, on the CPU.

    Args:
        source: a folder, the name of a model on the Hub such as "gpt2", or a transformers model, of whose dropouts
            only that of the residual stream is kept.

    Raises a `Mistake` if there is no such model, it is not one that a GPT can express, or its weights are not
    safetensors or do not fit.
    """
    if isinstance(source, nn.Module):
        their_config: Any = source.config
        name, options, weights = type(source).__name__, their_config.to_dict(), source.state_dict()
    else:
        folder = local_folder(source)
        name, options, weights = str(folder), read_json(folder / CONFIG_JSON), read_weights(folder)
    try:
        config = config_of(options)
        return with_weights(config, to_ours(weights, config, as_gpt2=options["model_type"] == "gpt2")).eval()
    except Mistake as error:
        raise Mistake(f"{name} cannot be read as a GPT: {error}") from error


def to_huggingface(gpt: GPT, folder: str | Path, tokenizer: Any = None, *, document_masking: bool = False) -> str:
    """Writes a folder that transformers loads, and returns the name of the class that it has there.

    Args:
        tokenizer: a data.tokenizers.Tokenizer, None for a folder without one.
        document_masking: whether the GPT was trained to stay within a document: a note for scripts/evaluate.py.

    A folder in GPT-2's format tells nothing of a network that was changed, such as another `attend`; one of our own
    class brings the network's source.

    Raises a `Mistake` if `folder` holds something already, or the tokenizer has more tokens than the model.
    """
    safetensors = optional_package("safetensors.torch")
    folder = Path(folder)
    check_vocabulary(gpt, tokenizer)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise Mistake(f"{folder} exists already: name a new folder")
    as_gpt2 = is_gpt2(gpt.config)
    options = gpt2_options(gpt.config) if as_gpt2 else OUR_OPTIONS | {"gpt": asdict(gpt.config)}
    options["document_masking"] = document_masking
    options["dtype"] = str(gpt.token_embedding.weight.dtype).removeprefix("torch.")
    end_of_text = None if tokenizer is None else tokenizer.end_of_text
    ends = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    # How long a text may be: by itself transformers' pipeline writes 256 tokens, whatever the context is.
    generation = {"max_length": gpt.config.context_length}
    files = {CONFIG_JSON: options | ends, GENERATION: generation | ends}
    if tokenizer is not None:
        files |= tokenizer.huggingface_files(gpt.config.context_length)
    try:
        with file_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
                (folder / name).write_text(text, encoding="utf-8")
            # The metadata tells transformers that the tensors have PyTorch's layout.
            (folder / WEIGHTS).write_bytes(safetensors.save(to_theirs(gpt, as_gpt2=as_gpt2), {"format": "pt"}))
            if not as_gpt2:
                copy_network(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return GPT2_CLASS if as_gpt2 else OUR_CLASS


# Options


def is_gpt2(config: GPTConfig) -> bool:
    """Whether every program that reads GPT-2's format computes this GPT.

    llama.cpp takes any hidden layer for one of 4 D, and any activation for GELU: between its two forms the difference
    is no larger than llama.cpp's own rounding. `init` says how a GPT was drawn, not what it is.
    """
    as_read = {name: getattr(config, name) for name in GPT2_OPTIONS if name != "feed_forward_dim"}
    as_read |= {"activation": config.activation, "init": config.init}
    return config.activation in ("gelu", "gelu_exact") and GPTConfig(**GPT2_FAMILY | as_read) == config


def config_of(options: dict[str, Any]) -> GPTConfig:
    """The GPTConfig of a config.json. Raises a `Mistake` that names an option which a GPT cannot have."""
    kind = options.get("model_type")
    if kind not in ("gpt2", "glassgpt"):
        raise Mistake(f"its model_type is {kind!r}: it can be gpt2 or glassgpt")
    fields = options.get("gpt")
    if kind == "gpt2":
        options = GPT2_DEFAULTS | GPT2_FIXED | options
        for name, value in GPT2_FIXED.items():
            if options[name] != value:
                raise Mistake(f"its {name} is {options[name]!r}: it can be {value!r} only")
        activation = options["activation_function"]
        if activation not in [*GPT2_ACTIVATIONS]:
            raise Mistake(f"its activation_function is {activation!r}: it can be {listed([*GPT2_ACTIVATIONS], 'or')}")
        fields = {our_name: options.get(their_name) for our_name, their_name in GPT2_OPTIONS.items()}
        fields |= {"activation": GPT2_ACTIVATIONS[activation], **GPT2_FAMILY}
    try:
        return GPTConfig(**fields)
    except TypeError as error:
        raise Mistake(f"its {CONFIG_JSON} holds what this version does not know: {error}") from error


def gpt2_options(config: GPTConfig) -> dict[str, Any]:
    """The content of a config.json for GPT-2; `config_of` is the inverse."""
    activation = next(theirs for theirs, ours in GPT2_ACTIVATIONS.items() if ours == config.activation)
    options = {"model_type": "gpt2", "architectures": [GPT2_CLASS], "activation_function": activation, **GPT2_FIXED}
    options |= {their_name: getattr(config, our_name) for our_name, their_name in GPT2_OPTIONS.items()}
    options |= {"embd_pdrop": config.dropout, "attn_pdrop": config.dropout}  # a GPT has one dropout for all
    return options | {"n_ctx": config.context_length}  # GPT-2's old name for it, which llama.cpp reads


# Weights


def renamed(name: str, modules: dict[str, str]) -> str:
    """The name of a weight in the other program, by its table of modules. KeyError for a module that is not in it."""
    module, _, kind = name.rpartition(".")
    number = re.search(r"(?<=\.)\d+(?=\.)", module)
    if number is None:
        return f"{modules[module]}.{kind}"
    return f"{modules[module.replace(number[0], '*', 1)].replace('*', number[0])}.{kind}"


def in_their_layout(their_name: str, weight: Tensor) -> Tensor:
    """A weight with its axes as in a file: layers that GPT-2 calls c_... map rows to columns. Its own inverse."""
    return weight.mT if re.search(r"\.c_\w+\.weight$", their_name) else weight


def to_theirs(gpt: GPT, *, as_gpt2: bool) -> dict[str, Tensor]:
    """The weights of a GPT as a file has them; a tied head is left out."""
    theirs = {}
    for name, weight in gpt.state_dict().items():
        if name != "head.weight" or not gpt.config.tie_embeddings:
            their_name = renamed(name, GPT2_MODULES) if as_gpt2 else PREFIX + name
            weight = in_their_layout(their_name, weight).cpu()
            theirs[their_name] = weight.clone(memory_format=torch.contiguous_format)
    return theirs


def to_ours(weights: dict[str, Tensor], config: GPTConfig, *, as_gpt2: bool) -> dict[str, Tensor]:
    """Their weights under our names and with our axes, contiguous: what `to_theirs` did is undone.

    Raises a `Mistake` for a weight that a GPT has no place for.
    """
    ours = {}
    for name, weight in weights.items():
        if re.search(r"\.attn\.(masked_)?bias$", name):  # the causal mask, which older files of GPT-2 hold
            continue
        # A model without its head, which GPT-2 on the Hub is, has names without the first part.
        their_name = name if not as_gpt2 or name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
        try:
            our_name = renamed(their_name, OUR_MODULES) if as_gpt2 else name.removeprefix(PREFIX)
        except KeyError:
            raise Mistake(f"it has weights for which a GPT has no place, such as {name}") from None
        ours[our_name] = in_their_layout(their_name, weight).cpu().contiguous()
    if config.tie_embeddings and "token_embedding.weight" in ours:  # the head may be stored a second time, or not
        ours["head.weight"] = ours["token_embedding.weight"]
    return ours


# Files


def local_folder(source: str | Path) -> Path:
    """The folder `source`, or the one into which the model of that name on the Hub has been downloaded."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    hub, wanted = optional_package("huggingface_hub"), [CONFIG_JSON, "model*.safetensors", "tokenizer*.json"]
    try:
        return Path(hub.snapshot_download(str(source), allow_patterns=wanted))
    except (OSError, ValueError) as error:  # the latter for what is no name of a model
        raise Missing(
            f"there is no folder {source}, and the Hub gives no public model of that name ({type(error).__name__}): "
            "without network, download it on another machine and give its folder"
        ) from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All weights in the safetensors of a folder, one file or several."""
    load_file = optional_package("safetensors.torch").load_file
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise Missing(f"{folder / WEIGHTS} is missing; weights as a pickle, which could run code, are not read")
    weights: dict[str, Tensor] = {}
    for path in paths:
        with file_errors(path), parsing(path):
            weights |= load_file(path)
    return weights


def masks_documents(folder: Path) -> bool:
    """Whether a model was trained to attend within a document, as far as its folder tells; see `to_huggingface`."""
    return bool(read_json(folder / CONFIG_JSON).get("document_masking"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object."""
    if not path.is_file():
        raise Missing(f"{path.parent} has no {path.name}, so it is not a folder of a Hugging Face model")
    with file_errors(path), parsing(path):
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    return content


def copy_network(folder: Path) -> None:
    """Writes the modelling file and all files of this network that it imports, as modules without a package's name."""
    waiting = [MODELLING]
    for name in waiting:  # which grows
        source = Path(__file__).parent if name == MODELLING else Path(__file__).parents[1]
        text = (source / f"{name}.py").read_text(encoding="utf-8")
        waiting += set(re.findall(r"^\s*from model\.(\w+) import", text, re.MULTILINE)) - set(waiting)
        text = re.sub(r"^(\s*from )model(\.\w+ import)", r"\1\2", text, flags=re.MULTILINE)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def check_vocabulary(gpt: GPT, tokenizer: Any) -> None:
    """Raises a `Mistake` if the tokenizer has tokens that the model does not know."""
    if tokenizer is not None and tokenizer.vocab_size > gpt.config.vocab_size:
        raise Mistake(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, more than the model, which has "
            f"{gpt.config.vocab_size:,}: use the tokenizer that the model was trained with"
        )


def optional_package(name: str) -> ModuleType:
    """Imports a package that not everyone needs. Raises a `Mistake` that says how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise Mistake(f"this needs the package {package}: pip install -r requirements-hf.txt") from error
