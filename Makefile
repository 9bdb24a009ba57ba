# Two commands do all the set-up: `make run` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A site-installed torch is used with: make run VENV_FLAGS=--system-site-packages EXTRAS=report,track,dev
VENV_FLAGS ?=
EXTRAS ?= torch,report,track,dev
# One more than there are cores: many tests wait, for SLURM's queue or for a time limit.
TEST_PROCESSES ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help run test test-all reliability frameworks docs check pins format clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 13

# The stamp is newer than what it was made from, so nothing is installed twice.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "scalescope needs Python 3.11 or newer; try make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV_FLAGS) $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

run: $(VENV)/.installed ## set up what is missing and run the main job on this machine
	$(BIN)/scalescope run

# Tests start some hundred processes: where compiled modules are not kept, all of them compile the source again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadscope \
	--no-loadscope-reorder $(if $(SHUFFLE),--shuffle=$(SHUFFLE))

test: $(VENV)/.installed ## set up what is missing and run the tests, in minutes
	$(PYTEST) -m 'not thorough and not frameworks'

test-all: $(VENV)/.installed ## run all tests: SLURM, namespaces, browser, LaTeX and every fault too
	$(PYTEST) -m 'not frameworks'

reliability: $(VENV)/.installed ## run the tests of faults and write what they saw to docs/reliability.md
	$(PYTEST) -m fault --reliability docs/reliability.md

frameworks: $(VENV)/.installed ## run Hugging Face, Accelerate, Lightning and others unedited, in minutes
	$(PIP) install --quiet --constraint constraints.txt --editable '.[frameworks]'
	$(BIN)/python -m pytest -m frameworks tests/commands

docs: $(VENV)/.installed ## build the documentation as a site in build/site; a dead link fails
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

check: $(VENV)/.installed ## format, lint, types, layers, documentation and tests: what CI runs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --follow-imports=silent tests/gpu # which hardly any machine runs
	$(BIN)/lint-imports
	$(MAKE) docs
	$(MAKE) test-all

pins: $(VENV)/.installed ## rewrite constraints-hashed.txt and docs/sbom.cdx.json after constraints.txt changed
	$(BIN)/python tools/hashed_constraints.py
	$(BIN)/python tools/sbom.py

format: $(VENV)/.installed ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
