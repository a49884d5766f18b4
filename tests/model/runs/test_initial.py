"""--model.init_from: a run starts from the weights, the tokenizer and so the loss of a trained model."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from data.tokenizers import byte_level
from model.checkpoint import load_gpt
from model.gpt import GPT, GPTConfig
from tests.command_lines import last_error, tells
from tests.gpts import CONFIGS, random_gpt, save_checkpoint
from tests.model.training.test_module import validation_nats
from tests.programs import REPOSITORY
from tests.small_runs import column
from train import main

SMALL_GPT2 = replace(CONFIGS["gpt2"], vocab_size=257, context_length=32)


FINETUNED = """--data.tokenizer=bytes --data.cache_dir=cache --model.gpt.context_length=16
    --model.compile=false --trainer.accelerator=cpu --trainer.precision=32-true --trainer.max_steps=4
    --trainer.val_check_interval=8 --samples.max_new_tokens=4 --recording.probe_tokens=8 --wandb=disabled
    --name=run --model.init_from=model"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_a_run_begins_with_the_loss_of_the_model_and_is_resumed_without_it(small_text, here, capsys):
    """Its context is shorter than the model's, so it uses the first positions. A longer one is refused."""
    pytest.importorskip("transformers")
    from model.exchange.huggingface import to_huggingface

    gpt = random_gpt(SMALL_GPT2)
    to_huggingface(gpt, "model", byte_level())
    options = [f"--config={REPOSITORY}/configs/finetune_gpt2.yaml", f"--data.files={small_text}", *FINETUNED.split()]
    assert main([*options, "--name=long", "--model.gpt.context_length=64"]) == 2
    assert tells(last_error(capsys), "model.gpt.context_length 64 32")
    Path("model/tokenizer.json").unlink()  # then --data.tokenizer names it
    assert main(options) == 0
    per_token, *_ = validation_nats(gpt, small_text, 16)
    assert column("runs/run", "val/loss")[0] == pytest.approx(per_token, abs=1e-4)
    trained, _ = load_gpt("runs/run/checkpoints/last.ckpt")
    assert trained.config == replace(SMALL_GPT2, context_length=16, dropout=0.1)
    saved = yaml.safe_load(Path("runs/run/config.yaml").read_text())["model"]
    assert saved["init_from"] == "model" and saved["gpt"] == asdict(trained.config)
    Path("model").rename("gone")
    assert main(["--resume=runs/run", "--trainer.max_steps=5"]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_the_tokenizer_travels_with_the_model(small_options, small_text, here, capsys):
    """From a run and from its exported folder to a run on other text, and to a run with a new model."""
    pytest.importorskip("transformers")
    from scripts import convert_huggingface

    Path("my.txt").write_text(small_text.read_text()[::-1])
    quiet = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--recording.enabled=false"]
    quiet += ["--samples.max_new_tokens=0", "--wandb=disabled"]
    own_text = [*quiet, "--data.files=my.txt", "--data.cache_dir=cache"]
    bpe = ["--data.tokenizer=bpe", "--data.vocab_size=300"]
    assert main([*small_options, *quiet, *bpe, "--name=own"]) == 0
    assert convert_huggingface.main(["export", "runs/own", "folder"]) == 0
    # Without --config: the options of the default config are not the user's choice.
    for source in ("runs/own", "folder"):
        assert main([f"--model.init_from={source}", *own_text, f"--name=from_{Path(source).name}"]) == 0
    assert main([*small_options, *own_text, "--data.tokenizer=runs/own", "--name=new"]) == 0
    own, described = load_gpt("runs/own")
    for name in ("from_own", "from_folder", "new"):
        gpt, description = load_gpt(f"runs/{name}")
        assert description["tokenizer"] == described["tokenizer"] and (gpt.config == own.config) >= (name != "new")
    # A BPE tokenizer of the same size trained on other text is refused.
    save_checkpoint(Path("bytes.ckpt"), GPT(GPTConfig(vocab_size=257)))
    resumed = ["--resume=runs/from_own", "--data.tokenizer=./bytes.ckpt"]
    for options in (resumed, ["--model.init_from=folder", *own_text, *bpe]):
        assert main(options) == 2 and "--data.tokenizer" in last_error(capsys)
    Path("folder").rename("gone")  # the checkpoint holds the tokenizer
    assert main(["--resume=runs/from_folder", "--trainer.max_steps=3"]) == 0
