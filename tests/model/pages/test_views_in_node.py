"""Runs views.test.mjs: the pure functions of the page's views, in node without a browser."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")
OLDEST = (20, 6)  # the first version in which modules.mjs can resolve module names


def run_node(*arguments, content=""):
    """Runs node with `content` on standard input; returns its standard output. Skips if node is missing or too old."""
    if NODE is None:
        pytest.skip("node is not installed, so the page's modules are tested in the browser only")
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        pytest.skip(f"node is {version.strip()}, which is too old to load the page's modules")
    command = [NODE, *arguments]
    result = subprocess.run(command, input=content, capture_output=True, encoding="utf-8", timeout=120, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_pure_functions_of_the_views():
    run_node("--test", Path(__file__).with_name("views.test.mjs"))
