PYTHON ?= python3
VENV := .venv
NEWEST := .venv-newest
BIN := $(VENV)/bin
UV := 0.13.9
PIP_AUDIT := 2.10.1
SOURCES := train.py model data scripts tests
# One process for each core, with one thread each: most tests are too small for two threads.
# Only xdist's plugin: for others, such as that of hypothesis, pytest rewrites the assertions in all of their modules.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --disable-plugin-autoload -p xdist --numprocesses auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help train test test-fast test-newest learn pictures faults gpu lock audit lint format clean

help: ## list what make can do
	@grep -hE '^[a-z_-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z_-]+):.*## (.*)/  make \1|\2/' | column -t -s '|' 2>/dev/null \
		|| grep -hE '^[a-z_-]+:.*## ' $(MAKEFILE_LIST)

train: $(VENV)/installed ## install what is needed and train the default model; ARGS="--name first" adds options
	$(BIN)/python train.py $(ARGS)

test: $(VENV)/installed-dev ## install what is needed and run the whole test suite; ARGS="-k causal" adds options
	$(PYTEST) $(ARGS)

test-fast: $(VENV)/installed-dev ## run the tests of model/ and data/ that neither train nor open a browser, in under a minute
	$(PYTEST) -m "not slow" tests/model tests/data $(ARGS)

test-newest: ## run the suite with the newest version of every package, in a separate environment
	$(PYTHON) -m venv $(NEWEST)
	sed -nE '/^dependencies/,/^\]/ s/^    "(.+)",.*/\1/p' pyproject.toml | sed -E 's/,<[0-9.]+//' > $(NEWEST)/names.txt
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		-r $(NEWEST)/names.txt transformers safetensors pytest pytest-xdist hypothesis playwright setuptools
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

learn: $(VENV)/installed-dev ## train with two seeds and check that heads form and losses fall as README says, in minutes
	$(PYTEST) tests/learn.py $(ARGS)

pictures: $(VENV)/installed-dev ## make the pictures of the README from the newest run
	$(BIN)/python scripts/inspect_attention.py --film .github/images/film.gif
	$(BIN)/python scripts/inspect_attention.py
	$(BIN)/python -m tests.pictures .github/images/page.png

lock: $(VENV)/installed-dev ## pin every package that the tests run with, with hashes, for pip and uv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	$(BIN)/uv pip compile --universal --generate-hashes --python-version 3.10 --no-header --quiet \
		requirements-dev.txt --output-file requirements.lock

audit: $(BIN)/python ## look up every pinned package in the public list of vulnerabilities
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit==$(PIP_AUDIT)
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement requirements.lock

faults: $(VENV)/installed-dev ## kill runs, fill their disk and damage their files, and count what is lost, in four minutes; FAULTS=5 tries five times as many moments
	$(PYTEST) -p no:warnings tests/faults/matrix.py $(ARGS)

gpu: $(VENV)/installed-dev ## test and time this project on a GPU, to send what is printed; ARGS="--nanogpt ../nanoGPT" compares, ARGS="--device cpu" needs no GPU
	$(BIN)/python -m pytest tests/on_a_gpu.py
	$(BIN)/python scripts/benchmark.py train --device cuda $(ARGS)
	$(BIN)/python scripts/benchmark.py generate --device cuda $(ARGS)
	@echo "Please send the three results to the project: the summary of the tests and both JSON objects."

lint: $(VENV)/installed-dev ## check style, formatting and types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(VENV)/installed-dev ## fix style and formatting
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean: ## remove the environments and caches, but not runs/
	rm -rf $(VENV) $(NEWEST) .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "GlassGPT needs Python 3.10 to 3.13, and $(PYTHON) is another version: write make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# These files are stamps: a second call installs nothing unless a list of requirements is newer than its stamp.
$(VENV)/installed: requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/installed-dev: requirements-dev.txt requirements-hf.txt $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@
