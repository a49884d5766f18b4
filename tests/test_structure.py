"""The house rules that a reader relies on: which way imports flow, and that the README shows the tree that there is."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = {"model", "data", "scripts", "configs", "tests"}

# What the modules below each folder may import of this project and of the larger packages; the first match counts.
MAY_IMPORT = [
    ("model/training/", {"model"}, {"lightning", "torch"}),
    ("model/runs/", {"model"}, {"lightning", "wandb", "torch", "numpy"}),
    ("model/inspection/", {"model"}, {"torch", "numpy", "matplotlib"}),
    ("model/", {"model"}, {"torch"}),
    ("data/module.py", {"data"}, {"lightning", "torch", "numpy"}),
    ("data/", {"data"}, {"numpy", "datasets", "tiktoken", "rustbpe", "filelock", "pyarrow", "tqdm", "zstandard"}),
]
LARGE = {
    "torch",
    "lightning",
    "wandb",
    "datasets",
    "matplotlib",
    "numpy",
    "tiktoken",
    "rustbpe",
    "transformers",
    "pandas",
}


def sources(folder):
    return sorted(path for path in (ROOT / folder).rglob("*.py"))


def imported_modules(path):
    """Full names of all that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", sources("model") + sources("data"), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_flow_one_way(path):
    name = path.relative_to(ROOT).as_posix()
    ours, packages = next((ours, packages) for start, ours, packages in MAY_IMPORT if name.startswith(start))
    for module in imported_modules(path):
        top = module.split(".")[0]
        assert top not in ROOMS - ours, f"{name} imports {module}"
        assert top not in LARGE - packages, f"{name} imports {module}"
        if name.startswith("model/") and not name.startswith(("model/training/", "model/runs/")):
            assert not module.startswith("model.training"), f"{name} imports {module}"
        if name.count("/") == 1 and name.startswith("model/"):
            assert not module.startswith("model.inspection"), f"{name} imports {module}"


def test_nothing_imports_the_scripts_or_the_tests():
    for path in [ROOT / "train.py", *sources("model"), *sources("data"), *sources("scripts")]:
        # A script that outgrows its file goes on in a folder beside it.
        closed = {"tests", "train"} if ROOT / "scripts" in path.parents else {"scripts", "tests", "train"}
        for module in imported_modules(path):
            assert module.split(".")[0] not in closed, f"{path} imports {module}"


def test_the_network_can_be_used_with_torch_alone():
    blocked = ["lightning", "wandb", "datasets", "matplotlib", "tiktoken"]
    hide = f"import sys; sys.modules.update(dict.fromkeys({blocked}))"
    use = "import model.gpt, model.generation, model.checkpoint"
    subprocess.run([sys.executable, "-c", f"{hide}; {use}"], cwd=ROOT, check=True)


def test_the_readme_shows_the_tree_that_there_is():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = re.search(r"```\n(train\.py .*?)```", readme, re.DOTALL)[1]
    shown, folder = set(), {}
    for line in tree.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folder[depth] = name
        path = "".join(folder[level] for level in range(depth + 1))
        assert (ROOT / path).exists(), f"the README shows {path}, which is not there"
        shown.add(path)
    there = {path.relative_to(ROOT).as_posix() for folder in ("model", "data", "scripts") for path in sources(folder)}
    there = {name for name in there if not name.endswith("__init__.py")}
    there |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "configs").glob("*.yaml")}
    # A folder shown without its files stands for all of them.
    closed = tuple(
        name for name in shown if name.endswith("/") and not any(other.startswith(name) for other in shown - {name})
    )
    there = {name for name in there if not name.startswith(closed)}
    assert there - shown == set(), "the README's tree leaves these out"


def test_files_can_be_read_in_one_sitting():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources("model") + sources("data")}
    assert {path.name: length for path, length in lengths.items() if length > 360} == {}
