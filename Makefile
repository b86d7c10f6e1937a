# Two commands: `make train` and `make test`. Both build .venv with the exact pins of constraints.txt.
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: train explore test reproduce lint format clean

train: $(VENV)/train.stamp
	$(BIN)/mocapsnet train $(ARGS)

explore: $(VENV)/train.stamp
	$(BIN)/mocapsnet explore $(ARGS)

test: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

reproduce: $(VENV)/train.stamp
	$(BIN)/mocapsnet reproduce $(ARGS)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# torch comes first, so that nothing else pulls another build of it.
$(VENV)/torch.stamp: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@echo "Installing torch: some minutes, and on Linux some gigabytes"
	$(PIP) torch hatchling editables
	touch $@

$(VENV)/train.stamp: $(VENV)/torch.stamp pyproject.toml
	$(PIP) --no-build-isolation --editable '.[plots,web]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/train.stamp
	$(PIP) --no-build-isolation --editable '.[dev]'
	touch $@
