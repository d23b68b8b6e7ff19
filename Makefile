# make demo   set up, run a six-point sweep, report         make test   set up, check style and types, run all tests
# make soak   what takes hours: every fault 20 times, long runs, a sweep of 100 points, a sweep that is killed 200 times
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test soak style lint types check clean
.DEFAULT_GOAL := help

help:
	@sed -n 1,2p Makefile
	@echo "make style  only ruff and mypy    make check  check that microp works here    make clean  remove .venv"

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "microp needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|testing|_inductor|pip|mypyc?)/' .venv/lib || true  # what is imported
	touch $@

demo: $(READY)
	$(BIN)/python -m microp.run -m schedule=gpipe,1f1b chunks=4,8,16
	$(BIN)/python -m analysis.timeline outputs/runs
	$(BIN)/python -m analysis

test: lint
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder && wait $$types

soak: $(READY)
	$(BIN)/python -m tests.soak

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
