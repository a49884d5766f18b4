"""Converts Hugging Face models (a folder, a name on the Hub or a transformers model) to a GPT, and a GPT to a folder.

    GPT2LMHeadModel       for GPT-2's family; the same tables of options and of weights serve both directions
    GlassGPTForCausalLM   for every other GPT; the folder holds the source of the network, for trust_remote_code=True

Reading a folder runs no code from it: options are JSON, weights are safetensors, and source code is ignored.
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
from model.gpt import GPT, GPTConfig, in_eval_mode
from model.mistakes import Missing, Mistake, file_errors, listed, parsing

CONFIG_JSON, WEIGHTS, GENERATION = "config.json", "model.safetensors", "generation_config.json"
PARTS = "model-*-of-*.safetensors"  # of weights that are stored in several files
MODELLING = "modeling_glassgpt"
GPT2_CLASS, OUR_CLASS = "GPT2LMHeadModel", "GlassGPTForCausalLM"
# What the config.json of a GlassGPTForCausalLM holds besides its GPTConfig.
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
# GPT-2's defaults, for options that a config.json leaves out.
GPT2_DEFAULTS: dict[str, Any] = {"vocab_size": 50257, "n_positions": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768}
GPT2_DEFAULTS |= {"activation_function": "gelu_new", "tie_word_embeddings": True, "resid_pdrop": 0.1}
GPT2_ACTIVATIONS = {  # transformers' name -> ours; where two names mean one function, exporting uses the first
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu": "gelu_exact",
}
# What all GPTs of GPT-2's family share. GPT2_OPTIONS and the activation vary; other fields are GPTConfig's defaults.
GPT2_FAMILY: dict[str, Any] = {
    "position": "learned",
    "norm": "layernorm",
    "embedding_norm": False,
    "bias": True,
    "qk_norm": False,
    "logit_soft_cap": None,
    "init": "gpt2",
}
# Options of GPT-2 that GPTConfig lacks, each with the only value that a GPT can express.
GPT2_FIXED = {
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
# Our module -> GPT-2's; * stands for the number of the layer.
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
    "lm_head": "lm_head",
}
OUR_MODULES = {theirs: ours for ours, theirs in GPT2_MODULES.items()}
SAME = (0.1, 2e-3)  # the largest difference from GPT-2's logits that rounding explains, and in float32
PREFIX = "gpt."  # begins the name of every weight in a GlassGPTForCausalLM


def from_huggingface(source: str | Path | nn.Module) -> GPT:
    """Converts a Hugging Face model to a GPT in evaluation mode and float32, on the CPU.

    Args:
        source: a folder, the name of a model on the Hub such as "gpt2", or a transformers model. GPT-2 has several
            dropout rates; the GPT gets the rate of the residual stream.

    Raises a `Mistake` if there is no such model, if a GPT cannot express it, or if its weights are not safetensors or
    do not fit.
    """
    if isinstance(source, nn.Module):
        their_config: Any = source.config
        name, options = type(source).__name__, their_config.to_dict()
        # Copies: otherwise the two models would share biases and embeddings, and training one would change the other.
        weights = {name: weight.clone() for name, weight in source.state_dict().items()}
    else:
        folder = local_folder(source)
        name, options, weights = str(folder), read_json(folder / CONFIG_JSON), read_weights(folder)
    try:
        config = config_of(options)
        return with_weights(config, to_ours(weights, config, as_gpt2=options["model_type"] == "gpt2")).eval()
    except Mistake as error:
        raise Mistake(f"{name} cannot be read as a GPT: {error}") from error


def to_huggingface(gpt: GPT, folder: str | Path, tokenizer: Any = None, *, document_masking: bool = False) -> str:
    """Writes a folder that transformers can load, and returns the name of its model class there.

    A GPT of GPT-2's family is written in GPT-2's format, which holds no code. Every other GPT, and one whose code you
    have changed, is written with the network's source.

    Args:
        tokenizer: a data.tokenizers.Tokenizer; None writes a folder without a tokenizer.
        document_masking: whether the GPT was trained to attend within documents; `masks_documents` reads it again.

    Raises a `Mistake` if `folder` is a file or not empty, or if the tokenizer has more tokens than the model.
    """
    safetensors = optional_package("safetensors.torch")
    folder = Path(folder)
    check_vocabulary(gpt, tokenizer)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise Mistake(f"{folder} exists already: name a new folder")
    as_gpt2 = is_gpt2(gpt)
    options = gpt2_options(gpt.config) if as_gpt2 else OUR_OPTIONS | {"gpt": asdict(gpt.config)}
    options["document_masking"] = document_masking
    options["dtype"] = str(gpt.token_embedding.weight.dtype).removeprefix("torch.")
    end_of_text = None if tokenizer is None else tokenizer.end_of_text
    end_ids = {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    # Without max_length, transformers' pipeline writes 256 tokens, whatever the context length.
    generation = {"max_length": gpt.config.context_length}
    files = {CONFIG_JSON: options | end_ids, GENERATION: generation | end_ids}
    if tokenizer is not None:
        files |= tokenizer.huggingface_files(gpt.config.context_length)
    place = folder.resolve()  # "." has no name
    aside = place.with_name(f".{place.name}.aside")
    with file_errors(folder):
        shutil.rmtree(aside, ignore_errors=True)  # of an export that was killed
        aside.mkdir(parents=True)
        try:
            for name, content in files.items():
                (aside / name).write_text(json.dumps(content, indent=2))
            # This metadata tells transformers that PyTorch wrote the tensors.
            (aside / WEIGHTS).write_bytes(safetensors.save(to_theirs(gpt, as_gpt2=as_gpt2), {"format": "pt"}))
            if not as_gpt2:
                copy_network(aside)
            place.mkdir(exist_ok=True)  # an empty one stays: it may be the current folder of a shell
            for file in aside.iterdir():
                shutil.move(file, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return GPT2_CLASS if as_gpt2 else OUR_CLASS


# Options


def is_gpt2(gpt: GPT) -> bool:
    """Whether every program that reads GPT-2's format computes what this GPT computes.

    A weight that you added makes this False: GPT-2's format has no place for it. So does changed code.

    llama.cpp assumes a hidden layer of width 4 D and a GELU, whatever the file says. So feed_forward_dim must have its
    default. The activation may be either form of GELU: they differ by no more than llama.cpp's own rounding. `init` may
    have any value: it says how the weights were initialised, not what the network computes.
    """
    config = gpt.config
    modules = {split_name(name)[0] for name in gpt.state_dict()}
    read_back = {name: getattr(config, name) for name in GPT2_OPTIONS if name != "feed_forward_dim"}
    read_back |= {"activation": config.activation, "init": config.init}
    is_of_family = config.activation in ("gelu", "gelu_exact") and GPTConfig(**GPT2_FAMILY | read_back) == config
    return is_of_family and modules <= GPT2_MODULES.keys() and computes_as_gpt2(gpt)


@torch.no_grad()
def computes_as_gpt2(gpt: GPT) -> bool:
    """Whether transformers' GPT-2 has the same logits with the weights of this GPT, over the whole context."""
    transformers = optional_package("transformers")
    config, dtype = gpt.config, gpt.token_embedding.weight.dtype
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config.from_dict(gpt2_options(config))).eval()
    theirs.load_state_dict(to_theirs(gpt, as_gpt2=True), strict=False)  # a tied lm_head is not in the file
    tokens = torch.arange(config.context_length)[None] % config.vocab_size
    expected = theirs(tokens).logits[:, -1]
    with in_eval_mode(gpt.modules()):
        ours = gpt.unembed(gpt.features(gpt.known_ids(tokens))[:, -1]).float().cpu()
    return bool((ours - expected).abs().max() <= SAME[dtype == torch.float32] * expected.abs().max().clamp(min=1))


def config_of(options: dict[str, Any]) -> GPTConfig:
    """Returns the GPTConfig for a config.json. Raises a `Mistake` that names the option if a GPT cannot express it."""
    kind = options.get("model_type")
    if kind not in ("gpt2", "glassgpt"):
        raise Mistake(f"its model_type is {kind!r}: it must be gpt2 or glassgpt")
    fields = options.get("gpt")
    if kind == "gpt2":
        options = GPT2_DEFAULTS | GPT2_FIXED | options
        for name, value in GPT2_FIXED.items():
            if options[name] != value:
                raise Mistake(f"its {name} is {options[name]!r}: it must be {value!r}")
        activation = options["activation_function"]
        if activation not in [*GPT2_ACTIVATIONS]:
            raise Mistake(f"its activation_function is {activation!r}: it must be {listed([*GPT2_ACTIVATIONS], 'or')}")
        fields = {our_name: options.get(their_name) for our_name, their_name in GPT2_OPTIONS.items()}
        fields |= {"activation": GPT2_ACTIVATIONS[activation], **GPT2_FAMILY}
    try:
        return GPTConfig(**fields)
    except TypeError as error:
        raise Mistake(f"its {CONFIG_JSON} has options that this version does not know: {error}") from error
    except Mistake as error:
        names = GPT2_OPTIONS if kind == "gpt2" else {}
        raise Mistake(re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))) from error


def gpt2_options(config: GPTConfig) -> dict[str, Any]:
    """Returns the content of a config.json in GPT-2's format; `config_of` is the inverse."""
    activation = next(theirs for theirs, ours in GPT2_ACTIVATIONS.items() if ours == config.activation)
    options = {"model_type": "gpt2", "architectures": [GPT2_CLASS], "activation_function": activation, **GPT2_FIXED}
    options |= {their_name: getattr(config, our_name) for our_name, their_name in GPT2_OPTIONS.items()}
    options |= {"embd_pdrop": config.dropout, "attn_pdrop": config.dropout}  # a GPT has one dropout rate for all places
    return options | {"n_ctx": config.context_length}  # the old name of n_positions, which llama.cpp reads


# Weights


def split_name(name: str) -> tuple[str, str, str]:
    """Splits the name of a weight: "h.3.ln_1.bias" -> ("h.*.ln_1", "3", "bias"). Without a layer the number is ""."""
    module, _, kind = name.rpartition(".")
    number = re.search(r"(?<=\.)\d+(?=\.)", module)
    if number is None:
        return module, "", kind
    return f"{module[: number.start()]}*{module[number.end() :]}", number[0], kind


def renamed(name: str, modules: dict[str, str]) -> str:
    """Translates the name of a weight with a table of modules. Raises KeyError if the table lacks its module."""
    module, layer, kind = split_name(name)
    return f"{modules[module].replace('*', layer)}.{kind}"


def in_their_layout(their_name: str, weight: Tensor) -> Tensor:
    """Transposes a weight if GPT-2 stores it transposed, as in its c_... layers. A second call undoes the first."""
    return weight.mT if re.search(r"\.c_\w+\.weight$", their_name) else weight


def to_theirs(gpt: GPT, *, as_gpt2: bool) -> dict[str, Tensor]:
    """Returns a GPT's weights under the names and with the axes that the file has, without a tied lm_head."""
    theirs = {}
    for name, weight in gpt.state_dict().items():
        if name != "lm_head.weight" or not gpt.config.tie_embeddings:
            their_name = renamed(name, GPT2_MODULES) if as_gpt2 else PREFIX + name
            weight = in_their_layout(their_name, weight).cpu()
            theirs[their_name] = weight.clone(memory_format=torch.contiguous_format)
    return theirs


def to_ours(weights: dict[str, Tensor], config: GPTConfig, *, as_gpt2: bool) -> dict[str, Tensor]:
    """Inverse of `to_theirs`: returns the weights of a file under our names and with our axes, contiguous.

    Raises a `Mistake` for a weight that a GPT does not have.
    """
    ours = {}
    for name, weight in weights.items():
        if re.search(r"\.attn\.(masked_)?bias$", name):  # the causal mask, which older files of GPT-2 store
            continue
        # Models saved without a head, such as gpt2 on the Hub, have names that lack "transformer.".
        their_name = name if not as_gpt2 or name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}"
        try:
            our_name = renamed(their_name, OUR_MODULES) if as_gpt2 else name.removeprefix(PREFIX)
        except KeyError:
            raise Mistake(f"it has weights for which a GPT has no place, such as {name}") from None
        ours[our_name] = in_their_layout(their_name, weight).cpu().contiguous()
    if config.tie_embeddings and "token_embedding.weight" in ours:  # a file may store a tied lm_head or leave it out
        tied = ours["token_embedding.weight"]
        if not ours.setdefault("lm_head.weight", tied).equal(tied):
            raise Mistake("its lm_head has other weights than its embedding: set tie_word_embeddings to false")
    return ours


# Files


def local_folder(source: str | Path) -> Path:
    """Returns `source` if it is a folder; else downloads the model of that name from the Hub and returns its folder."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    hub, patterns = optional_package("huggingface_hub"), [CONFIG_JSON, WEIGHTS, PARTS, "tokenizer*.json"]
    try:
        return Path(hub.snapshot_download(str(source), allow_patterns=patterns))
    except (OSError, ValueError) as error:  # ValueError: not a valid model name
        raise Missing(
            f"there is no folder {source}, and no public model of that name on the Hub ({type(error).__name__}): check "
            "the name, or without network download the model on another machine and name its folder"
        ) from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Reads the weights of a folder, from model.safetensors, or else model-00001-of-00002.safetensors and so on.

    Files of other names are left alone: model_old.safetensors may be a copy, which would replace the model's weights.
    """
    load_file = optional_package("safetensors.torch").load_file
    paths = [*folder.glob(WEIGHTS)] or sorted(folder.glob(PARTS))
    if not paths:
        raise Missing(f"{folder / WEIGHTS} is missing: save the weights as safetensors; a pickle could run code")
    weights: dict[str, Tensor] = {}
    for path in paths:
        with parsing(path):
            weights |= load_file(path)
    return weights


def masks_documents(folder: Path) -> bool:
    """Whether the folder says that its model was trained to attend within documents; see `to_huggingface`."""
    return bool(read_json(folder / CONFIG_JSON).get("document_masking"))


def read_json(path: Path) -> dict[str, Any]:
    """Reads a file that holds a JSON object. Raises a `Mistake` if it is missing or holds something else."""
    if not path.is_file():
        raise Missing(f"{path.parent} has no {path.name}, so it is not the folder of a Hugging Face model")
    with parsing(path):
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    return content


def copy_network(folder: Path) -> None:
    """Copies the modelling file and all files of the network that it needs, and makes their imports relative."""
    modules = [MODELLING]
    for name in modules:  # the loop adds the modules that each file imports
        source = Path(__file__).parent if name == MODELLING else Path(__file__).parents[1]
        text = (source / f"{name}.py").read_text(encoding="utf-8")
        modules += set(re.findall(r"^\s*from model\.(\w+) import", text, re.MULTILINE)) - set(modules)
        text = re.sub(r"^(\s*from )model(\.\w+ import)", r"\1\2", text, flags=re.MULTILINE)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def check_vocabulary(gpt: GPT, tokenizer: Any) -> None:
    """Raises a `Mistake` if the tokenizer has more tokens than the model."""
    if tokenizer is not None and tokenizer.vocab_size > gpt.config.vocab_size:
        raise Mistake(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, but the model has only {gpt.config.vocab_size:,}: "
            "use the tokenizer that the model was trained with"
        )


def optional_package(name: str) -> ModuleType:
    """Imports an optional package. If it is missing, raises a `Mistake` that says how to install it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise Mistake(f"this needs the package {package}: pip install -r requirements-hf.txt") from error
