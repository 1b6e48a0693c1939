# One folder, one environment: everything is built in .venv from pyproject.toml and constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
# Some virtual CPUs advertise AMX and then kill the process that uses it; see docs/troubleshooting.md.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: setup compare test test-all lint bench clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt $(wildcard csrc/*.*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maclaurin needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,lint]'
	touch $@

compare: setup
	$(BIN)/maclaurin compare

test: setup
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-all: setup
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
