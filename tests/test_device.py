"""Runs tests/on_a_gpu.py on pretended GPUs: everything that a run does must stay on its device."""

import shutil

import pytest
import torch

from tests import programs
from tests.programs import REPOSITORY


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="a pretended GPU needs g++")
@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch is built for a real GPU")
@pytest.mark.parametrize(
    "kind, tests",
    [("cuda", "tables or waits"), ("mps", "GPT")],  # mps differs only by its lack of float64, which one run shows
)
def test_everything_runs_on_a_gpu(kind, tests):
    plugin = ["-p", "tests.pretended_gpu", "tests/on_a_gpu.py"]
    programs.run("-m", "pytest", "-x", *plugin, "-k", tests, cwd=REPOSITORY, env={"PRETENDED_GPU": kind})
