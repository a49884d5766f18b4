"""What a run is made of, what `pip install .` brings, and that a run opens no connection."""

import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.small_runs import REPOSITORY


def pinned(name: str) -> set[str]:
    """The name==version of each line, without extras and markers."""
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    found = [re.match(r"([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", line) for line in lines]
    return {f"{match[1].lower().replace('_', '-')}=={match[2]}" for match in found if match}


def test_the_lock_file_has_every_requirement_with_hashes():
    """After a change of a version, make lock."""
    locked = pinned("requirements.lock")
    for name in ("requirements.txt", "requirements-dev.txt"):
        assert pinned(name) and pinned(name) <= locked
    entries = re.split(r"\n(?=\S)", (REPOSITORY / "requirements.lock").read_text(encoding="utf-8").strip())
    assert len([entry for entry in entries if "==" in entry]) > 100
    for entry in entries:
        assert "--hash=sha256:" in entry, entry


@pytest.mark.slow
def test_a_run_attempts_no_connection(train, monkeypatch):
    """In this process; tests/stress/network.py watches those that it starts too."""
    attempts = []

    def refused(*address, **_):
        attempts.append(address)
        raise OSError("the network is off")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    assert train("--name=quiet") == 0
    assert attempts == []


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_model_and_data_and_no_other(tmp_path):
    """The packages model and data, with all they need."""
    pytest.importorskip("setuptools", minversion="77")
    clone = tmp_path / "clone"  # building leaves folders behind
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("model", "data", "tests", "scripts", "configs"):
        shutil.copytree(REPOSITORY / name, clone / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "train.py"):
        shutil.copy(REPOSITORY / name, clone)
    files = [path for folder in ("model", "data") for path in (clone / folder).rglob("*") if path.is_file()]
    build = "import setuptools.build_meta as backend; print(backend.build_wheel('..'))"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        archive.extractall(tmp_path / "installed")
    assert held == {path.relative_to(clone).as_posix() for path in files}
    assert {Path(name).suffix for name in held} == {".py", ".html", ".css", ".js", ".svg"}
    # Only the wheel's own copy can be found from here; the name of each module's file proves it.
    code = "import model.gpt, model.pages.template, data.tokenizers as t; print(model.gpt.__file__, t.__file__)"
    alone = {"cwd": tmp_path, "env": {"PYTHONPATH": str(tmp_path / "installed")}}
    imported = subprocess.run([sys.executable, "-c", code], **alone, check=True, capture_output=True, text=True)
    assert imported.stdout.split() == [f"{tmp_path}/installed/{name}.py" for name in ("model/gpt", "data/tokenizers")]
