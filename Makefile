# Everything in one command each, on a bare machine with Python ≥ 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := dev,onnx,serve
# To compile all packages takes a minute; what is imported is compiled then, once.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test docs oldest torture mutants clean
.DEFAULT_GOAL := help

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/installed  ## teach the ten digits two at a time; the page is under runs/demo
	$(BIN)/lmrc demo

test: $(VENV)/installed-dev  ## linters, types, import graph, all tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports
	$(BIN)/pytest -n auto --dist worksteal

docs: $(VENV)/installed-dev  ## the documentation as a site, under site/
	$(INSTALL) -e '.[docs]'
	$(BIN)/python docs/site/build.py site

oldest:  ## all tests with the oldest versions that pyproject.toml allows; Python 3.11 or 3.12
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e '.[dev,serve]'
	$(VENV)-oldest/bin/pytest -n auto

torture: $(VENV)/installed-dev  ## faults by the thousand: kills, full disks, damaged files; minutes on 16 cores, far longer on two
	$(BIN)/pytest tests/torture --torture --torture-table torture.md

mutants: $(VENV)/installed-dev  ## break the code in 300 places, and see which tests notice; hours on two cores
	$(BIN)/python tests/mutants.py

clean:  ## remove the virtual environment and what the tools left
	rm -rf $(VENV) $(VENV)-oldest .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build site

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("lmrc needs Python 3.11 or newer: make PYTHON=…" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e .
	touch $@

# Imported once after it is installed: else each worker of pytest compiles all of it.
$(VENV)/installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[$(EXTRAS)]'
	$(BIN)/python -c 'import torch._dynamo' & \
	$(BIN)/python -c 'import matplotlib.figure, pandas, scipy.stats, sklearn.datasets, sklearn.model_selection'; wait
	touch $(VENV)/installed $@
