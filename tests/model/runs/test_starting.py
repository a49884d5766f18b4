"""The name of a new run's folder, and the lock of a run."""

import os
import signal

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
def test_a_loader_process_that_outlives_a_run_does_not_hold_its_lock(tmp_path):
    lock = RunFolder("", is_new=True)
    lock.lock(tmp_path)
    started, starts = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(starts, b"x")
        signal.pause()
    try:
        os.read(started, 1)
        with pytest.raises(ValueError, match=str(tmp_path)):
            RunFolder("", is_new=True).lock(tmp_path)
        lock.unlock()
        RunFolder("", is_new=True).lock(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
