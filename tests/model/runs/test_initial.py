"""--model.init_from: a run starts from the weights, the tokenizer and so the loss of a trained model."""

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from jsonargparse import Namespace

from data.tokenizers import byte_level
from model.checkpoint import load_gpt
from model.gpt import GPT, GPTConfig
from model.runs.command_line import trained_model
from model.training.module import GPTModule
from model.training.optimizer import OptimizerConfig
from model.training.schedule import ScheduleConfig
from tests.command_lines import tells
from tests.gpts import CONFIGS, random_gpt, save_checkpoint
from tests.model.training.test_module import validation_nats
from tests.small_runs import REPOSITORY, column
from train import build_parser, main

SMALL_GPT2 = replace(CONFIGS["gpt2"], vocab_size=257, context_length=32)


FINETUNED = """--data.tokenizer=bytes --data.cache_dir=cache --data.num_threads=1 --model.gpt.context_length=16
    --model.compile=false --trainer.accelerator=cpu --trainer.precision=32-true --trainer.max_steps=4
    --trainer.val_check_interval=8 --samples.max_new_tokens=4 --attention.probe_tokens=8 --wandb=disabled
    --name=run --model.init_from=model"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_a_run_begins_with_the_loss_of_the_model_and_is_resumed_without_it(small_text, here):
    pytest.importorskip("transformers")
    from model.exchange.huggingface import to_huggingface

    gpt = random_gpt(SMALL_GPT2)
    to_huggingface(gpt, "model", byte_level())
    config = REPOSITORY / "configs" / "finetune_gpt2.yaml"
    assert main([f"--config={config}", f"--data.files={small_text}", *FINETUNED.split()]) == 0
    per_token, _ = validation_nats(gpt, small_text, 16)
    assert column("runs/run", "val/loss")[0] == pytest.approx(per_token, abs=1e-4)
    trained, _ = load_gpt("runs/run/checkpoints/last.ckpt")
    assert trained.config == replace(SMALL_GPT2, context_length=16, dropout=0.1)
    saved = yaml.safe_load(Path("runs/run/config.yaml").read_text())["model"]
    assert saved["init_from"] == "model" and saved["gpt"] == asdict(trained.config)
    Path("model").rename("gone")
    assert main(["--resume=runs/run", "--trainer.max_steps=5"]) == 0


def started(folder: Path, trained: GPT, *given: str, **chosen) -> GPT:
    """The model of a run that starts from `trained`. The user has `given` these options; all others are left out."""
    save_checkpoint(folder / "model.ckpt", trained)
    network = build_parser().get_defaults().model.gpt
    network.update(Namespace(context_length=32))
    network.update(Namespace(**chosen))
    parts = {"gpt": network, "init_from": str(folder / "model.ckpt")}
    config = Namespace(model=Namespace(**parts), data=Namespace(tokenizer="named"))
    glass = trained_model(config, [f"model.gpt.{name}" for name in given])
    assert config.data.tokenizer is None
    module = GPTModule(GPTConfig(**network.as_dict()), OptimizerConfig(), ScheduleConfig(), compile=False)
    module.trained = glass
    options = {"accumulate_grad_batches": 1, "world_size": 1, "gradient_clip_val": None}
    options |= {"strategy": SimpleNamespace(root_device=torch.device("cpu"))}
    module.trainer = SimpleNamespace(datamodule=SimpleNamespace(tokenizer=glass.tokenizer), **options)
    module.configure_model()
    return module.gpt.eval()


def test_a_shorter_context_uses_the_first_positions(tmp_path):
    gpt = random_gpt(SMALL_GPT2)
    # Options that the user has not given are the model's.
    assert started(tmp_path, gpt, context_length=8, dropout=0.2).config == gpt.config
    shorter = started(tmp_path, gpt, "context_length", "dropout", context_length=8, dropout=0.2)
    assert shorter.config == replace(gpt.config, context_length=8, dropout=0.2)
    tokens = torch.randint(257, (1, 8))
    torch.testing.assert_close(shorter(tokens), gpt(tokens))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"num_layers": 2}, r"model\.gpt\.num_layers .*2.* 3"),
        ({"num_layers": 6}, r"model\.gpt\.num_layers .*6"),  # the default, but the user has typed it
        ({"logit_soft_cap": None, "window": None, "norm": "rmsnorm"}, r"model\.gpt\.norm .*rmsnorm"),
        ({"window": 4}, r"model\.gpt\.window .*4"),
        ({"context_length": 64}, r"context_length .*64.* 32"),
    ],
)
def test_other_options_of_the_network_cannot_be_changed(chosen, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        started(tmp_path, random_gpt(SMALL_GPT2), *chosen, **chosen)


def test_null_is_refused_only_where_it_is_not_the_default(tmp_path):
    sizes = {"vocab_size": 257, "embed_dim": 12}
    with pytest.raises(ValueError, match=r"model\.gpt\.logit_soft_cap .*None.* 15\.0"):
        started(tmp_path, GPT(GPTConfig(**sizes)), "logit_soft_cap", logit_soft_cap=None)
    assert started(tmp_path, GPT(GPTConfig(**sizes)), "window", logit_soft_cap=None).config.logit_soft_cap == 15
    assert started(tmp_path, GPT(GPTConfig(**sizes, num_kv_heads=1)), "num_kv_heads").config.num_kv_heads == 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_the_tokenizer_travels_with_the_model(small_options, small_text, here, monkeypatch, capsys):
    """From a run and from its exported folder to a run on other text, and to a run with a new model."""
    pytest.importorskip("transformers")
    from model.exchange import huggingface
    from scripts import convert_huggingface, evaluate

    Path("my.txt").write_text(small_text.read_text()[::-1])
    quiet = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--attention.enabled=false"]
    quiet += ["--samples.max_new_tokens=0", "--wandb=disabled"]
    own_text = [*quiet, "--data.files=my.txt", "--data.cache_dir=cache"]
    bpe = ["--data.tokenizer=bpe", "--data.vocab_size=300"]
    assert main([*small_options, *quiet, *bpe, "--name=own"]) == 0
    assert convert_huggingface.main(["export", "runs/own", "folder"]) == 0
    loaded, read_weights = [], huggingface.read_weights
    monkeypatch.setattr(huggingface, "read_weights", lambda folder: loaded.append(folder) or read_weights(folder))

    # Without --config: the options of the default config are not the user's choice.
    assert main(["--model.init_from=runs/own", *own_text, "--name=from_run"]) == 0
    assert main(["--model.init_from=folder", *own_text, "--name=from_folder"]) == 0
    assert len(loaded) == 1
    capsys.readouterr()
    options = ["--checkpoint=runs/own", "--data.files=my.txt", "--split=validation", "--json"]
    assert evaluate.main(options) == 0
    expected = yaml.safe_load(capsys.readouterr().out)["nats_per_token"]
    for name in ("from_run", "from_folder"):
        assert column(f"runs/{name}", "val/loss")[0] == pytest.approx(expected, rel=1e-2)  # bfloat16

    # A BPE tokenizer of the same size trained on other text is refused.
    assert main(["--model.init_from=folder", *own_text, *bpe, "--name=other"]) == 2
    assert tells(capsys.readouterr().err.splitlines()[-1], "--data.tokenizer")

    # A new model can use the tokenizer too.
    tokens = load_gpt("runs/own")[1]["tokenizer"]["tokens"]
    assert main([*small_options, *own_text, "--data.tokenizer=runs/own", "--name=new"]) == 0
    for name in ("from_run", "from_folder", "new"):
        assert load_gpt(f"runs/{name}")[1]["tokenizer"]["tokens"] == tokens
    Path("folder").rename("also gone")  # the checkpoint holds the tokenizer
    assert main(["--resume=runs/from_folder", "--trainer.max_steps=3"]) == 0
    save_checkpoint(Path("bytes.ckpt"), GPT(GPTConfig(vocab_size=257)))
    assert main(["--resume=runs/from_run", "--data.tokenizer=./bytes.ckpt"]) == 2
    assert "tokenizer" in capsys.readouterr().err.splitlines()[-1]
    Path("runs/own").rename("gone")
    assert main(["--resume=runs/from_run", "--trainer.max_steps=3"]) == 0
