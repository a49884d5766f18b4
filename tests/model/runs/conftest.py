"""A run that the tests of this folder share."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def kept(trained, tmp_path):
    """A finished run of 12 steps with kept checkpoints."""
    return Path(shutil.copytree(trained("--checkpoints.keep_steps=[0,3,4,8,12,99]"), tmp_path / "kept"))
