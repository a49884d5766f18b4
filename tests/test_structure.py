"""Rules of the source tree: which way imports flow, what README, lock file and wheel hold, and the versions allowed."""

import ast
import graphlib
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import programs
from tests.programs import REPOSITORY

PATHS = [path for folder in ("model", "data", "scripts") for path in (REPOSITORY / folder).rglob("*.py")]
SOURCES = ["train.py", *sorted(path.relative_to(REPOSITORY).as_posix() for path in PATHS)]
# What the files below each path may import besides the standard library. The first path that matches counts.
MAY_IMPORT = {
    # The notebook's API uses every folder of model/, and data's tokenizers to read a text.
    "model/__init__.py": "model.* model.inspection model.runs",
    "model/glass.py": "model.* model.exchange model.inspection model.pages model.runs data numpy torch",
    "model/inspection/": "model.* model.inspection torch numpy",
    "model/pages/": "model.* model.inspection model.pages torch numpy pandas matplotlib PIL",
    "model/exchange/modeling_glassgpt.py": "model.* torch transformers",  # runs inside transformers
    "model/exchange/": "model.* model.exchange torch",
    "model/training/": "model.* model.training torch lightning",
    "model/runs/": "model.* model.exchange model.inspection model.pages model.training model.runs data torch numpy"
    " lightning jsonargparse pandas yaml tqdm wandb",
    "model/": "model.* torch",
    "data/datamodule.py": "data model.mistakes lightning torch numpy",
    "data/windows.py": "data model.mistakes torch numpy",
    "data/": "data model.mistakes numpy datasets huggingface_hub pyarrow tiktoken rustbpe filelock tqdm pandas",
    "scripts/": "model data scripts train torch numpy lightning jsonargparse yaml transformers",
    "train.py": "model data torch lightning jsonargparse yaml",
}


def nodes_of(source):
    return ast.walk(ast.parse((REPOSITORY / source).read_text(encoding="utf-8")))


def imports(source):
    """Yields (module, imported names) for each import anywhere in the file."""
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}: relative import"
            yield node.module, [alias.name for alias in node.names]


def is_allowed(module, allowed):
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names or parts[0] in allowed:
        return True
    if parts[0] != "model":
        return False
    if module in allowed:  # model.mistakes, the only file of model/ that data/ imports
        return True
    # "model.*" stands for the files in model/, and "model.runs" for those in model/runs/.
    folder = len(parts) > 1 and (REPOSITORY / "model" / parts[1]).is_dir()
    return (f"model.{parts[1]}" if folder else "model.*") in allowed


@pytest.mark.parametrize("source", SOURCES)
def test_imports_flow_one_way(source):
    allowed = next(allowed.split() for start, allowed in MAY_IMPORT.items() if source.startswith(start))
    refused = [module for module, _ in imports(source) if not is_allowed(module, allowed)]
    assert not refused, f"{source} imports {', '.join(refused)}"


def test_no_files_import_each_other_in_a_circle():
    graph = {}
    for source in SOURCES:
        name = source.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        graph[name] = {f"{module}.{each}".strip(".") for module, names in imports(source) for each in ("", *names)}
    graph = {name: (imported & graph.keys()) - {name} for name, imported in graph.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


@pytest.mark.parametrize("source", SOURCES)
def test_programs_print_through_one_file_alone_which_shows_control_characters(source):
    """generate.py alone prints texts as they are, where standard output is no terminal."""
    if not source.endswith(("terminal.py", "generate.py", "gpt2.py")):
        calls = [ast.unparse(node.func) for node in nodes_of(source) if isinstance(node, ast.Call)]
        assert not {*calls} & {"print", "sys.stdout.write", "sys.stderr.write"}


def declared_ranges():
    """The versions of each package that pyproject.toml allows, by the package's name."""
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    found = re.findall(r'(?:^    |\[|, )"([\w-]+(?:\[\w+\])?[><=!][^"]+)"', project, re.MULTILINE)
    return {requirement.name: requirement.specifier for requirement in map(Requirement, found)}


def test_every_package_that_may_be_imported_is_a_declared_dependency():
    allowed = {module.split(".")[0] for module in " ".join(MAY_IMPORT.values()).split()}
    ours, others = {"model", "data", "scripts", "train"}, {"yaml", "PIL"}  # of pyyaml and of matplotlib
    assert allowed - ours <= declared_ranges().keys() | others


def test_no_line_of_a_page_is_longer_than_120_characters():
    """In Python files ruff checks this."""
    kinds = {".js", ".css", ".html"}
    pages = [path for path in (REPOSITORY / "model/pages").rglob("*") if path.suffix in kinds]
    assert len(pages) > 30
    for path in pages:
        assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 120, path


def test_the_readme_names_files_that_exist():
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    tree = re.search(r"```\n(train\.py .*?)```", readme, re.DOTALL)[1]
    folders = {}
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = line.strip().split("  ")[0].split()  # two spaces separate them from their description
        for name in names:
            path = "".join(folders[level] for level in range(depth)) + name
            assert (REPOSITORY / path).exists(), f"the README shows {path}, which does not exist"
        folders[depth] = names[0]
    links = re.findall(r"\]\((?!http)([^)#]+)\)", readme)
    mentioned = re.findall(r"\b(?:model|data|scripts)/[\w/]+\.py", readme)
    for name in links + mentioned:
        assert (REPOSITORY / name).exists(), f"the README mentions {name}, which does not exist"
    configs = {path.stem for path in (REPOSITORY / "configs").glob("*.yaml")}
    assert set(re.findall(r"\bconfigs/(\w+)\.yaml", readme)) >= configs


def pinned(name):
    """The name==version of each line of a file, without extras and markers."""
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    found = [re.match(r"([\w.-]+)(?:\[[^]]*\])?==([^\s;]+)", line) for line in lines]
    return {f"{match[1].lower().replace('_', '-')}=={match[2]}" for match in found if match}


def test_the_lock_file_has_every_requirement_with_hashes():
    """Run `make lock` after changing a version."""
    locked = pinned("requirements.lock")
    for name in ("requirements.txt", "requirements-dev.txt"):
        assert pinned(name) and pinned(name) <= locked
    entries = re.split(r"\n(?=\S)", (REPOSITORY / "requirements.lock").read_text(encoding="utf-8").strip())
    assert len([entry for entry in entries if "==" in entry]) > 100
    for entry in entries:
        assert "--hash=sha256:" in entry, entry


def test_every_pinned_version_lies_in_the_range_of_its_package():
    """A range with an end ends at the minor version after the pinned one."""
    pins = [pin.split("==") for name in ("requirements.txt", "requirements-hf.txt") for pin in pinned(name)]
    assert len(pins) > 12
    for name, version in pins:
        allowed = declared_ranges()[name.replace("-", "_")]
        assert version in allowed, name
        major, minor = map(int, version.split(".")[:2])
        ends = [limit.version for limit in allowed if limit.operator == "<"]
        assert ends in ([], [f"{major}.{minor + 1}"]), name
        assert ends or name not in ("torch", "lightning", "jsonargparse", "datasets", "wandb")


@pytest.mark.slow
def test_a_wheel_holds_every_file_of_model_and_data_and_no_other(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    clone = tmp_path / "clone"  # building leaves folders behind
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("model", "data", "tests", "scripts", "configs"):
        shutil.copytree(REPOSITORY / name, clone / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "train.py"):
        shutil.copy(REPOSITORY / name, clone)
    files = [path for folder in ("model", "data") for path in (clone / folder).rglob("*") if path.is_file()]
    build = "import setuptools.build_meta as backend; print(backend.build_wheel('..'))"
    programs.run("-c", build, cwd=clone)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == {path.relative_to(clone).as_posix() for path in files}
    assert {Path(name).suffix for name in held} == {".py", ".html", ".css", ".js"}
