# One folder, one environment: everything is built in .venv from pyproject.toml and constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
# Some virtual CPUs advertise AMX and then kill the process that uses it; see docs/troubleshooting.md.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: setup compare test test-all test-floor fuzz fuzz-asan fuzz-mutants lint bench clean

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt $(wildcard csrc/*.* startup/*)
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

# the oldest transformers that is supported, in an environment of its own
test-floor:
	$(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-floor/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test]' 'transformers==5.14.*'
	.venv-floor/bin/python -m pytest -n 2 -m 'not slow' tests/models tests/training tests/evals tests/convert tests/data/test_hub.py

# a random search for what breaks the package: docs/fuzzing.md
FUZZ_SECONDS ?= 300
FUZZ_SEED ?= 0

fuzz: setup
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

fuzz-asan: setup
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) --sanitize

fuzz-mutants: setup
	$(BIN)/python -m fuzz.mutants

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/check_allocations.py
	$(BIN)/mypy

bench: setup
	$(BIN)/maclaurin bench

clean:
	rm -rf .venv .venv-floor build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
