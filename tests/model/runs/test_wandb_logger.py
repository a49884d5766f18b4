"""What is logged to Weights & Biases, read from the files of an offline run, and when it is online or offline."""

import json
import os
import struct
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.image import imread

from model.inspection.archive import AttentionArchive
from model.inspection.heads import SCORES
from model.pages.images import mosaic_pixels, score_pixels
from model.runs.wandb_logger import WandbLogger, wandb_loggers, wandb_mode


@pytest.fixture(autouse=True)
def not_logged_in(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def records(path: Path) -> list:
    """Everything in a .wandb file: a header, then chunks (checksum, length, kind) in blocks, as in LevelDB."""
    internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    content, place, found, parts = path.read_bytes(), 7, [], []
    while place + 7 <= len(content):
        if (room := 32768 - place % 32768) < 7:
            place += room
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        parts.append(content[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or its last part
            found.append(internal.Record.FromString(b"".join(parts)))
            parts = []
    return found


def logged(found: list) -> dict[int, dict]:
    """What was logged, by step: numbers by name, and paths of files by the name of what they show."""
    steps = {}
    for record in found:
        if record.WhichOneof("record_type") == "history":
            items = {tuple(item.nested_key) or (item.key,): json.loads(item.value_json) for item in record.history.item}
            named = {name: value for (name, *rest), value in items.items() if rest in ([], ["path"])}
            steps.setdefault(named["_step"], {}).update(named)
    return steps


@pytest.mark.slow
def test_an_offline_run_holds_metrics_pictures_the_page_and_the_maps(train, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    options = ["--trainer.max_steps=2", "--trainer.val_check_interval=2", "--wandb=offline", "--name=run"]
    assert train(*options) == 0
    [folder] = Path("runs/run/wandb").glob("offline-run-*")
    [file] = folder.glob("*.wandb")
    found = records(file)
    steps = logged(found)
    archive = AttentionArchive.open(Path("runs/run/attention"))
    assert sorted(steps) == archive.steps == [0, 1, 2]

    for snapshot in archive.snapshots:
        row = steps[snapshot.step]
        assert row["attention/fidelity"] == pytest.approx(snapshot.fidelity)
        pictures = {"attention/maps": mosaic_pixels(archive.maps(snapshot.step)["text"])}
        for name in SCORES:
            assert row[f"attention/{name}/layer_1"] == pytest.approx(snapshot.scores[name][1].max(), abs=1e-4)
            pictures[f"attention/{name}/heads"] = score_pixels(snapshot.scores[name])
        for name, pixels in pictures.items():
            shown = imread(folder / "files" / row[name])
            np.testing.assert_allclose(shown * 255, pixels, atol=1.01)

    page = (folder / "files" / steps[2]["attention/page"]).read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and "wandb" not in page and 'id="block-0"' in page
    [artifact] = [record.artifact for record in found if record.WhichOneof("record_type") == "artifact"]
    kept = {entry.path for entry in artifact.manifest.contents}
    assert artifact.type == "attention-maps"
    assert kept >= {"probe.json", "scores.jsonl", *(archive.path(step).name for step in archive.steps)}


def test_weights_and_biases_is_offline_unless_the_person_is_logged_in(tmp_path, monkeypatch):
    assert wandb_mode("auto") == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert wandb_mode("auto") == "online"
    assert wandb_mode("offline") == "offline"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode("auto") == "disabled"


@pytest.mark.parametrize(
    ("mode", "starts_with"), [("online", "train/loss"), ("offline", "val/loss"), ("disabled", None)]
)
def test_a_mode_says_when_weights_and_biases_starts_and_whether_it_connects(monkeypatch, tmp_path, mode, starts_with):
    started, rows = [], []
    run = SimpleNamespace(log=lambda row, step: rows.append((step, row)), finish=lambda exit_code: None)
    fake = SimpleNamespace(init=lambda **options: started.append(options["mode"]) or run, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_ERROR_REPORTING", raising=False)
    logger = WandbLogger(tmp_path, mode=mode)
    logged = [(1, {"train/loss": 2.0}), (2, {"val/loss": 1.0})]
    for step, row in logged:
        logger.log_metrics(row, step=step)
        assert started == ([mode] if starts_with in row or rows else [])
    logger.finalize("success")
    assert rows == ([] if mode == "disabled" else logged)
    assert os.environ.get("WANDB_ERROR_REPORTING") == ("false" if mode == "offline" else None)


def test_a_key_for_another_server_does_not_count(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine example.org login user password secret\n")
    assert wandb_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert wandb_mode("auto") == "online"


def test_an_error_in_weights_and_biases_costs_one_warning(tmp_path, monkeypatch, caplog):
    logger = WandbLogger(tmp_path, mode="offline")
    monkeypatch.setattr(logger, "_start", lambda wandb: 1 / 0)
    logger.log_metrics({"val/loss": 1.0}, step=1)
    logger.log_metrics({"val/loss": 1.0}, step=2)
    logger.finalize("success")
    assert caplog.text.count("continues without it") == 1


def test_weights_and_biases_may_die_before_it_is_finished(tmp_path, caplog):
    logger = WandbLogger(tmp_path, mode="offline")
    logger.run = SimpleNamespace(finish=lambda exit_code: 1 / 0)
    logger.finalize("success")
    assert caplog.text.count("continues without it") == 1


def test_offline_files_are_in_the_run_folder_under_one_id(tmp_path):
    for step in (1, 2):
        logger = WandbLogger(tmp_path, mode="offline", config={"seed": 1})
        logger.log_metrics({"train/loss": 1.0}, step=step)
        assert logger.run is None  # not started yet
        logger.log_metrics({"val/loss": 1.0}, step=step)
        assert logger.run is not None
        logger.finalize("success")
    run_id = (tmp_path / "wandb" / "run_id").read_text()
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*{run_id}*"))) >= 1
    assert len({path.name.split("-")[3] for path in (tmp_path / "wandb").glob("offline-run-*")}) == 1


@pytest.fixture
def service(monkeypatch):
    """In place of Weights & Biases: what it was asked to do."""
    asked = []

    def init(**options):
        asked.append(("init", options))

        def note(name):
            return lambda *given, **named: asked.append((name, *given, named))

        return SimpleNamespace(id=options["id"], log=note("log"), finish=note("finish"))

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Settings=lambda **settings: settings))
    for name in ("WANDB_PROJECT", "WANDB_ERROR_REPORTING"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    return asked


def test_offline_it_starts_with_the_first_validation_and_gets_what_was_logged_before(service, tmp_path):
    logger = WandbLogger(tmp_path, mode="offline")
    logger.log_metrics({"lr": 1.0}, step=1)
    logger.log_metrics({"lr": 2.0}, step=2)
    assert not service
    logger.log_metrics({"val/loss": 3.0}, step=2)
    logger.log_metrics({"lr": 4.0}, step=3)
    logger.finalize("success")
    assert [name for name, *_ in service] == ["init", *["log"] * 4, "finish"]
    logged = [({"lr": 1.0}, 1), ({"lr": 2.0}, 2), ({"val/loss": 3.0}, 2), ({"lr": 4.0}, 3)]
    assert service[1:-1] == [("log", figures, {"step": step}) for figures, step in logged]
    assert service[-1] == ("finish", {"exit_code": 0})


@pytest.mark.parametrize(("status", "starts"), [("success", True), ("failed", False)])
def test_a_run_without_validation_is_kept_only_if_it_ends_well(service, tmp_path, status, starts):
    logger = WandbLogger(tmp_path, mode="offline")
    logger.log_metrics({"lr": 1.0}, step=1)
    logger.finalize(status)
    assert [name for name, *_ in service] == (["init", "log", "finish"] if starts else [])
    assert (tmp_path / "wandb").exists() == starts
    logger = WandbLogger(tmp_path, mode="online")
    logger.log_metrics({"lr": 1.0}, step=1)
    logger.finalize(status)
    logger.finalize(status)  # has ended
    assert service[-1] == ("finish", {"exit_code": 0 if starts else 1})


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_run_is_named_after_its_folder_and_continued_under_its_id(service, tmp_path, monkeypatch, mode):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        logger = WandbLogger(Path("runs/a"), mode=mode, config={"seed": 1})
        logger.log_metrics({"val/loss": 1.0}, step=1)
        logger.finalize("success")
        assert os.environ.get("WANDB_ERROR_REPORTING") == (None if mode == "online" else "false")
        monkeypatch.setenv("WANDB_PROJECT", "own")
    first, second = (options for name, options, *_ in service if name == "init")
    assert first["id"] == second["id"] and len(first["id"]) == 8
    assert [first["resume"], second["resume"]] == [None, "allow" if mode == "online" else None]
    assert [first["project"], second["project"]] == ["glassgpt", "own"]
    assert first["name"] == "a" and first["mode"] == mode and first["config"] == {"seed": 1}
    assert Path(first["dir"]) == tmp_path / "runs" / "a"
    assert first["settings"]["console"] == "off" and first["settings"]["silent"]


def test_disabled_it_does_nothing(service, tmp_path):
    disabled, offline = (WandbLogger(tmp_path, mode=mode) for mode in ("disabled", "offline"))
    disabled.log_metrics({"val/loss": 1.0}, step=1)
    disabled.finalize("success")
    assert not service and not list(tmp_path.iterdir())
    assert wandb_loggers(SimpleNamespace(loggers=[disabled, None, offline])) == [offline]


@pytest.mark.parametrize("place", ["NETRC", "~/.netrc", "~/_netrc"])
def test_a_key_is_looked_for_where_wandb_looks(tmp_path, monkeypatch, place):
    """HOME is tmp_path here. A file that is damaged is as good as none."""
    path = tmp_path / "elsewhere" if place == "NETRC" else Path(place).expanduser()
    path.parent.mkdir(exist_ok=True)
    monkeypatch.setenv("NETRC", str(tmp_path / "elsewhere"))
    path.write_text("machine")
    assert wandb_mode("auto") == "offline"
    monkeypatch.setenv("WANDB_BASE_URL", "https://own.example.org/api")
    path.write_text("machine own.example.org login user password secret\n")
    assert wandb_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "dryrun")  # an old name; it is none of ours
    assert wandb_mode("auto") == "online"
