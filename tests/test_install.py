"""What `pip install .` brings: the packages model and data with all they need, and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.small_runs import REPOSITORY


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_model_and_data_and_no_other(tmp_path):
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
