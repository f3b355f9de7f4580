# Everything sets itself up: a virtual environment in .venv, installed once and again when pyproject.toml changes.
# The first that runs: a version manager's stand-in for a version that is not installed does not.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do $$p -c '' 2> /dev/null && command -v $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
WORKSPACE ?= longtake-workspace
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-slow test-service chaos lint format bench captioner docs clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | awk -F: '{printf "  make %-14s %s\n", $$1, $$2}'

demo: $(VENV)/.installed  ## draw a small world, train a captioner on it, score it, write a report
	$(BIN)/longtake demo --workspace $(WORKSPACE)
	@command -v longtake > /dev/null || echo "The command 'longtake' is in $(VENV): say '. $(BIN)/activate' once in a terminal."

test: $(VENV)/.installed-dev  ## lint, types, import contract and the tests
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -q -n 2 --dist loadscope --no-loadscope-reorder

test-slow: $(VENV)/.installed-dev  ## the long checks: kills at random moments of the whole demo
	$(BIN)/python -m pytest -q -m slow

test-service: $(VENV)/.installed-dev  ## Prefect on Postgres and Redis (Debian: apt-get install postgresql redis-server)
	$(PIP_INSTALL) -e '.[dev,service]'
	$(BIN)/python -m pytest -q -s -m service

MINUTES ?= 20
chaos: $(VENV)/.installed-dev  ## the pipeline under faults of all kinds, for MINUTES=20, SEED=... to have the same ones again
	$(PIP_INSTALL) -e '.[dev,service]'
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/.installed-dev  ## ruff, mypy and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed-dev  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev  ## measure, as ratios against rivals or limits of the same run
	$(BIN)/python benches/bookkeeping.py
	$(BIN)/python benches/boosting.py
	$(BIN)/python benches/decoding.py
	$(BIN)/python benches/engines.py
	$(BIN)/python benches/extraction.py
	$(BIN)/python benches/feature_reading.py
	$(BIN)/python benches/feeding.py
	$(BIN)/python benches/gpu_steps.py
	$(BIN)/python benches/million_clips.py
	$(BIN)/python benches/neighbours.py
	$(BIN)/python benches/scores.py
	$(BIN)/python benches/training_step.py

captioner: $(VENV)/.installed  ## train the Flickr8k captioner and write flickr8k.captioner (DATA=folder of Flickr8k; about two hours on two cores)
	@test -n "$(DATA)" || { echo "say where Flickr8k is: make captioner DATA=/path/to/flickr8k"; exit 1; }
	$(BIN)/longtake run flickr8k-top-down --data $(DATA) --workspace $(WORKSPACE)
	$(BIN)/longtake export flickr8k-top-down flickr8k.captioner --float16 --frames 4 --workspace $(WORKSPACE) --note "Trained on Flickr8k's photos, whose terms allow research and education only."

docs: $(VENV)/.installed-dev  ## run the examples of README.md and docs/ and write what they print (CLIPS=real clips, KEEP=folder for the next time)
	$(BIN)/python -m docs.examples $(PAGES) $(if $(KEEP),--keep $(KEEP)) $(if $(CLIPS),--clips $(CLIPS))

clean:  ## remove the virtual environment and caches (never a workspace)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; install it or say 'make PYTHON=/path/to/python3.11'"; exit 1; }
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] < (3, 14); print("" if ok else f"Longtake needs Python 3.11, 3.12 or 3.13, $(PYTHON) is {sys.version.split()[0]}; say make PYTHON=/path/to/python3.11"); sys.exit(not ok)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "installing Longtake into $(VENV) (a few minutes, once)"
	$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing Longtake and its development tools into $(VENV) (a few minutes, once)"
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed
