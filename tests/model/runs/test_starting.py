"""The name of a new run's folder, and the lock of a run."""

from pathlib import Path

import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from data.datamodule import TextDataModule
from model.runs.starting import new_run_dir, training_in
from model.training.module import GPTModule
from tests.command_lines import last_error, mistake, tells
from tests.watching import before_call


def test_a_new_run_is_named_after_its_config_and_the_time_and_never_uses_an_existing_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda _: "now")

    def created(name=None):
        """The name of the new folder."""
        trainer, files = Namespace(default_root_dir=str(tmp_path)), ["other.yaml", "configs/own.yaml"]
        folder = new_run_dir(Namespace(config=files, trainer=trainer, resume_or_start=False, name=name))
        assert folder.parent == tmp_path
        return folder.name

    assert [created() for _ in range(3)] == ["own-now", "own-now-2", "own-now-3"]
    with training_in(tmp_path / "own-now-2"):  # it is empty in the end
        pass
    assert created() == "own-now-2"
    with monkeypatch.context() as other_device:  # its process starts later, when the folder may exist
        other_device.setattr(rank_zero_only, "rank", 1)
        assert [created(), created("own-now")] == ["own-now-2", "own-now"]
    with monkeypatch.context() as other_node:
        other_node.setenv("NODE_RANK", "1")
        assert created("own-now") == "own-now"
    assert created("a") == "a"
    for name in ("own-now", "checkpoints", "attention", "../x", "..", "", "/tmp/x", "a/b"):
        with mistake("--name"):
            created(name)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "own-now", "own-now-2", "own-now-3"}


class Away(Callback):
    """Moves the run's folder during the second step."""

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == 1:
            Path("runs/run").rename("away")


def test_a_run_whose_folder_is_moved_ends_with_a_sentence_and_can_be_resumed_there(train, capsys):
    away = f"--trainer.callbacks={__name__}.Away"
    assert train("--name=run", away, "--trainer.val_check_interval=1", "--trainer.limit_val_batches=1") == 2
    assert tells(last_error(capsys), "runs/run")
    assert not [*Path("runs").rglob("*")]
    assert train("--resume=away", "--trainer.max_steps=3", "--trainer.callbacks=null") == 0


def test_what_a_config_names_outside_its_run_is_told_before_it_is_read_or_written(train, finished_run, caplog, here):
    config = finished_run / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["data"] |= {"files": ["my/a.txt", "../b.txt"], "cache_dir": str(here / "planted")}
    config.write_text(yaml.safe_dump(settings))
    checkpoint = finished_run / "checkpoints/last.ckpt"
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(b"damaged")
    assert train("--resume=runs/run", "--trainer.max_steps=13") == 2 and not Path("planted").exists()
    checkpoint.write_bytes(content)
    caplog.clear()
    told = []
    caplog.handler.addFilter(lambda record: Path("planted").exists() or not told.append(record.getMessage()))
    assert train("--resume=runs/run", "--trainer.max_steps=13") == 2
    assert len(told) == 2 and tells(" ".join(told), "data.files ../b.txt data.cache_dir") and "my/a.txt" not in told[0]
    told.clear()
    assert train("--resume=runs/run", "--data.files=c.txt", "--data.cache_dir=d") == 2 and not told


def test_a_run_that_is_trained_is_locked_and_cannot_be_resumed(train, finished_run, monkeypatch, capsys):
    """As another process sees it."""
    resume = "--resume=runs/run", "--trainer.max_steps=13"
    with training_in(finished_run):
        assert train(*resume) == 2 and tells(last_error(capsys), "runs/run")

    def refused(*_):
        with mistake("runs/run"), training_in(finished_run):
            pass

    before_call(monkeypatch.setattr, GPTModule, "training_step", refused)
    assert train(*resume) == 0
    with training_in(finished_run):
        pass


def test_a_repeated_job_leaves_alone_the_folder_of_a_run_that_tokenises(train, monkeypatch, capsys):
    job = ["--name=run", "--resume_or_start", "--recording.enabled=false", "--samples.max_new_tokens=0"]

    def repeat(*_, **__):
        assert train(*job, "--trainer.max_steps=77") == 2 and tells(capsys.readouterr().err, "training runs/run")
        assert [*Path("runs").rglob("*")] == [Path("runs/run")]

    before_call(monkeypatch.setattr, TextDataModule, "setup", repeat, 1)
    assert train(*job, "--trainer.max_steps=1") == 0
