"""Fixtures for the tests of model/."""

import pytest
import torch

from tests.gpts import CONFIGS, random_gpt


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    """Seeds PyTorch, so that a test draws the same numbers whichever tests ran before."""
    torch.manual_seed(0)


@pytest.fixture(params=CONFIGS)
def each_gpt(request):
    """A random GPT of each architecture."""
    return random_gpt(CONFIGS[request.param])
