"""Shared by the tests of the network."""

import pytest
import torch


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    """A test draws the same numbers whichever tests ran before it."""
    torch.manual_seed(0)
