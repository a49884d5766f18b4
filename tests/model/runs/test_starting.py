"""The name of a new run's folder, and the lock of a run."""

import os

import pytest
from jsonargparse import Namespace

from model.runs.starting import RunFolder, new_run_dir


def test_a_new_run_is_named_after_its_config_and_the_time_and_never_uses_an_existing_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("time.strftime", lambda _: "now")
    options = {
        "config": ["other.yaml", "configs/own.yaml"],
        "trainer": Namespace(default_root_dir=str(tmp_path), fast_dev_run=False),
        "resume_or_start": False,
    }
    run_dir = new_run_dir(Namespace(**options, name=None))
    assert run_dir == tmp_path / "own-now"
    run_dir.mkdir()
    with monkeypatch.context() as other_device:  # its process starts later, when the folder may exist
        other_device.setenv("LOCAL_RANK", "1")
        other_device.setattr("time.strftime", lambda _: "later")
        assert new_run_dir(Namespace(**options, name=None)) == run_dir
    named = Namespace(**options, name="own-now")
    with pytest.raises(ValueError, match=f"{tmp_path / 'own-now'} exists"):
        new_run_dir(named)
    assert new_run_dir(Namespace(**options, name="a")) == tmp_path / "a"


@pytest.mark.skipif(os.name != "posix", reason="folders are locked on POSIX only")
def test_a_folder_is_locked_until_its_run_ends(tmp_path):
    lock, other = RunFolder("", is_new=True), RunFolder("", is_new=True)
    lock.lock(tmp_path)
    with pytest.raises(ValueError, match=str(tmp_path)):
        other.lock(tmp_path)
    lock.unlock()
    other.lock(tmp_path)
    other.unlock()
