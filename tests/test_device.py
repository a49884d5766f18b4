"""Runs tests/on_a_gpu.py on pretended GPUs: everything that a run does must stay on its device."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from tests.small_runs import REPOSITORY


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="a pretended GPU needs g++")
@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch is built for a real GPU")
@pytest.mark.parametrize(
    "kind, tests",
    [("cuda", "not GPT"), ("mps", "GPT")],  # mps differs only by its lack of float64, which one run shows
)
def test_everything_runs_on_a_gpu(kind, tests):
    command = [sys.executable, "-m", "pytest", "-x", "-p", "tests.pretended_gpu", "tests/on_a_gpu.py", "-k", tests]
    environment = os.environ | {"PRETENDED_GPU": kind}
    process = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-5000:]
