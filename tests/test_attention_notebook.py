"""scripts/attention.ipynb runs from its first cell to its last, and its stored outputs are those of such a run."""

import json
import re

import pytest

from model.attention import CausalSelfAttention
from tests.notebooks import code_cells, run, text_of
from tests.programs import REPOSITORY

NUMBER = re.compile(r"\d+\.?\d*(?:e[+-]\d+)?")


@pytest.mark.slow
def test_the_stored_outputs_are_those_of_a_run(here, cache, monkeypatch):
    notebook = json.loads((REPOSITORY / "scripts/attention.ipynb").read_text(encoding="utf-8"))
    monkeypatch.setattr(CausalSelfAttention, "attend", CausalSelfAttention.attend)  # the last cell replaces it
    made = run(notebook)
    assert len(notebook["cells"]) <= 20 and len(made) == 10
    for outputs, cell in zip(made, code_cells(notebook), strict=True):
        assert [output["output_type"] for output in outputs] == [output["output_type"] for output in cell["outputs"]]
        text, stored = text_of(outputs), text_of(cell["outputs"])
        assert NUMBER.split(text) == NUMBER.split(stored)
        numbers = [float(number) for number in NUMBER.findall(stored)]
        assert [float(number) for number in NUMBER.findall(text)] == pytest.approx(numbers, rel=0.05, abs=0.02)
    assert list(here.glob("runs/debug*/report.html"))
