"""Everything that a run does stays on its device: tests/on_a_gpu.py, on GPUs that are pretended."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

from tests.small_runs import REPOSITORY


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="a pretended GPU needs g++")
@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has its own idea of a GPU")
@pytest.mark.parametrize(
    ("kind", "tests"),
    [("cuda", ""), ("mps", "tables or waits")],  # of Apple's differs the lack of float64, which one run shows
)
def test_everything_runs_on_a_gpu(kind, tests):
    command = [sys.executable, "-m", "pytest", "-x", "-p", "tests.pretended_gpu", "tests/on_a_gpu.py", "-k", tests]
    environment = os.environ | {"PRETENDED_GPU": kind}
    process = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-5000:]
