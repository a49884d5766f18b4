PYTHON ?= python3
VENV := .venv
NEWEST := .venv-newest
BIN := $(VENV)/bin
UV := 0.13.9
PIP_AUDIT := 2.10.1
SOURCES := train.py model data scripts tests
# One process a core, each with one thread: most tests are too small for two.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help train test test-fast test-newest learn faults gpu stress lock audit lint format clean

help: ## what can be made
	@grep -hE '^[a-z_-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z_-]+):.*## (.*)/  make \1|\2/' | column -t -s '|' 2>/dev/null \
		|| grep -hE '^[a-z_-]+:.*## ' $(MAKEFILE_LIST)

train: $(VENV)/installed ## install what is needed, then train the default model; ARGS="--name first" adds options
	$(BIN)/python train.py $(ARGS)

test: $(VENV)/installed-dev ## install what is needed, then run the whole test suite; ARGS="-k causal" adds options
	$(PYTEST) $(ARGS)

test-fast: $(VENV)/installed-dev ## the tests of model/ and data/ that neither train nor open a browser, in under a minute
	$(PYTEST) -m "not slow" tests/model tests/data $(ARGS)

test-newest: ## the suite with the newest version of every package, in an environment of its own
	$(PYTHON) -m venv $(NEWEST)
	sed -nE 's/^    "(.+)",.*/\1/p' pyproject.toml | sed -E 's/,<[0-9.]+//' > $(NEWEST)/names.txt
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		-r $(NEWEST)/names.txt transformers safetensors pytest pytest-xdist hypothesis playwright setuptools
	OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

learn: $(VENV)/installed-dev ## train until heads form and losses fall as README says, with two seeds, in minutes
	$(PYTEST) tests/learn.py $(ARGS)

stress: $(VENV)/installed-dev ## the long tests of memory and network; ARGS="tests/stress/soak.py"
	$(BIN)/python -m pytest $(or $(ARGS),tests/stress/*.py)

lock: $(VENV)/installed-dev ## pin everything that the tests run with, hashes included, for pip and for uv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	$(BIN)/uv pip compile --universal --generate-hashes --python-version 3.10 --no-header --quiet \
		requirements-dev.txt --output-file requirements.lock

audit: $(BIN)/python ## look up everything that is pinned in the public list of vulnerabilities
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit==$(PIP_AUDIT)
	$(BIN)/pip-audit --strict --require-hashes --disable-pip --requirement requirements.lock

faults: $(VENV)/installed-dev ## kill, fill and damage runs in every way and count what is lost, in four minutes; FAULTS=5 at more moments
	$(PYTEST) -p no:warnings tests/faults/matrix.py $(ARGS)

gpu: $(VENV)/installed-dev ## check and time everything on this machine's GPU, and print a JSON object; ARGS="--nanogpt ../nanoGPT"
	$(BIN)/python scripts/gpu.py $(ARGS)

lint: $(VENV)/installed-dev ## check style, formatting and types
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(VENV)/installed-dev ## repair style and formatting
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

clean: ## remove the environment and caches; runs/ stays
	rm -rf $(VENV) $(NEWEST) .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "GlassGPT needs Python 3.10 to 3.13, and $(PYTHON) is not: name another with make PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# The stamps are younger than the lists they stand for, so a second call installs nothing and a changed list does.
$(VENV)/installed: requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/installed-dev: requirements-dev.txt requirements-hf.txt $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@
