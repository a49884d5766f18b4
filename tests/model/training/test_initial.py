"""--model.init_from: a run starts from the weights of a trained model, with the loss that this model has."""

import csv
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from data.datamodule import TextDataModule
from data.tokenizers import byte_level, train_bpe
from model.checkpoint import load_gpt
from model.gpt import GPT, GPTConfig
from model.training.initial import initial_config, start_from
from tests.checkpoints import change_checkpoint, save_checkpoint
from tests.gpts import GPT2, huggingface_gpt2, random_gpt
from tests.small_runs import REPOSITORY

SIZES = {"vocab_size": 257, "context_length": 32, "num_layers": 2, "num_heads": 2, "embed_dim": 16}


def small_gpt2(**options):
    return random_gpt(GPTConfig(**{**SIZES, **GPT2, **options}))


def finetune(text, *options):
    """Runs configs/finetune_gpt2.yaml in the working folder, for 4 steps on `text` by bytes."""
    from train import main

    small = {
        "config": REPOSITORY / "configs" / "finetune_gpt2.yaml",
        "data.files": text,
        "data.tokenizer": "bytes",
        "data.cache_dir": "cache",
        "data.num_processes": 1,
        "model.gpt.context_length": 16,
        "model.compile": "false",
        "trainer.accelerator": "cpu",
        "trainer.precision": "32-true",
        "trainer.max_steps": 4,
        "trainer.val_check_interval": 8,
        "samples.max_new_tokens": 4,
        "attention.probe_tokens": 8,
        "wandb": "disabled",
        "name": "run",
    }
    return main([*(f"--{name}={value}" for name, value in small.items()), *options])


@pytest.mark.slow
def test_a_run_begins_with_the_loss_of_the_model_and_resumes_without_it(small_text, tmp_path, monkeypatch):
    pytest.importorskip("safetensors.torch")
    from model.exchange.huggingface import to_huggingface

    monkeypatch.chdir(tmp_path)
    gpt = small_gpt2()
    to_huggingface(gpt, "model")
    assert finetune(small_text, "--model.init_from=model") == 0
    rows = list(csv.DictReader(Path("runs/run/metrics.csv").read_text().splitlines()))
    assert rows[0]["step"] == "0" and rows[0]["val/loss"]

    peer = huggingface_gpt2(gpt)
    data = TextDataModule(files=str(small_text), tokenizer="bytes", cache_dir="cache")
    data.setup()
    validation = torch.from_numpy(data.tokenized.validation.read(0, data.validation_tokens).astype(np.int64))
    nats = []
    with torch.no_grad():
        for start in range(0, len(validation) - 1, 16):
            window = validation[start : start + 17]
            nats.append(F.cross_entropy(peer(window[None, :-1]).logits[0], window[1:], reduction="none"))
    assert float(rows[0]["val/loss"]) == pytest.approx(torch.cat(nats).mean().item(), abs=1e-4)

    trained, _ = load_gpt("runs/run/checkpoints/last.ckpt")
    assert trained.config == GPTConfig(**{**SIZES, **GPT2, "context_length": 16, "dropout": 0.1})
    saved = yaml.safe_load(Path("runs/run/config.yaml").read_text())["model"]
    assert saved["init_from"] == "model" and saved["gpt"] == asdict(trained.config)

    Path("model").rename("gone")
    from train import main

    assert main(["--resume=runs/run", "--trainer.max_steps=5"]) == 0


def test_a_shorter_context_takes_the_beginning_of_the_positions(tmp_path):
    gpt = small_gpt2()
    save_checkpoint(tmp_path / "model.ckpt", gpt)
    config = initial_config(str(tmp_path / "model.ckpt"), GPTConfig(context_length=8, dropout=0.2), ["context_length"])
    assert config.context_length == 8 and config.dropout == 0.2 and config.num_layers == 2
    shorter = random_gpt(config, seed=1)
    start_from(shorter, str(tmp_path / "model.ckpt"), byte_level())
    tokens = torch.randint(257, (1, 8))
    torch.testing.assert_close(shorter(tokens), gpt(tokens))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"num_layers": 3}, r"model\.gpt\.num_layers is 3, but the model of --model\.init_from has 2: leave it out"),
        ({"num_layers": 6}, r"model\.gpt\.num_layers is 6"),  # the default, but typed
        ({"logit_soft_cap": None, "window": None, "norm": "rmsnorm"}, r"model\.gpt\.norm is rmsnorm"),
        ({"window": 4}, r"model\.gpt\.window is 4"),
        ({"context_length": 64}, r"context_length is 64, but the model .* has learned only 32 positions"),
    ],
)
def test_what_the_model_has_cannot_be_chosen(chosen, message, tmp_path):
    save_checkpoint(tmp_path / "model.ckpt", small_gpt2())
    with pytest.raises(ValueError, match=message):
        initial_config(str(tmp_path / "model.ckpt"), GPTConfig(**{"context_length": 32, **chosen}), chosen.keys())


def test_null_is_a_choice_where_it_is_not_the_default(tmp_path):
    save_checkpoint(tmp_path / "model.ckpt", GPT(GPTConfig(vocab_size=257, embed_dim=12)))
    without_cap = GPTConfig(logit_soft_cap=None)
    with pytest.raises(ValueError, match=r"model\.gpt\.logit_soft_cap is None, but the model of .* has 15\.0"):
        initial_config(str(tmp_path / "model.ckpt"), without_cap, ["logit_soft_cap"])
    assert initial_config(str(tmp_path / "model.ckpt"), without_cap, ["window"]).logit_soft_cap == 15


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ({}, "'bytes', and the tokenizer of the data is 'bpe' with 265"),
        ({"tokens": b"\1\0a"}, "'bpe', and the tokenizer of the data is 'bpe' with 265"),
        ({"special_tokens": {"<|endoftext|>": 300}}, "'bpe', and"),
        ({"pattern": r"\S+|\s+"}, "'bpe', and"),
        (None, "'an unknown tokenizer', and"),
    ],
)
def test_another_tokenizer_is_refused(saved, said, tmp_path):
    path = tmp_path / "model.ckpt"
    gpt, own = small_gpt2(vocab_size=300), train_bpe(["the cat and the hat and the rat " * 9], 265)
    save_checkpoint(path, gpt)
    if saved != {}:
        change_checkpoint(path, tokenizer={} if saved is None else own.to_dict() | saved)
    with pytest.raises(ValueError, match=f"reads the tokens of {said}"):
        start_from(gpt, str(path), own)
    change_checkpoint(path, tokenizer=own.to_dict() | {"name": "another name of the same"})
    start_from(gpt, str(path), own)


def test_the_weights_of_a_checkpoint_are_read_once(tmp_path):
    """Its sizes are known without them: a changed weight is noticed where the weights are taken."""
    path, gpt = tmp_path / "model.ckpt", small_gpt2()
    save_checkpoint(path, gpt)
    content, weight = path.read_bytes(), gpt.token_embedding.weight.detach().numpy().tobytes()
    path.write_bytes(content.replace(weight, bytes(len(weight))))
    assert initial_config(str(path), GPTConfig(context_length=8), []).embed_dim == 16
    with pytest.raises(ValueError, match="does not match its checksum"):
        start_from(gpt, str(path), byte_level())


def test_a_folder_of_another_vocabulary_is_refused(tmp_path):
    pytest.importorskip("safetensors.torch")
    from model.exchange.huggingface import to_huggingface

    gpt = small_gpt2(vocab_size=600)
    to_huggingface(gpt, tmp_path / "model")
    with pytest.raises(ValueError, match=r"reads 600 tokens, and the tokenizer of the data is 'bytes' with 257 tokens"):
        start_from(gpt, str(tmp_path / "model"), byte_level())
