"""Runs a notebook without Jupyter and keeps what it prints and draws.

python -m tests.notebooks scripts/attention.ipynb     runs the notebook and writes the outputs into it
"""

import base64
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import matplotlib
from matplotlib import pyplot as plt


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def text_of(outputs):
    return "".join("".join(output.get("text", [])) for output in outputs)


def run(notebook):
    """Returns the outputs of each code cell: text and pictures, in their order. Does not change the notebook."""
    matplotlib.use("agg")
    names = {"__name__": "__main__"}
    return [run_cell("".join(cell["source"]), names) for cell in code_cells(notebook)]


def run_cell(source, names):
    outputs = []
    printed = io.StringIO()

    def keep_text():
        if printed.getvalue():
            lines = printed.getvalue().splitlines(keepends=True)
            outputs.append({"output_type": "stream", "name": "stdout", "text": lines})
        printed.seek(0)
        printed.truncate()

    def keep_pictures():
        keep_text()
        for number in plt.get_fignums():
            file = io.BytesIO()
            plt.figure(number).savefig(file, format="png", dpi=72, bbox_inches="tight")
            plt.close(number)
            data = {"image/png": base64.b64encode(file.getvalue()).decode()}
            outputs.append({"output_type": "display_data", "data": data, "metadata": {}})

    with patch.object(plt, "show", keep_pictures), redirect_stdout(printed):
        exec(source, names)
    keep_text()
    return outputs


if __name__ == "__main__":
    path = Path(sys.argv[1])
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), run(notebook), strict=True), start=1):
        cell |= {"outputs": outputs, "execution_count": number}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
