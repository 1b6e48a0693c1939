# One folder, one environment: everything is built in .venv from pyproject.toml and constraints.txt, each target with what it
# needs and no more. A file .venv/.ready* says that a set is there; a changed requirement or kernel makes it again.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --constraint constraints.txt
# Some virtual CPUs advertise AMX and then kill the process that uses it; see docs/troubleshooting.md.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: setup compare test test-all test-floor fuzz fuzz-asan fuzz-mutants lint bench clean

setup: .venv/.ready .venv/.ready-test .venv/.ready-lint

# what the commands need
.venv/.ready: pyproject.toml constraints.txt $(wildcard csrc/*.* startup/*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maclaurin needs Python 3.11 or newer")'
	@echo "Into .venv: PyTorch, then maclaurin and what its commands need; 1.5 GB, some minutes (more where PyTorch brings CUDA)."
	$(PYTHON) -m venv .venv
	$(INSTALL) torch
	$(INSTALL) --editable '.[report]'
	touch $@

# the project itself is there already: pip adds only what the extra asks for
.venv/.ready-test: .venv/.ready
	@echo "Into .venv: pytest, other implementations to compare with, a model to convert; 1.7 GB, some minutes."
	$(INSTALL) 'maclaurin[test]'
	touch $@

.venv/.ready-lint: .venv/.ready
	@echo "Into .venv: ruff and mypy; 0.1 GB."
	$(INSTALL) 'maclaurin[lint]'
	touch $@

compare: .venv/.ready
	$(BIN)/maclaurin compare

test: .venv/.ready-test
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-all: .venv/.ready-test
	$(BIN)/python -m pytest -n 2

# the oldest PyTorch and transformers that are supported, in an environment of their own: stock flows, graphs and laws.
# 8 GB (PyTorch's wheel for Linux brings CUDA), about 10 minutes of CPU time
FLOOR := 'torch==2.9.*' 'transformers==5.14.*'
FLOOR_TESTS := tests/models tests/mixers/test_laws.py $(addprefix tests/mixers/test_,graphs.py onnx.py torch_func.py) \
	$(addprefix tests/ops/test_,forms.py gradients.py handover.py native.py transforms.py) \
	$(addprefix tests/training/test_,card.py names.py streamed.py train.py) tests/data/test_hub.py \
	$(addprefix tests/serving/http/test_,client.py seam.py)
test-floor:
	$(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python -m pip install --editable '.[test]' $(FLOOR)
	.venv-floor/bin/python -m pytest -n 2 -m 'not slow' $(FLOOR_TESTS)

# a random search for what breaks the package: docs/fuzzing.md
FUZZ_SECONDS ?= 300
FUZZ_SEED ?= 0

fuzz: .venv/.ready-test
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

fuzz-asan: .venv/.ready-test
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) --sanitize

fuzz-mutants: .venv/.ready-test
	$(BIN)/python -m fuzz.mutants

lint: .venv/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/check_allocations.py
	$(BIN)/mypy

# other people's kernels come with the tests
bench: .venv/.ready-test
	$(BIN)/maclaurin bench

clean:
	rm -rf .venv .venv-floor build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
