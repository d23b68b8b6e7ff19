# make demo   set up, run a six-point sweep, report         make test   set up, check style and types, run all tests
# make soak   what takes hours: every fault 20 times, long runs, a sweep of 100 points, a sweep that is killed 200 times
# make gpu    what only a GPU can show, in ten minutes: losses, gradients, memory and times beside the CPU's and the predicted
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
# The versions of torch that the tests run on. They are installed first, so that pip takes the CPU build where only that
# is offered; microp itself asks for no upper bound, and leaves a newer torch as it is.
TORCH ?= torch>=2.11,<2.14

.PHONY: demo test soak gpu style lint types check clean
.DEFAULT_GOAL := help

help:
	@sed -n 1,3p Makefile
	@echo "make style  only ruff and mypy    make check  check that microp works here    make clean  remove .venv"

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "microp needs Python 3.11 to 3.13: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile '$(TORCH)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|testing|_inductor|pip|mypyc?)/' .venv/lib || true  # what is imported
	touch $@

demo: $(READY)
	$(BIN)/python -m microp.run ranks=1 chunks=1
	$(BIN)/python -m microp.run -cn first
	$(BIN)/python -m analysis.timeline outputs/runs
	$(BIN)/python -m analysis

test: lint
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 5 --dist worksteal --durations=15 && wait $$types

soak: $(READY)
	$(BIN)/python -m pytest tests/test_soak.py --times 20
	$(BIN)/python -m pytest --whole -n 4 --dist worksteal

gpu: $(READY)
	$(BIN)/python -m tests.gpu_run

style: lint types

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: $(READY)
	$(BIN)/python -m microp.check

clean:
	rm -rf .venv
