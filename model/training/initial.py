"""A run that starts from the weights of a trained model: --model.init_from."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

from model.checkpoint import build_gpt, load_gpt, read_description
from model.exchange.huggingface import from_huggingface
from model.gpt import GPT, GPTConfig

CHOSEN = ("context_length", "dropout")  # by the run and not by the model
ROUNDED_UP = 128  # a vocabulary may have fewer unused tokens than this, so that its size is a round number


def initial_config(source: str, config: GPTConfig, given: Collection[str]) -> GPTConfig:
    """The config of a run that starts from `source`: that model's, with the context length and dropout of `config`.

    Args:
        source: a checkpoint file, or what `from_huggingface` opens.
        config: the options of the run.
        given: those that the person has set; null is no choice where it is the default.

    Raises:
        ValueError: if they set something else that the model does not have, or a context longer than its table of
            positions. And as `load_gpt` and `from_huggingface`.
    """
    path, defaults = Path(source), GPTConfig()
    trained = (build_gpt(path, read_description(path)) if path.is_file() else from_huggingface(source)).config
    for name in given:
        value, own = getattr(config, name), getattr(trained, name)
        is_choice = name not in CHOSEN and (value is not None or getattr(defaults, name) is not None)
        if is_choice and value != own:
            raise ValueError(
                f"model.gpt.{name} is {value}, but the model of --model.init_from has {own}: leave it out, as "
                "configs/finetune_gpt2.yaml does"
            )
    if trained.position == "learned" and config.context_length > trained.context_length:
        raise ValueError(
            f"model.gpt.context_length is {config.context_length}, but the model of --model.init_from has learned only "
            f"{trained.context_length} positions: write that or less"
        )
    return dataclasses.replace(trained, **{name: getattr(config, name) for name in CHOSEN})


def start_from(gpt: GPT, source: str, tokenizer: Any) -> None:
    """Copies all weights of `source` into `gpt`; of a longer table of positions its beginning.

    Args:
        tokenizer: that of the data on which it will be trained.

    Raises:
        ValueError: if the model was trained with another one. And as `initial_config`.
    """
    if Path(source).is_file():
        trained, info = load_gpt(source)
        saved, own = info["tokenizer"], tokenizer.to_dict()
        fits = all(saved.get(part) == own[part] for part in ("pattern", "tokens", "special_tokens"))
        kind = f"the tokens of {saved.get('name', 'an unknown tokenizer')!r}"
    else:
        trained = from_huggingface(source)
        fits = 0 <= trained.config.vocab_size - tokenizer.vocab_size < ROUNDED_UP
        kind = f"{trained.config.vocab_size:,} tokens"
    if not fits:
        raise ValueError(
            f"the model of --model.init_from reads {kind}, and the tokenizer of the data is {tokenizer.name!r} with "
            f"{tokenizer.vocab_size:,} tokens: choose the one that the model was trained with by --data.tokenizer"
        )
    weights = trained.state_dict()
    if gpt.position_embedding is not None:
        table = weights["position_embedding.weight"]
        weights["position_embedding.weight"] = table[: gpt.config.context_length]
    gpt.load_state_dict(weights)
