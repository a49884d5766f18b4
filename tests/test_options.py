"""Every option has an effect: another value changes what a run computes, writes or reads, or is refused."""

import dataclasses
import importlib
import inspect
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
import torch

from data.corpora import CorpusOptions
from data.datamodule import TextDataModule
from model.gpt import GPT, GPTConfig
from model.runs.recorder import Recorder, Samples
from model.training.optimizer import OptimizerConfig, build_optimizer
from model.training.schedule import ScheduleConfig, learning_rate_factor
from tests.command_lines import call
from tests.gpts import loss_of
from tests.programs import REPOSITORY

TINY = {"vocab_size": 40, "context_length": 12, "num_layers": 2, "num_heads": 4, "embed_dim": 16, "ngram_sizes": [3]}
TINY |= {"position": "learned", "bias": True}  # without which context_length and vector_learning_rate have no effect
STEPS = 4

# Another value for each option.
GPT_OPTIONS = {
    "vocab_size": 48, "context_length": 16, "num_layers": 3, "num_heads": 2, "embed_dim": 32, "num_kv_heads": 2,
    "feed_forward_dim": 24, "position": "rotary", "norm": "layernorm", "embedding_norm": False, "window": 3,
    "activation": "swiglu", "bias": False, "tie_embeddings": True, "qk_norm": False, "value_embeddings": True,
    "ngram_sizes": [2, 3], "ngram_buckets": 64, "logit_soft_cap": 2.0, "dropout": 0.5, "init": "gpt2",
}  # fmt: skip
OPTIMIZER_OPTIONS = {
    "algorithm": "adamw", "learning_rate": 0.1, "lm_head_learning_rate": 0.1, "matrix_learning_rate": 0.1,
    "rate_scale": 2.0, "vector_learning_rate": 0.1, "table_learning_rate": 0.1, "weight_decay": 0.5,
    "betas": (0.5, 0.5), "epsilon": 1.0, "momentum": 0.5,
}  # fmt: skip
SCHEDULE_OPTIONS = {"warmup_steps": 3, "decay": "cosine", "decay_fraction": 0.5, "final_factor": 0.5}
MODEL = {
    "gpt": (GPTConfig, GPT_OPTIONS),
    "optimizer": (OptimizerConfig, OPTIMIZER_OPTIONS),
    "schedule": (ScheduleConfig, SCHEDULE_OPTIONS),
}


def trained_losses(gpt=None, optimizer=None, schedule=None):
    """The losses of a few training steps on the same random tokens."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**TINY | (gpt or {})))
    updates = build_optimizer(model, OptimizerConfig(**optimizer or {}))
    tokens = torch.randint(40, (STEPS, 4, 13), generator=torch.Generator().manual_seed(1))
    losses = []
    for step, batch in enumerate([*tokens, tokens[0]]):
        loss = loss_of(model, batch[:, :-1], batch[:, 1:])
        losses.append(loss.item())
        updates.zero_grad()
        loss.backward()
        for group in updates.param_groups:
            group["lr"] = group["initial_lr"] * learning_rate_factor(step, STEPS + 2, ScheduleConfig(**schedule or {}))
        updates.step()
    return losses


@pytest.mark.parametrize("kind", MODEL)
def test_every_option_of_model_changes_the_training(kind):
    config, options = MODEL[kind]
    assert {field.name for field in dataclasses.fields(config)} == set(options)  # a new option needs a value above
    usual = trained_losses()
    for name, value in options.items():
        assert usual != trained_losses(**{kind: {name: value}}), f"model.{kind}.{name} changes nothing"
    assert usual == trained_losses()


FOLDER = {"files": None, "dataset": "folder"}
DATA_OPTIONS = {
    "corpus": {"corpus": "files", "files": "words.txt"}, "files": "other.txt", "validation_files": "other.txt",
    "validation_fraction": 0.3, "max_tokens": 2000, "tokenizer": "bpe", "vocab_size": 290,
    "context_length": 20, "batch_size": 5, "validation_batch_size": 7, "repeat_fraction": 0.9,
    "repeat_from": 2, "repeat_until": 0, "random_repeat_fraction": 0.9,
    "document_masking": True, "seed": 3,
    # Options of tables and of data sets of the Hub, which tests/data reads.
    "dataset": FOLDER, "dataset_config": "x", "dataset_split": "test", "dataset_validation_split": "test",
    "dataset_revision": "x", "text_column": "x", "streaming": True, "quotes": False,
    # This one does not change what is read, but where its tokens are.
    "cache_dir": "elsewhere",
}  # fmt: skip
NEEDED_DATA = {
    "corpus": {"files": None, "corpus": "repetitions"},
    "tokenizer": {"vocab_size": 300},
    "vocab_size": {"tokenizer": "bpe", "vocab_size": 270},
    "text_column": FOLDER,
    "quotes": {"files": "quoted.csv"},
    "repeat_from": {"repeat_fraction": 0.9},
    "repeat_until": {"repeat_fraction": 0.9},
    "streaming": FOLDER | {"max_tokens": 100},
    **{name: FOLDER for name in DATA_OPTIONS if name.startswith("dataset_")},
}


def what_is_read(**options):
    """Returns the folder of the tokens and the first batch of each split, or the message that refuses the options."""
    try:
        data = TextDataModule(**{"files": "words.txt", "tokenizer": "bytes", "cache_dir": "cache"} | options)
        if options.get("dataset"):
            return data.cache.folder
        data.setup()
        batches = [next(iter(loader)) for loader in (data.train_dataloader(), data.val_dataloader())]
        return data.cache.folder.parent, [{name: x.tolist() for name, x in batch.items()} for batch in batches]
    except (ValueError, OSError) as error:
        return str(error)


def test_every_option_of_data_changes_what_is_read(here, small_text):
    Path("words.txt").write_text(small_text.read_text().replace("word", "word\n\n"))
    Path("other.txt").write_text(small_text.read_text()[::-1])
    Path("quoted.csv").write_text("text\n" + '"a word"\n' * 100)
    Path("folder").mkdir()
    Path("folder/train.jsonl").write_text('{"text": "a text"}\n' * 20)
    own = inspect.signature(TextDataModule).parameters.keys() - {"corpus_options"}
    missing = (own | {option.name for option in dataclasses.fields(CorpusOptions)}) ^ DATA_OPTIONS.keys()
    assert not missing, f"write into DATA_OPTIONS a value that changes what is read, or remove: {missing}"
    usual = {}
    for name, value in DATA_OPTIONS.items():
        needed, change = NEEDED_DATA.get(name, {}), value if isinstance(value, dict) else {name: value}
        key = json.dumps(needed)
        usual[key] = usual.get(key) or what_is_read(**needed)
        assert usual[key] != what_is_read(**needed | change), f"data.{name} changes nothing"
    assert what_is_read() == usual["{}"]


# Options of samples and maps. The tests of a feature have its other options.
RUN_OPTIONS = {
    "samples.max_new_tokens": 3, "samples.prompt": "the ", "samples.temperature": 0.0, "samples.top_k": 1,
    "recording.enabled": False, "recording.probe_tokens": 7, "recording.probe_text": "another text",
    "recording.every_n_steps": 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("no_pages")
def test_every_option_of_a_run_changes_what_it_leaves(train):
    """Trains a run for each option; two steps are enough to record, to draw and to sample."""
    groups = ("samples", Samples), ("recording", Recorder)
    fields = [(group, field) for group, config in groups for field in dataclasses.fields(config)]
    assert {f"{group}.{field.name}" for group, field in fields if field.init} == RUN_OPTIONS.keys()
    short = {"trainer.max_steps": 2, "trainer.val_check_interval": 2, "samples.max_new_tokens": 2}
    short["model.gpt.num_layers"] = 1

    def what_is_left(name, **options):
        """The samples and scores of a run."""
        assert train(f"--name={name}", *(f"--{option}={value}" for option, value in (short | options).items())) == 0
        return [path.read_bytes() for path in sorted(Path("runs", name).glob("**/s*.jsonl"))]

    usual = what_is_left("usual")
    assert what_is_left("again") == usual
    for name, value in RUN_OPTIONS.items():
        assert what_is_left(name, **{name: value}) != usual, f"{name} changes nothing"


@pytest.mark.filterwarnings("ignore:'scripts.* found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("script", ["generate", "inspect_attention", "walk", "evaluate", "compare"])
def test_every_option_of_a_script_is_explained(script, module, monkeypatch, capsys):
    """Both as `python scripts/x.py` and as `python -m scripts.x`."""
    monkeypatch.setattr("sys.argv", [script, "--help"])
    with pytest.raises(SystemExit):
        if module:
            runpy.run_module(f"scripts.{script}", run_name="__main__")
        else:  # Python then imports from the script's folder, not from the root
            monkeypatch.setattr("sys.path", [place for place in sys.path if Path(place).resolve() != REPOSITORY])
            runpy.run_path(str(REPOSITORY / "scripts" / f"{script}.py"), run_name="__main__")
    shown = capsys.readouterr().out
    options = re.findall(r"^ +(?:-h, )?--([\w.]+)", shown, re.MULTILINE)
    assert len(options) > 4
    for option in options:
        assert re.search(rf"--{option}\b[^\n]*(\n\s+|\s\s+)\w", shown), option


def shrunk(program, arguments, small_options, name):
    """The same command with short texts, a run of two steps and a context of 16. The last of equal options counts."""
    arguments = ["runs/run" if part.startswith("runs/") else part for part in arguments]
    smaller = {"--prompt": "the", "--max_new_tokens": "5", "--stride": "8"}
    arguments += [part for option in smaller.keys() & {*arguments} for part in (option, smaller[option])]
    if program != "train.py" or "--resume" in arguments:
        return arguments
    if "--config" in arguments:
        del arguments[(given := arguments.index("--config")) : given + 2]
    return [*small_options, *arguments, "--trainer.max_steps=2", f"--name={name}"]


@pytest.mark.slow
def test_every_command_of_the_readme_works(finished_run, small_options, small_text, capsys):
    """With small configs, and a small run in place of runs/NAME."""
    Path("my").mkdir()
    Path("my/own.txt").write_text(small_text.read_text())
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"(?:^|`)python ((?:train|scripts/\w+)\.py[^`\n]*)", text, re.MULTILINE)
    commands = dict.fromkeys(command.split("  #")[0].split(";")[0].strip() for command in found)  # not comments
    assert len(commands) >= 8
    for number, command in enumerate(commands):
        program, *arguments = shlex.split(command)
        main = importlib.import_module(program.removesuffix(".py").replace("/", ".")).main
        status, _, said = call(main, capsys, *shrunk(program, arguments, small_options, f"command-{number}"))
        assert status == 0, f"{command}\n{said}"
