"""A run that starts from the weights of a trained model: --model.init_from."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from model.checkpoint import load_gpt
from model.gpt import GPT, GPTConfig
from model.huggingface import from_huggingface

CHOSEN = ("context_length", "dropout")  # by the run and not by the model


ROUNDED_UP = 128  # a vocabulary may have fewer unused tokens than this, so that its size is a round number


def open_model(source: str) -> tuple[GPT, dict[str, Any] | None]:
    """The GPT of a checkpoint file, or of what `from_huggingface` opens; and the tokenizer, which the former has.

    Raises:
        FileNotFoundError, ConnectionError, ValueError, ModuleNotFoundError: as `load_gpt` and `from_huggingface`.
    """
    if Path(source).is_file():
        gpt, info = load_gpt(source)
        return gpt, info["tokenizer"]
    return from_huggingface(source), None


def initial_config(source: str, chosen: GPTConfig) -> GPTConfig:
    """The config of a run that starts from `source`: that model's, with the context length and dropout of `chosen`.

    Raises:
        ValueError: if `chosen` sets something else that the model does not have, or a context longer than its table
            of positions. And as `open_model`.
    """
    trained, defaults = open_model(source)[0].config, GPTConfig()
    for name, value in dataclasses.asdict(chosen).items():
        if name not in CHOSEN and value not in (getattr(defaults, name), getattr(trained, name)):
            raise ValueError(
                f"model.gpt.{name} is {value}, but the model of --model.init_from has {getattr(trained, name)}: leave "
                "it out, as configs/finetune_gpt2.yaml does"
            )
    if trained.position == "learned" and chosen.context_length > trained.context_length:
        raise ValueError(
            f"model.gpt.context_length is {chosen.context_length}, but the model of --model.init_from has learned only "
            f"{trained.context_length} positions: write that or less"
        )
    return dataclasses.replace(trained, **{name: getattr(chosen, name) for name in CHOSEN})


def start_from(gpt: GPT, source: str, tokenizer: Any) -> None:
    """Copies all weights of `source` into `gpt`; of a longer table of positions its beginning.

    Args:
        tokenizer: that of the data on which it will be trained.

    Raises:
        ValueError: if the model was trained with another one. And as `open_model`.
    """
    trained, saved = open_model(source)
    if saved is None:
        fits = 0 <= trained.config.vocab_size - tokenizer.vocab_size < ROUNDED_UP
    else:
        fits = all(saved[part] == tokenizer.to_dict()[part] for part in ("tokens", "special_tokens"))
    if not fits:
        kind = f"{trained.config.vocab_size:,} tokens" if saved is None else f"the tokens of {saved['name']!r}"
        raise ValueError(
            f"the model of --model.init_from reads {kind}, and the tokenizer of the data is {tokenizer.name!r} with "
            f"{tokenizer.vocab_size:,} tokens: choose the one that the model was trained with by --data.tokenizer"
        )
    weights = trained.state_dict()
    if gpt.position_embedding is not None:
        table = weights["position_embedding.weight"]
        weights["position_embedding.weight"] = table[: gpt.config.context_length]
    gpt.load_state_dict(weights)
