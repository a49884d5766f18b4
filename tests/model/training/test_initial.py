"""--model.init_from: a run starts from the weights of a trained model, with the loss that this model has."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from data.tokenizers import byte_level, train_bpe
from model.checkpoint import load_gpt
from model.gpt import GPT, GPTConfig
from model.training.initial import check_tokenizer, initial_config, start_from
from tests.gpts import GPT2, random_gpt, save_checkpoint
from tests.model.training.test_module import validation_nats
from tests.small_runs import REPOSITORY, metrics

SIZES = {"vocab_size": 257, "context_length": 32, "num_layers": 2, "num_heads": 2, "embed_dim": 16}


def small_gpt2(**options):
    return random_gpt(GPTConfig(**{**SIZES, **GPT2, **options}))


FINETUNED = """--data.tokenizer=bytes --data.cache_dir=cache --data.num_threads=1 --model.gpt.context_length=16
    --model.compile=false --trainer.accelerator=cpu --trainer.precision=32-true --trainer.max_steps=4
    --trainer.val_check_interval=8 --samples.max_new_tokens=4 --attention.probe_tokens=8 --wandb=disabled
    --name=run --model.init_from=model"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_a_run_begins_with_the_loss_of_the_model_and_resumes_without_it(small_text, here):
    pytest.importorskip("transformers")
    from model.exchange.huggingface import to_huggingface
    from train import main

    gpt = small_gpt2()
    to_huggingface(gpt, "model")
    config = REPOSITORY / "configs" / "finetune_gpt2.yaml"
    assert main([f"--config={config}", f"--data.files={small_text}", *FINETUNED.split()]) == 0
    rows = metrics("runs/run")
    per_token, _ = validation_nats(gpt, small_text, 16)
    assert rows[0]["step"] == "0" and float(rows[0]["val/loss"]) == pytest.approx(per_token, abs=1e-4)
    trained, _ = load_gpt("runs/run/checkpoints/last.ckpt")
    assert trained.config == GPTConfig(**{**SIZES, **GPT2, "context_length": 16, "dropout": 0.1})
    saved = yaml.safe_load(Path("runs/run/config.yaml").read_text())["model"]
    assert saved["init_from"] == "model" and saved["gpt"] == asdict(trained.config)
    Path("model").rename("gone")
    assert main(["--resume=runs/run", "--trainer.max_steps=5"]) == 0


def test_a_shorter_context_takes_the_beginning_of_the_positions(tmp_path):
    gpt = small_gpt2()
    save_checkpoint(tmp_path / "model.ckpt", gpt)
    chosen, given = GPTConfig(context_length=8, dropout=0.2), ["context_length", "dropout"]
    assert initial_config(str(tmp_path / "model.ckpt"), chosen, []) == gpt.config  # what is not given is the model's
    config = initial_config(str(tmp_path / "model.ckpt"), chosen, given)
    assert config.context_length == 8 and config.dropout == 0.2 and config.num_layers == 2
    shorter = random_gpt(config, seed=1)
    start_from(shorter, str(tmp_path / "model.ckpt"))
    tokens = torch.randint(257, (1, 8))
    torch.testing.assert_close(shorter(tokens), gpt(tokens))


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"num_layers": 3}, r"model\.gpt\.num_layers .*3.* 2"),
        ({"num_layers": 6}, r"model\.gpt\.num_layers .*6"),  # the default, but typed
        ({"logit_soft_cap": None, "window": None, "norm": "rmsnorm"}, r"model\.gpt\.norm .*rmsnorm"),
        ({"window": 4}, r"model\.gpt\.window .*4"),
        ({"context_length": 64}, r"context_length .*64.* 32"),
    ],
)
def test_what_the_model_has_cannot_be_chosen(chosen, message, tmp_path):
    save_checkpoint(tmp_path / "model.ckpt", small_gpt2())
    with pytest.raises(ValueError, match=message):
        initial_config(str(tmp_path / "model.ckpt"), GPTConfig(**{"context_length": 32, **chosen}), chosen.keys())


def test_null_is_a_choice_where_it_is_not_the_default(tmp_path):
    save_checkpoint(tmp_path / "model.ckpt", GPT(GPTConfig(vocab_size=257, embed_dim=12)))
    without_cap = GPTConfig(logit_soft_cap=None)
    with pytest.raises(ValueError, match=r"model\.gpt\.logit_soft_cap .*None.* 15\.0"):
        initial_config(str(tmp_path / "model.ckpt"), without_cap, ["logit_soft_cap"])
    assert initial_config(str(tmp_path / "model.ckpt"), without_cap, ["window"]).logit_soft_cap == 15
    save_checkpoint(tmp_path / "model.ckpt", GPT(GPTConfig(vocab_size=257, embed_dim=12, num_kv_heads=1)))
    open_number = SimpleNamespace(num_kv_heads=None)
    assert initial_config(str(tmp_path / "model.ckpt"), open_number, ["num_kv_heads"]).num_kv_heads == 1


def test_another_tokenizer_is_refused_by_its_tokens_and_where_a_model_has_none_by_their_number():
    tokenizer = train_bpe(["the cat and the hat and the rat " * 9], 265)
    own = tokenizer.to_dict()
    check_tokenizer(265, own | {"name": "another name of the same"}, tokenizer)
    others = [{"tokens": b"\1\0a"}, {"special_tokens": {"<|endoftext|>": 300}}, {"pattern": r"\S+|\s+"}]
    for other in (*others, byte_level().to_dict()):
        said = f"the tokens of its own '{other.get('name', 'bpe')}', .* another, 'bpe' with 265 tokens: leave out"
        with pytest.raises(ValueError, match=f"reads {said} --data.tokenizer"):
            check_tokenizer(265, own | other, tokenizer)
    for vocab_size in (257, 300):
        check_tokenizer(vocab_size, None, byte_level())
    for vocab_size in (256, 600):
        with pytest.raises(ValueError, match=f"{vocab_size} tokens.* 'bytes' .*257"):
            check_tokenizer(vocab_size, None, byte_level())


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_the_tokenizer_travels_with_the_model(small_options, small_text, here, monkeypatch, capsys):
    """From a run and from its exported folder, to other text; and to another model."""
    pytest.importorskip("transformers")
    from model.exchange import huggingface
    from scripts import convert_huggingface, evaluate
    from train import main

    Path("my.txt").write_text(small_text.read_text()[::-1])
    quiet = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--attention.enabled=false"]
    quiet += ["--samples.max_new_tokens=0", "--wandb=disabled"]
    own_text = [*quiet, "--data.files=my.txt", "--data.cache_dir=cache"]
    bpe = ["--data.tokenizer=bpe", "--data.vocab_size=300"]
    assert main([*small_options, *quiet, *bpe, "--name=own"]) == 0
    assert convert_huggingface.main(["export", "runs/own", "folder"]) == 0
    loaded, read_weights = [], huggingface.read_weights
    monkeypatch.setattr(huggingface, "read_weights", lambda folder: loaded.append(folder) or read_weights(folder))

    # Without --config: what stands in the default config is nobody's choice.
    assert main(["--model.init_from=runs/own", *own_text, "--name=from_run"]) == 0
    assert main(["--model.init_from=folder", *own_text, "--name=from_folder"]) == 0
    assert len(loaded) == 1
    capsys.readouterr()
    options = ["--checkpoint=runs/own", "--data.files=my.txt", "--split=validation", "--json"]
    assert evaluate.main(options) == 0
    expected = yaml.safe_load(capsys.readouterr().out)["nats_per_token"]
    for name in ("from_run", "from_folder"):
        first, *_ = metrics(f"runs/{name}")
        assert first["step"] == "0" and float(first["val/loss"]) == pytest.approx(expected, rel=1e-2)  # bfloat16

    # A bpe of the same size on other text is refused.
    assert main(["--model.init_from=folder", *own_text, *bpe, "--name=other"]) == 2
    assert "leave out --data.tokenizer" in capsys.readouterr().err.splitlines()[-1]

    # A new model takes it too.
    tokens = load_gpt("runs/own")[1]["tokenizer"]["tokens"]
    assert main([*small_options, *own_text, "--data.tokenizer=runs/own", "--name=new"]) == 0
    for name in ("from_run", "from_folder", "new"):
        assert load_gpt(f"runs/{name}")[1]["tokenizer"]["tokens"] == tokens
    Path("folder").rename("also gone")  # the checkpoint has the tokenizer
    assert main(["--resume=runs/from_folder", "--trainer.max_steps=3"]) == 0
    save_checkpoint(Path("bytes.ckpt"), GPT(GPTConfig(vocab_size=257)))
    assert main(["--resume=runs/from_run", "--data.tokenizer=./bytes.ckpt"]) == 2
    assert "another tokenizer" in capsys.readouterr().err.splitlines()[-1]
    Path("runs/own").rename("gone")
    assert main(["--resume=runs/from_run", "--trainer.max_steps=3"]) == 0


def test_the_weights_of_a_checkpoint_are_read_once(tmp_path):
    """Its sizes are known without them: a changed weight is noticed where the weights are taken."""
    path, gpt = tmp_path / "model.ckpt", small_gpt2()
    save_checkpoint(path, gpt)
    content, weight = path.read_bytes(), gpt.token_embedding.weight.detach().numpy().tobytes()
    path.write_bytes(content.replace(weight, bytes(len(weight))))
    assert initial_config(str(path), GPTConfig(context_length=8), []).embed_dim == 16
    with pytest.raises(ValueError, match="checksum"):
        start_from(gpt, str(path))
