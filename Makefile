# Every target makes the virtual environment it needs and reuses it while it is up to date.
#
#   PYTHON=python3.12 make test    another interpreter (3.11 or newer) for a new environment
#   WORKERS=8 make test            test processes; by default 4, for two cores and tests that wait; 2 for the slow ones
#   TESTS=tests/solve make test    a part of the tests

PYTHON ?= python3
VENV ?= .venv
WORKERS ?=
TESTS ?= tests
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Both variables: which of them pins the tools that build packages depends on the version of pip.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
	$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt

# The fast tests: the house rules, the examples in docstrings, the values, the core and the policies' contract.
FAST := tests/house $(wildcard tests/model tests/mechanism tests/policies)
# `make check` runs its parts side by side; a make that can keeps the output of each part together.
TOGETHER := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

# Python keeps its bytecode: without it each test process, and each command that a test starts, compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: demo test test-slow mutate check format lint types layers tidy docs bench bench-all bench-guard generate help clean

demo: $(STAMP)  ## simulate a cluster under six policies; prints a table and the path of an HTML report
	@$(BIN)/gavel demo

test: $(STAMP)  ## every test that is not slow (5 to 15 minutes on two cores)
	@$(BIN)/python -m pytest -n $(or $(WORKERS),4) --dist worksteal -m "not slow" $(TESTS)

test-slow: $(STAMP)  ## the slow tests: long simulations, many seeds, frameworks, examples that Hypothesis draws anew
	@$(BIN)/python -c 'import accelerate, lightning, transformers' 2>/dev/null || $(PIP) --editable '.[frameworks]'
	@$(BIN)/python -c 'import ray' 2>/dev/null || $(PIP) --editable '.[ray]'
	@$(BIN)/python -m pytest -n $(or $(WORKERS),2) -m "slow or hypothesis" --hypothesis-profile drawn $(TESTS)

mutate: $(STAMP)  ## defects that the tests of a room find: make mutate MODULE=mechanism/reservations.py (minutes)
	@test -x $(BIN)/mutmut || $(PIP) --editable '.[mutation]'
	@$(BIN)/python -m benchmarks.mutation $(or $(MODULE),mechanism/reservations.py)

check: $(STAMP)  ## format, lint, types, layers, house rules and fast tests (a few minutes)
	@$(MAKE) --no-print-directory -j2 $(TOGETHER) types format lint layers tidy

docs: $(STAMP)  ## the documentation site in out/site, with executed notebooks; a warning is an error (minutes)
	@$(PIP) --editable '.[report,docs]'
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m sphinx -q -W --keep-going -c docs/site . out/site && echo out/site/docs/index.html

bench: $(STAMP)  ## speed and quality, each as a ratio against a peer (minutes)
	@$(BIN)/python -m benchmarks

bench-all: $(STAMP)  ## every policy at every size against every peer (hours)
	@$(BIN)/python -m benchmarks allocation --all

bench-guard: $(STAMP)  ## fails where a ratio of CPU time to a peer is a third below benchmarks/ratios.csv (some 5 minutes)
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks by_load --guard

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

clean:  ## remove everything that make and the tools have made here, the environment included
	@rm -rf $(VENV) out docs/tutorials build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

generate: $(STAMP)  ## the code of the protocol from its .proto files
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. \
		--mypy_out=quiet:. --mypy_grpc_out=quiet:. gavelpy/runtime/wire/*.proto

# The parts of check.

format: $(STAMP)
	@$(BIN)/ruff format --quiet --diff . || { echo "format: run $(BIN)/ruff format ." >&2; exit 1; }

lint: $(STAMP)
	@$(BIN)/ruff check --quiet .

types: $(STAMP)
	@$(BIN)/mypy

layers: $(STAMP)
	@$(BIN)/lint-imports --no-logo

# The callbacks of the frameworks are imported by the slow tests only: their extra is large.
tidy: $(STAMP)
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" --doctest-modules \
		--ignore=gavelpy/lightning.py --ignore=gavelpy/transformers.py gavelpy $(FAST)

# The environment.

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "gavelpy needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing into $(VENV) (once, and again when pyproject.toml or constraints.txt change)"
	@$(PIP) --editable '.[report,runtime,sweep,dask,torch,dev]'
	@touch $@
