"""Hugging Face's models: from a folder, a name on the Hub or a transformers model to a GPT, and from a GPT to a folder.

A table for each architecture says what it calls the options and weights of a GPT; it is read in both directions:

    GPT2LMHeadModel       GPT-2's family
    NanoChatForCausalLM   the modern family without window, value embeddings and bigram table
    GlassGPTForCausalLM   every other GPT; its folder brings the source of this network, for trust_remote_code=True

Nothing that is read can run code: options are JSON, weights are safetensors, and source in a folder is ignored.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from model.checkpoint import without_weights
from model.gpt import GPT, GPTConfig

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MODELLING = "modeling_glassgpt"
FORMAT = 1  # of a GlassGPTForCausalLM's config.json; higher where this version would misread it

# How a weight of theirs is made of ours, and ours of theirs: each function is its own inverse.
Turn = Callable[[Tensor, GPTConfig], Tensor]


def transposed(weight: Tensor, config: GPTConfig) -> Tensor:
    """transformers keeps GPT-2's own layout, (features in, features out); a bias stays as it is."""
    return weight.mT if weight.ndim == 2 else weight


def halves_swapped(weight: Tensor, config: GPTConfig) -> Tensor:
    """NanoChat turns pairs clockwise; that is our sense of rotation with the halves of each head exchanged."""
    return weight.unflatten(0, (-1, 2, config.head_dim // 2)).flip(1).flatten(0, 2)


class Option(NamedTuple):
    """What they call an option: the first name is read, all are written. Without a default it must be there."""

    names: tuple[str, ...]
    default: Any = ...


@dataclass(frozen=True)
class Architecture:
    """One of the architectures of transformers.

    Args:
        model_type, class_name: its names in config.json.
        options: our option -> theirs.
        ours: the values that it gives options of ours.
        theirs: options that a GPT lacks, and the value it stands for.
        modules: our module -> those of theirs that make it, from the first row to the last; `*` is a layer's number.
        turns: the end of their module's name -> what turns its weights.
    """

    model_type: str
    class_name: str
    options: dict[str, Option]
    ours: dict[str, Any]
    theirs: dict[str, Any]
    modules: dict[str, tuple[str, ...]]
    turns: dict[str, Turn]


# Their name of an activation -> ours; of several the first is written.
ACTIVATIONS = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu": "gelu_exact",
    "relu2": "relu2",
}

GPT2 = Architecture(
    model_type="gpt2",
    class_name="GPT2LMHeadModel",
    options={
        "vocab_size": Option(("vocab_size",)),
        "context_length": Option(("n_positions",)),
        "num_layers": Option(("n_layer",)),
        "num_heads": Option(("n_head",)),
        "embed_dim": Option(("n_embd",)),
        "feed_forward_dim": Option(("n_inner",), None),
        "tie_embeddings": Option(("tie_word_embeddings",), True),
        "dropout": Option(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1),
        "activation": Option(("activation_function",), "gelu_new"),
    },
    ours={
        "position": "learned",
        "norm": "layernorm",
        "embedding_norm": False,
        "bias": True,
        "qk_norm": False,
        "logit_soft_cap": None,
        "init": "gpt2",
    },
    theirs={
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "quantization_config": None,
    },
    modules={
        "token_embedding": ("transformer.wte",),
        "position_embedding": ("transformer.wpe",),
        "blocks.*.attention_norm": ("transformer.h.*.ln_1",),
        "blocks.*.attention.qkv_proj": ("transformer.h.*.attn.c_attn",),
        "blocks.*.attention.output_proj": ("transformer.h.*.attn.c_proj",),
        "blocks.*.feed_forward_norm": ("transformer.h.*.ln_2",),
        "blocks.*.feed_forward.up_proj": ("transformer.h.*.mlp.c_fc",),
        "blocks.*.feed_forward.down_proj": ("transformer.h.*.mlp.c_proj",),
        "final_norm": ("transformer.ln_f",),
        "head": ("lm_head",),
    },
    turns=dict.fromkeys(("c_attn", "c_proj", "c_fc"), transposed),
)

NANOCHAT = Architecture(
    model_type="nanochat",
    class_name="NanoChatForCausalLM",
    options={
        "vocab_size": Option(("vocab_size",)),
        "context_length": Option(("max_position_embeddings",)),
        "num_layers": Option(("num_hidden_layers",)),
        "num_heads": Option(("num_attention_heads",)),
        "num_kv_heads": Option(("num_key_value_heads",), None),
        "embed_dim": Option(("hidden_size",)),
        "feed_forward_dim": Option(("intermediate_size",)),
        "logit_soft_cap": Option(("final_logit_softcapping",), 15.0),
        "tie_embeddings": Option(("tie_word_embeddings",), False),
        "dropout": Option(("attention_dropout",), 0.0),
        "activation": Option(("hidden_act",), "relu2"),
    },
    ours={},
    theirs={
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "attention_bias": False,
        "quantization_config": None,
    },
    modules={
        "token_embedding": ("model.embed_tokens",),
        "blocks.*.attention.qkv_proj": (
            "model.layers.*.self_attn.q_proj",
            "model.layers.*.self_attn.k_proj",
            "model.layers.*.self_attn.v_proj",
        ),
        "blocks.*.attention.output_proj": ("model.layers.*.self_attn.o_proj",),
        "blocks.*.feed_forward.up_proj": ("model.layers.*.mlp.fc1",),
        "blocks.*.feed_forward.down_proj": ("model.layers.*.mlp.fc2",),
        "head": ("lm_head",),
    },
    turns=dict.fromkeys(("q_proj", "k_proj"), halves_swapped),
)

GLASSGPT = Architecture("glassgpt", "GlassGPTForCausalLM", options={}, ours={}, theirs={}, modules={}, turns={})


class ExportedTokenizer(Protocol):
    """What `to_huggingface` needs of a tokenizer; data.tokenizers.Tokenizer has it."""

    name: str
    vocab_size: int
    end_of_text: int

    def huggingface_files(self) -> dict[str, dict[str, Any]]: ...


def from_huggingface(source: str | Path | nn.Module) -> GPT:
    """The GPT of a Hugging Face model, in evaluation mode and float32, on the CPU.

    Dropout is that of the residual stream; where theirs has others, they are not kept.

    Args:
        source: a folder, the name of a model on the Hub such as "gpt2", or a transformers model.

    Raises:
        FileNotFoundError: if there is no such folder or model, or a file of it is missing.
        ConnectionError: if the Hub cannot be reached.
        ValueError: if it is no model that a GPT can express, or its weights are not safetensors or do not fit.
        ModuleNotFoundError: if an optional package is missing.
    """
    if isinstance(source, nn.Module):
        their_config: Any = source.config
        name, options, weights = type(source).__name__, their_config.to_dict(), source.state_dict()
    else:
        folder = local_folder(source)
        name, options = str(folder), read_json(folder / CONFIG)
        weights = read_weights(folder)
    try:
        architecture, config = read_options(options)
        if config.num_layers > len(weights):
            raise ValueError(f"it has {config.num_layers} layers, but only {len(weights)} weights")
        gpt = without_weights(config)
        gpt.load_state_dict(to_ours(weights, gpt, architecture), assign=True)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # the last two for sizes beyond all memory
        raise ValueError(f"{name} cannot be read as a GPT: {error}") from error
    if config.tie_embeddings:
        gpt.head.weight = gpt.token_embedding.weight
    return gpt.eval()


def to_huggingface(gpt: GPT, folder: str | Path, tokenizer: ExportedTokenizer | None = None) -> str:
    """Writes a folder that transformers loads, and returns the name of the class that it has there.

    Raises:
        FileExistsError: if there is something at `folder` already.
        ValueError: if the tokenizer has more tokens than the model.
        ModuleNotFoundError: if an optional package is missing.
    """
    safetensors = optional_package("safetensors.torch")
    check_tokenizer(gpt, tokenizer)
    architecture = architecture_of(gpt.config)
    end_of_text = None if tokenizer is None else tokenizer.end_of_text
    special = {"bos_token_id": end_of_text, "eos_token_id": end_of_text, "pad_token_id": None}
    dtype = str(gpt.token_embedding.weight.dtype).removeprefix("torch.")
    with new_folder(Path(folder)) as aside:
        write_json(aside / CONFIG, write_options(gpt.config, architecture) | special | {"dtype": dtype})
        write_json(aside / GENERATION_CONFIG, special | {"pad_token_id": end_of_text})
        # "pt" tells transformers that the tensors have PyTorch's layout.
        metadata = {"format": "pt", "written_by": "GlassGPT", "parameters": str(gpt.num_parameters())}
        safetensors.save_file(to_theirs(gpt, architecture), aside / WEIGHTS, metadata)
        (aside / WEIGHTS).chmod((aside / CONFIG).stat().st_mode)  # save_file makes a file that only its owner can read
        for name, content in ({} if tokenizer is None else tokenizer.huggingface_files()).items():
            write_json(aside / name, content)
        for name, source in (network_sources() if architecture is GLASSGPT else {}).items():
            (aside / name).write_text(source, encoding="utf-8")
    return architecture.class_name


# Options


def architecture_of(config: GPTConfig) -> Architecture:
    """The architecture of transformers that a GPT of this config is; our own if none can express it."""
    return next((known for known in (GPT2, NANOCHAT) if unexpressed(config, known) is None), GLASSGPT)


def unexpressed(config: GPTConfig, architecture: Architecture) -> str | None:
    """The option of a GPT that the architecture lacks, with its value, such as "window 32"; None if it has all."""
    if config.activation not in ACTIVATIONS.values():
        return f"activation {config.activation}"
    if architecture.ours.get("position", "rotary") != config.position:
        return f"position {config.position}"
    _, expressed = read_options(write_options(config, architecture))
    for name, value in asdict(config).items():
        if getattr(expressed, name) != value and name != "init":  # which says how a GPT was drawn, not what it is
            return f"{name} {value}"
    return None


def read_options(options: dict[str, Any]) -> tuple[Architecture, GPTConfig]:
    """The architecture and the GPTConfig of a config.json.

    Raises:
        ValueError, TypeError: if a GPT cannot be that; the message names the option.
    """
    model_type = options.get("model_type")
    if model_type == GLASSGPT.model_type:
        if options.get("glassgpt_format") != FORMAT:
            raise ValueError(f"its glassgpt_format is {options.get('glassgpt_format')!r}, this version reads {FORMAT}")
        return GLASSGPT, GPTConfig(**options.get("gpt", {}))
    architecture = next((known for known in (GPT2, NANOCHAT) if known.model_type == model_type), None)
    if architecture is None:
        raise ValueError(f"its model_type is {model_type!r}: it can be gpt2, nanochat or glassgpt")
    for name, value in architecture.theirs.items():
        if options.get(name, value) != value:
            raise ValueError(f"its {name} is {options[name]!r}, which cannot be expressed: only {value!r} can")
    ours = {name: read_option(options, option) for name, option in architecture.options.items()}
    if ours["activation"] not in ACTIVATIONS:
        name, known = architecture.options["activation"].names[0], ", ".join(ACTIVATIONS)
        raise ValueError(f"its {name} is {ours['activation']!r}, which cannot be expressed: {known} can")
    ours["activation"] = ACTIVATIONS[ours["activation"]]
    return architecture, GPTConfig(**ours, **architecture.ours)


def read_option(options: dict[str, Any], option: Option) -> Any:
    name = option.names[0]
    value = options.get(name, option.default)
    if value is ... or (value is None and option.default is ...):
        raise ValueError(f"its {CONFIG} has no {name}")
    if not isinstance(value, str if isinstance(option.default, str) else (int, float, NoneType)):
        raise ValueError(f"its {name} is {value!r}, which is of another type than it must be")
    return value


def write_options(config: GPTConfig, architecture: Architecture) -> dict[str, Any]:
    """Inverse of `read_options`: the content of a config.json."""
    options = {"model_type": architecture.model_type, "architectures": [architecture.class_name], **architecture.theirs}
    if architecture is GLASSGPT:
        classes = {"AutoConfig": "GlassGPTConfig", "AutoModelForCausalLM": architecture.class_name}
        sources = {"auto_map": {name: f"{MODELLING}.{own}" for name, own in classes.items()}}
        return options | sources | {"glassgpt_format": FORMAT, "gpt": asdict(config)}
    theirs = {ours: name for name, ours in reversed(ACTIVATIONS.items())}
    values = asdict(config) | {"activation": theirs[config.activation]}
    for name, option in architecture.options.items():
        options |= dict.fromkeys(option.names, values[name])
    del options["quantization_config"]
    return options


# Weights


def to_theirs(gpt: GPT, architecture: Architecture) -> dict[str, Tensor]:
    """The weights of a GPT under their names; a tied head is left out."""
    return {
        name: turn(rows, gpt.config).cpu().clone(memory_format=torch.contiguous_format)
        for _, name, turn, rows in named_parts(gpt, architecture)
    }


def to_ours(weights: dict[str, Tensor], gpt: GPT, architecture: Architecture) -> dict[str, Tensor]:
    """Inverse of `to_theirs`: the state dict of `gpt`, whose own weights are read for their shapes only.

    Raises:
        ValueError: for weights that are missing, do not fit or belong to no module.
    """
    parts: dict[str, list[Tensor]] = {}
    used = {"lm_head.weight", "gpt.head.weight"} if gpt.config.tie_embeddings else set()
    for name, their_name, turn, rows in named_parts(gpt, architecture):
        # A model without its head, which GPT-2 on the Hub is, has names without the first part.
        found = next((n for n in (their_name, their_name.partition(".")[2]) if n in weights), None)
        if found is None:
            raise ValueError(f"the weight {their_name} is missing")
        weight, shape = weights[found], turn(rows, gpt.config).shape
        if weight.shape != shape or not weight.is_floating_point():
            raise ValueError(
                f"{found} is {weight.dtype} of shape {tuple(weight.shape)}, "
                f"but the options want floats of shape {tuple(shape)}"
            )
        used.add(found)
        parts.setdefault(name, []).append(turn(weight, gpt.config).to("cpu", torch.float32))
    # Older files of GPT-2 hold the causal mask too.
    others = [name for name in weights if name not in used and not re.search(r"\.attn\.(masked_)?bias$", name)]
    if others:
        raise ValueError(f"it has weights for which a GPT has no place, such as {others[0]}")
    ours = {name: torch.cat(pieces) for name, pieces in parts.items()}
    return ours | ({"head.weight": ours["token_embedding.weight"]} if gpt.config.tie_embeddings else {})


def named_parts(gpt: GPT, architecture: Architecture) -> Iterator[tuple[str, str, Turn, Tensor]]:
    """For each weight of theirs the name of ours that holds it, its own name, its turn, and its rows in ours.

    A head that is tied is left out.
    """
    config = gpt.config
    qkv_rows = [config.embed_dim, *2 * [config.num_kv_heads * config.head_dim]]
    for name, weight in gpt.state_dict().items():
        module, layer, kind = split_name(name)
        if module == "head" and config.tie_embeddings:
            continue
        theirs = (f"gpt.{module}",) if architecture is GLASSGPT else architecture.modules[module]
        rows = weight.split(len(weight) if len(theirs) == 1 else qkv_rows)
        for their_module, some in zip(theirs, rows, strict=True):
            turn = architecture.turns.get(their_module.rpartition(".")[2], lambda weight, config: weight)
            yield name, f"{their_module.replace('*', layer)}.{kind}", turn, some


def split_name(name: str) -> tuple[str, str, str]:
    """A weight's module with `*` for its layer, the layer, and the kind: weight or bias."""
    module, _, kind = name.rpartition(".")
    layer = re.search(r"\d+", module)
    return re.sub(r"\d+", "*", module), layer[0] if layer else "", kind


# Files


def local_folder(source: str | Path) -> Path:
    """The folder `source`, or the one into which the model of that name on the Hub has been downloaded."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is a file: give the folder with {CONFIG} and {WEIGHTS}")
    hub, errors = optional_package("huggingface_hub"), optional_package("huggingface_hub.errors")
    wanted = [CONFIG, "model*.safetensors", INDEX, "tokenizer*.json", "vocab.json", "merges.txt"]
    try:
        return Path(hub.snapshot_download(str(source), allow_patterns=wanted))
    except errors.HFValidationError as error:
        raise FileNotFoundError(f"there is no folder {source}, and the Hub cannot have a model of that name") from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(f"there is no folder {source}, and the Hub has no public model of that name") from error
    except (OSError, errors.HfHubHTTPError) as error:
        raise ConnectionError(
            f"there is no folder {source}, and the model of that name cannot be downloaded from the Hub: download it "
            "on a machine with network and give its folder"
        ) from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All weights in the safetensors of a folder.

    Raises:
        FileNotFoundError: if they or a part of them are missing.
        ValueError: if they are stored as a pickle, or damaged.
    """
    load_file = optional_package("safetensors.torch").load_file
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file() and (folder / INDEX).is_file():
        shards = read_json(folder / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise ValueError(f"{folder / INDEX} is damaged: it has no weight_map from names to files")
        names = sorted(set(shards.values()))
    weights: dict[str, Tensor] = {}
    for name in names:
        path = folder / name
        if path.parent != folder:
            raise ValueError(f"{folder / INDEX} names {name}, which is not a file in its folder")
        if not path.is_file():
            pickles = sorted(file.name for end in ("bin", "pt", "pth", "ckpt") for file in folder.glob(f"*.{end}"))
            if pickles:
                raise ValueError(
                    f"{folder} has its weights as a pickle, {pickles[0]}, which could run code and is not read: "
                    "store them as safetensors, which save_pretrained of transformers does"
                )
            raise FileNotFoundError(f"{path} is missing" + (f", one of {len(names)} shards" if len(names) > 1 else ""))
        try:
            weights |= load_file(path)
        except OSError:
            raise
        except Exception as error:  # safetensors' own type is no subclass of the usual ones
            raise ValueError(f"{path} is damaged, or no safetensors file (a pickle is not read): {error}") from error
    return weights


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises FileNotFoundError or ValueError, with a sentence that names the file."""
    if not path.is_file():
        raise FileNotFoundError(f"{path.parent} has no {path.name}, so it is not a folder of a Hugging Face model")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it is not a JSON object")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into; when the block ends it appears, complete, as `folder`, and after an error it is removed.

    Raises:
        FileExistsError: if there is a file or a folder that is not empty.
    """
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists already: name a new folder")
    aside = folder.absolute().with_name(f".{folder.absolute().name}.aside")
    shutil.rmtree(aside, ignore_errors=True)  # what a kill left
    aside.mkdir(parents=True)
    try:
        yield aside
        if folder.is_dir():
            folder.rmdir()
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def network_sources() -> dict[str, str]:
    """The modelling file and all files of this network that it imports, as modules of one package without a name."""
    sources: dict[str, str] = {}
    waiting = [MODELLING]
    while waiting:
        name = waiting.pop()
        if f"{name}.py" not in sources:
            folder = Path(__file__).parent if name == MODELLING else Path(__file__).parents[1]
            text = (folder / f"{name}.py").read_text(encoding="utf-8")
            waiting += re.findall(r"^\s*from model\.(\w+) import", text, re.MULTILINE)
            sources[f"{name}.py"] = re.sub(r"^(\s*from )model(\.\w+ import)", r"\1\2", text, flags=re.MULTILINE)
    return sources


def check_tokenizer(gpt: GPT, tokenizer: ExportedTokenizer | None) -> None:
    """Raises ValueError if the tokenizer has tokens that the model does not know."""
    if tokenizer is not None and tokenizer.vocab_size > gpt.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size:,} tokens, more than the model, which has "
            f"{gpt.config.vocab_size:,}"
        )


def optional_package(name: str) -> ModuleType:
    """Imports a package that not everyone needs. Raises ModuleNotFoundError with a sentence that says how to get it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise ModuleNotFoundError(
            f"this needs the package {package}: pip install -r requirements-hf.txt", name=package
        ) from error
