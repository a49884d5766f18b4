"""A run that starts from a trained model: --model.init_from. Its network, its weights and its tokenizer."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

from model.checkpoint import build_gpt, load_gpt, read_checkpoint
from model.checks import Mistake
from model.exchange.huggingface import CONFIG_JSON, config_of, from_huggingface, local_folder, read_json
from model.gpt import GPT, GPTConfig

CHOSEN = ("context_length", "dropout")  # may be other than the model's
ROUNDED_UP = 128  # a vocabulary may have fewer unused tokens than this, so that its size is a round number


def initial_config(source: str, config: Any, given: Collection[str]) -> GPTConfig:
    """The config of a run that starts from `source`: that model's, but for a context length and dropout that are given.

    The weights are not read.

    Args:
        source: a checkpoint file, or what `from_huggingface` opens.
        config: the options of the run, with the names of a GPTConfig's.
        given: those that the person has set; null is no choice where it is the default.

    Raises Mistake if they set something else that the model does not have, or a context longer than its table of
    positions; and as `load_gpt` and `from_huggingface`.
    """
    path = Path(source)
    if path.is_file():
        trained = build_gpt(path, read_checkpoint(path, on_disk=True)).config
    else:
        trained = config_of(read_json(local_folder(source) / CONFIG_JSON))
    for name in given:
        value, own = getattr(config, name), getattr(trained, name)
        is_open = value is None and GPTConfig.__dataclass_fields__[name].default is None
        if name not in CHOSEN and value != own and not is_open:
            raise Mistake(
                f"model.gpt.{name} is {value}, but the model of --model.init_from has {own}: leave it out, as "
                "configs/finetune_gpt2.yaml does"
            )
    chosen = dataclasses.replace(trained, **{name: getattr(config, name) for name in CHOSEN if name in given})
    if trained.position == "learned" and chosen.context_length > trained.context_length:
        raise Mistake(
            f"model.gpt.context_length is {chosen.context_length}, but the model of --model.init_from has learned only "
            f"{trained.context_length} positions: write that or less"
        )
    return chosen


def place_of(source: str) -> str:
    """`source` as a path: of a name of the Hub without an owner, such as gpt2, the folder it was downloaded to."""
    return source if "/" in source or Path(source).is_file() else str(local_folder(source))


def check_tokenizer(vocab_size: int, own: dict[str, Any] | None, tokenizer: Any) -> None:
    """Raises Mistake unless a model of `vocab_size` was trained with `tokenizer`, the one of the data.

    `own` is the model's, as plain data. Where it has none, only the sizes can be compared.
    """
    given = tokenizer.to_dict()
    if own is None:
        fits = 0 <= vocab_size - tokenizer.vocab_size < ROUNDED_UP
        kind, remedy = f"{vocab_size:,} tokens", "choose the one it was trained with by --data.tokenizer"
    else:
        fits = all(own.get(part) == given[part] for part in ("pattern", "tokens", "special_tokens"))
        kind, remedy = f"the tokens of its own {own.get('name')!r}", "leave out --data.tokenizer to take the model's"
    if not fits:
        raise Mistake(
            f"the model of --model.init_from reads {kind}, and the tokenizer of the data is another, "
            f"{tokenizer.name!r} with {tokenizer.vocab_size:,} tokens: {remedy}"
        )


def start_from(gpt: GPT, source: str) -> None:
    """Copies all weights of `source` into `gpt`; of a longer table of positions its beginning.

    Raises as `load_gpt` and `from_huggingface`.
    """
    trained = load_gpt(source)[0] if Path(source).is_file() else from_huggingface(source)
    weights = trained.state_dict()
    if gpt.position_embedding is not None:
        table = weights["position_embedding.weight"]
        weights["position_embedding.weight"] = table[: gpt.config.context_length]
    gpt.load_state_dict(weights)
