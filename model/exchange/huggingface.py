"""Hugging Face's models: from a folder, a name on the Hub or a transformers model to a GPT, and from a GPT to a folder.

    GPT2LMHeadModel       GPT-2's family; one table of options and one of weights, each read in both directions
    GlassGPTForCausalLM   every other GPT; its folder brings the source of this network, for trust_remote_code=True

Nothing that is read can run code: options are JSON, weights are safetensors, and source in a folder is ignored.
"""

import copy
import importlib
import json
import re
import runpy
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, NoneType
from typing import Any

import torch
from torch import Tensor, nn

from model.attention import CausalSelfAttention
from model.checkpoint import without_weights
from model.checks import listed
from model.files import parsing
from model.gpt import GPT, GPTConfig, in_eval_mode

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"
WEIGHTS = "model.safetensors"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
MODELLING = "modeling_glassgpt"
FORMAT = 1  # of a GlassGPTForCausalLM's config.json; higher where this version would misread it
GPT2_CLASS, OUR_CLASS = "GPT2LMHeadModel", "GlassGPTForCausalLM"
# The config.json of a GlassGPTForCausalLM, besides its GPTConfig.
OUR_OPTIONS: dict[str, Any] = {
    "model_type": "glassgpt",
    "architectures": [OUR_CLASS],
    "auto_map": {"AutoConfig": f"{MODELLING}.GlassGPTConfig", "AutoModelForCausalLM": f"{MODELLING}.{OUR_CLASS}"},
    "glassgpt_format": FORMAT,
}
TOLERANCE = 1e-3  # between the logits of a GPT and of what is written for other programs

# Our option -> GPT-2's, and the value that it has where a config.json lacks it; ... stands for none.
GPT2_OPTIONS: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", ...),
    "context_length": ("n_positions", ...),
    "num_layers": ("n_layer", ...),
    "num_heads": ("n_head", ...),
    "embed_dim": ("n_embd", ...),
    "feed_forward_dim": ("n_inner", None),
    "tie_embeddings": ("tie_word_embeddings", True),
    "dropout": ("resid_pdrop", 0.1),
}
OTHER_DROPOUTS = ("embd_pdrop", "attn_pdrop")  # a GPT has one dropout for all
# GPT-2's name of an activation -> ours; of several the first is written.
ACTIVATIONS: dict[str, Any] = {
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_fast": "gelu",
    "gelu": "gelu_exact",
    "relu2": "relu2",
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
MODULES: dict[str, dict[str, str]] = {"gpt2": GPT2_MODULES, "glassgpt": {}}  # by the model_type of a config.json


def from_huggingface(source: str | Path | nn.Module) -> GPT:
    """The GPT of a Hugging Face model, in evaluation mode and float32, on the CPU.

    Args:
        source: a folder, the name of a model on the Hub such as "gpt2", or a transformers model, of whose dropouts
            only that of the residual stream is kept.

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
        name, options, weights = str(folder), read_json(folder / CONFIG), read_weights(folder)
    try:
        config = read_options(options)
        if config.num_layers > len(weights):
            raise ValueError(f"it has {config.num_layers} layers, but only {len(weights)} weights")
        gpt = without_weights(config)
        gpt.load_state_dict(to_ours(weights, gpt, MODULES[options["model_type"]]), assign=True)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # the last two for sizes beyond all memory
        raise ValueError(f"{name} cannot be read as a GPT: {error}") from error
    if config.tie_embeddings:
        gpt.head.weight = gpt.token_embedding.weight
    return gpt.eval()


def to_huggingface(gpt: GPT, folder: str | Path, tokenizer: Any = None, *, document_masking: bool = False) -> str:
    """Writes a folder that transformers loads, and returns the name of the class that it has there.

    Args:
        tokenizer: a data.tokenizers.Tokenizer, None for a folder without one.
        document_masking: whether the GPT was trained to stay within a document: a note for scripts/evaluate.py.

    Raises:
        FileExistsError: if there is something at `folder` already.
        ValueError: if the tokenizer has more tokens than the model. And as `check_computes_as_gpt2`, or for other
            models as `check_computes_as_its_source`.
        ModuleNotFoundError: if an optional package is missing.
    """
    safetensors = optional_package("safetensors.torch")
    check_tokenizer(gpt, tokenizer)
    is_gpt2 = not_in_gpt2(gpt.config) is None
    check_computes_as_gpt2(gpt) if is_gpt2 else check_computes_as_its_source(gpt)
    end_of_text = None if tokenizer is None else tokenizer.end_of_text
    about = {
        "document_masking": document_masking,
        "dtype": str(gpt.token_embedding.weight.dtype).removeprefix("torch."),
    }
    special = {"bos_token_id": end_of_text, "eos_token_id": end_of_text, "pad_token_id": None}
    with new_folder(Path(folder)) as aside:
        options = gpt2_options(gpt.config) if is_gpt2 else OUR_OPTIONS | {"gpt": asdict(gpt.config)}
        write_json(aside / CONFIG, options | special | about)
        write_json(aside / GENERATION_CONFIG, special | {"pad_token_id": end_of_text})
        # "pt" tells transformers that the tensors have PyTorch's layout.
        metadata = {"format": "pt", "written_by": "GlassGPT", "parameters": str(gpt.num_parameters())}
        safetensors.save_file(to_theirs(gpt, GPT2_MODULES if is_gpt2 else {}), aside / WEIGHTS, metadata)
        (aside / WEIGHTS).chmod((aside / CONFIG).stat().st_mode)  # save_file makes a file that only its owner can read
        for name, content in ({} if tokenizer is None else tokenizer.huggingface_files()).items():
            write_json(aside / name, content)
        if not is_gpt2:
            copy_network(aside)
    return GPT2_CLASS if is_gpt2 else OUR_CLASS


# Options


def not_in_gpt2(config: GPTConfig) -> str | None:
    """The first option that GPT-2's format cannot express, with its value, such as "window 32"; None if it can all."""
    if config.activation not in ACTIVATIONS.values():
        return f"activation {config.activation}"
    expressed = GPTConfig(**{name: getattr(config, name) for name in (*GPT2_OPTIONS, "activation")}, **GPT2_FAMILY)
    for name, value in asdict(config).items():
        if getattr(expressed, name) != value and name != "init":  # which says how a GPT was drawn, not what it is
            return f"{name} {value}"
    return None


def read_options(options: dict[str, Any]) -> GPTConfig:
    """The GPTConfig of a config.json. Raises ValueError that names an option which a GPT cannot have."""
    if options.get("model_type") == "glassgpt":
        if options.get("glassgpt_format") != FORMAT:
            raise ValueError(f"its glassgpt_format is {options.get('glassgpt_format')!r}, this version reads {FORMAT}")
        try:
            return GPTConfig(**options.get("gpt", {}))
        except TypeError as error:
            raise ValueError(f"its {CONFIG} holds what this version does not know: {error}") from error
    if options.get("model_type") != "gpt2":
        raise ValueError(f"its model_type is {options.get('model_type')!r}: it can be gpt2 or glassgpt")
    for name, value in {**GPT2_FIXED, "quantization_config": None}.items():
        if options.get(name, value) != value:
            raise ValueError(f"its {name} is {options[name]!r}, which cannot be expressed: only {value!r} can")
    ours = {}
    for our_name, (name, default) in GPT2_OPTIONS.items():
        ours[our_name] = value = options.get(name, default)
        if value is ... or (value is None and default is ...):
            raise ValueError(f"its {CONFIG} has no {name}")
        if not isinstance(value, (int, float, NoneType)):
            raise ValueError(f"its {name} is {value!r}, which is of another type than it must be")
    activation = options.get("activation_function", "gelu_new")
    if activation not in ACTIVATIONS:
        known = listed([*ACTIVATIONS])
        raise ValueError(f"its activation_function is {activation!r}, which cannot be expressed: only {known} can")
    return GPTConfig(**ours, activation=ACTIVATIONS[activation], **GPT2_FAMILY)


def gpt2_options(config: GPTConfig) -> dict[str, Any]:
    """Inverse of `read_options` for GPT-2's family: the content of a config.json."""
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)
    options = {"model_type": "gpt2", "architectures": [GPT2_CLASS], "activation_function": activation, **GPT2_FIXED}
    options |= {theirs: getattr(config, ours) for ours, (theirs, _) in GPT2_OPTIONS.items()}
    return options | dict.fromkeys(OTHER_DROPOUTS, config.dropout)


# Weights


def their_names(gpt: GPT, modules: dict[str, str]) -> dict[str, str]:
    """The name of each weight of a GPT -> another program's, by its table of modules; a tied head is left out.

    A module that is not in the table keeps its name, after "gpt.", as in a GlassGPTForCausalLM.
    """
    names = {}
    for name in gpt.state_dict():
        module, _, kind = name.rpartition(".")
        if module == "head" and gpt.config.tie_embeddings:
            continue
        number = re.search(r"\d+", module)
        theirs = modules.get(re.sub(r"\d+", "*", module), f"gpt.{module}")
        names[name] = f"{theirs.replace('*', number[0] if number else '')}.{kind}"
    return names


def in_their_layout(their_name: str, weight: Tensor) -> Tensor:
    """A weight with its axes as in a file: layers that GPT-2 calls c_... map rows to columns. Its own inverse."""
    return weight.mT if re.search(r"\.c_\w+\.weight$", their_name) else weight


def to_theirs(gpt: GPT, modules: dict[str, str]) -> dict[str, Tensor]:
    """The weights of a GPT as a file has them."""
    weights = gpt.state_dict()
    return {
        theirs: in_their_layout(theirs, weights[ours]).cpu().clone(memory_format=torch.contiguous_format)
        for ours, theirs in their_names(gpt, modules).items()
    }


def to_ours(weights: dict[str, Tensor], gpt: GPT, modules: dict[str, str]) -> dict[str, Tensor]:
    """Inverse of `to_theirs`: the state dict of `gpt`, whose own weights are read for their shapes only.

    Raises ValueError for weights that are missing, do not fit or belong to no module.
    """
    own, ours, unused = gpt.state_dict(), {}, dict.fromkeys(weights)
    for name, their_name in their_names(gpt, modules).items():
        # A model without its head, which GPT-2 on the Hub is, has names without the first part.
        found = their_name if their_name in weights else their_name.partition(".")[2]
        if found not in weights:
            raise ValueError(f"the weight {their_name} is missing, or the file that has it")
        weight, shape = weights[found], in_their_layout(their_name, own[name]).shape
        if weight.shape != shape or not weight.is_floating_point():
            raise ValueError(
                f"{found} is {weight.dtype} of shape {tuple(weight.shape)}, "
                f"but the options want floats of shape {tuple(shape)}"
            )
        unused.pop(found)
        ours[name] = in_their_layout(their_name, weight).to("cpu", torch.float32)
    if gpt.config.tie_embeddings:
        ours["head.weight"] = ours["token_embedding.weight"]
    # A tied head may be stored a second time, and older files of GPT-2 hold the causal mask.
    stored_twice = r"^(lm_head|gpt\.head)\.weight$|" if gpt.config.tie_embeddings else ""
    others = [name for name in unused if not re.search(stored_twice + r"\.attn\.(masked_)?bias$", name)]
    if others:
        raise ValueError(f"it has weights for which a GPT has no place, such as {others[0]}")
    return ours


def check_computes_as_gpt2(gpt: GPT) -> None:
    """Compares the logits of a GPT of GPT-2's family with those of transformers' GPT-2 of the same weights.

    They differ where the network has been changed, in `attend` for example: no option tells of that.

    Raises ValueError if they differ by more than 0.001, ModuleNotFoundError if transformers is missing.
    """
    transformers = optional_package("transformers")
    config = transformers.GPT2Config(**gpt2_options(gpt.config), bos_token_id=None, eos_token_id=None)
    with torch.random.fork_rng(devices=[]):
        peer = transformers.GPT2LMHeadModel(config).eval()
    peer.load_state_dict(to_theirs(gpt, GPT2_MODULES), strict=False)  # a tied head is not in them
    _check_same_logits(gpt, lambda tokens: peer(tokens).logits, "GPT-2")


def check_computes_as_its_source(gpt: GPT) -> None:
    """Compares the logits of a GPT with those that it has with the attention of this network's file.

    A folder brings that file. A notebook can have another attention in memory.

    Raises ValueError if they differ by more than 0.001.
    """
    peer = copy.deepcopy(gpt).float().cpu().eval()
    of_file = runpy.run_path(str(Path(__file__).parents[1] / "attention.py"))["CausalSelfAttention"]
    for layer in peer.modules():
        if isinstance(layer, CausalSelfAttention):
            vars(layer).pop("attend", None)
            layer.__class__ = of_file
    _check_same_logits(gpt, peer, "model/attention.py, which the folder brings,")


@torch.no_grad()
def _check_same_logits(gpt: GPT, peer: Callable[[Tensor], Tensor], name: str) -> None:
    """On one sequence of the full context: attention may differ only for tokens that are far away."""
    if gpt.token_embedding.weight.dtype != torch.float32:
        gpt = copy.deepcopy(gpt).float()
    tokens = torch.arange(gpt.config.context_length)[None] * 7 % gpt.config.vocab_size
    with in_eval_mode(gpt):
        ours = gpt(tokens.to(gpt.token_embedding.weight.device)).cpu()
    difference = (ours - peer(tokens)).abs().max().item()
    if not difference <= TOLERANCE:
        raise ValueError(
            f"this network does not compute what {name} does: with the same weights logits differ by {difference:.3g}, "
            f"more than {TOLERANCE}; undo what was changed in it, such as `attend`, before you export it"
        )


# Files


def local_folder(source: str | Path) -> Path:
    """The folder `source`, or the one into which the model of that name on the Hub has been downloaded."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ValueError(f"{folder} is a file: give the folder with {CONFIG} and {WEIGHTS}")
    hub, errors = optional_package("huggingface_hub"), optional_package("huggingface_hub.errors")
    wanted = [CONFIG, "model*.safetensors", "tokenizer*.json", "vocab.json", "merges.txt"]
    try:
        return Path(hub.snapshot_download(str(source), allow_patterns=wanted))
    except (errors.HFValidationError, errors.RepositoryNotFoundError) as error:
        raise FileNotFoundError(f"there is no folder {source}, and the Hub has no public model of that name") from error
    except (OSError, errors.HfHubHTTPError) as error:
        raise ConnectionError(
            f"there is no folder {source}, and the model of that name cannot be downloaded from the Hub: download it "
            "on a machine with network and give its folder"
        ) from error


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All weights in the safetensors of a folder, one file or several.

    Raises FileNotFoundError if there are none, ValueError if they are stored as a pickle, or damaged.
    """
    load_file = optional_package("safetensors.torch").load_file
    one, pickles = folder / WEIGHTS, [path for path in folder.iterdir() if path.suffix in PICKLES]
    paths = [one] if one.is_file() else sorted(folder.glob("model-*.safetensors"))
    if not paths and pickles:
        raise ValueError(
            f"{folder} has its weights as a pickle, {min(pickles).name}, which could run code and is not read: "
            "store them as safetensors, which save_pretrained of transformers does"
        )
    if not paths:
        raise FileNotFoundError(f"{one} is missing")
    weights: dict[str, Tensor] = {}
    for path in paths:
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
    text = path.read_bytes()
    with parsing(path):
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into; when the block ends it appears, complete, as `folder`, and after an error it is removed.

    Raises FileExistsError if there is a file or a folder that is not empty.
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


def copy_network(folder: Path) -> None:
    """Writes the modelling file and all files of this network that it imports, as modules without a package's name."""
    waiting = [MODELLING]
    for name in waiting:  # which grows
        source = Path(__file__).parent if name == MODELLING else Path(__file__).parents[1]
        text = (source / f"{name}.py").read_text(encoding="utf-8")
        waiting += set(re.findall(r"^\s*from model\.(\w+) import", text, re.MULTILINE)) - set(waiting)
        text = re.sub(r"^(\s*from )model(\.\w+ import)", r"\1\2", text, flags=re.MULTILINE)
        (folder / f"{name}.py").write_text(text, encoding="utf-8")


def check_tokenizer(gpt: GPT, tokenizer: Any) -> None:
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
