"""What a contender's own process runs: python -m scripts.benchmarks.job MODULE:FUNCTION OPTIONS OUTPUT.

OPTIONS is a JSON object of keyword arguments; what the function returns is written to the file OUTPUT, as JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(function: str, options: str, output: str) -> int:
    module, name = function.split(":")
    try:
        result = getattr(importlib.import_module(f"scripts.benchmarks.{module}"), name)(**json.loads(options))
    except (ValueError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    Path(output).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
