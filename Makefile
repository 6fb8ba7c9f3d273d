# The front door. Every target works as the first and only command on a fresh clone: it makes .venv when that is missing.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CHAOS_RUNS ?= 50
SEEDS ?= 1000
FROM ?= 1
KERNEL := $(wildcard broker/forwarding/*.pyx broker/forwarding/*.pxi)
SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all
KERNEL_TESTS := tests/unit/forwarding tests/property/test_kernels.py tests/property/test_forwarding.py \
    tests/property/test_forwarding_relay.py tests/property/test_decoders.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test style format types layers bench memory chaos docs coverage lock sanitize clean

help:  ## Show what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: $(INSTALLED)  ## Make .venv from the locked, hashed requirements

$(INSTALLED): requirements/dev.txt pyproject.toml setup.py $(KERNEL)
	@echo "making .venv (one to five minutes, once)"
	@$(PYTHON) -m venv .venv
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c "from broker.forwarding.kernel_choice import KERNELS; 'compiled' in KERNELS or \
	    print('the kernel could not be compiled here: it runs in plain Python, slower')"
	@touch $(INSTALLED)

demo: setup  ## The whole system on loopback, a gateway killed and a pair failed over; leaves report.html behind
	@$(BIN)/broker demo

test: setup  ## All tests; the chaos and the demo in their short form
	@$(BIN)/pytest -n auto --dist loadgroup

sanitize: setup  ## The compiled kernel over its tests, watched for memory errors and undefined behaviour; needs gcc
	@rm -rf $(SANITIZED)
	@CFLAGS="$(SANITIZERS) -O1 -UNDEBUG" LDFLAGS="$(SANITIZERS)" $(BIN)/python setup.py \
	    --quiet build --build-lib $(SANITIZED)/lib --build-temp $(SANITIZED)/temp --force
	@export LD_PRELOAD="$$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	    PYTHONPATH="$(SANITIZED)/lib"; \
	$(BIN)/python -P -c "from broker.forwarding import compiled_kernel as it; assert '/sanitized/' in it.__file__" && \
	$(BIN)/pytest -q -s $(KERNEL_TESTS)

style: setup  ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: setup  ## Let ruff put the format right
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

types: setup  ## mypy --strict
	@$(BIN)/mypy

layers: setup  ## Imports run one way, the core is pure
	@$(BIN)/lint-imports

coverage: setup  ## Branch coverage of the tests
	@$(BIN)/coverage run -m pytest tests/unit tests/property
	@$(BIN)/coverage report

bench: setup  ## Figures of this machine, as a table; BENCH="--full", or as bench/run.py tells
	@$(BIN)/python bench/run.py $(BENCH)

memory: setup  ## The memory test with a thousand links instead of two hundred; a minute, 600 MB
	@BROKER_TEST_LINKS=1000 $(BIN)/pytest -s -p no:randomly tests/loopback/test_memory.py

chaos: setup  ## Kill a random process of the demo at a random moment, CHAOS_RUNS times; a pair that flaps for a minute
	@CHAOS_RUNS=$(CHAOS_RUNS) $(BIN)/pytest tests/chaos -p no:randomly

simulate: setup  ## Dialogs and mirrored pairs over a simulated network, SEEDS stories of each from number FROM on; tells the number of one that fails
	@$(BIN)/python -m tests.simulation.simulate --seeds $(SEEDS) --from $(FROM)

docs: setup  ## The documentation as a site, in site/
	@$(BIN)/python -m broker.control.reference docs/configuration.md
	@$(BIN)/mkdocs build --strict --quiet

lock: setup  ## Lock the requirements anew; needs uv
	uv pip compile pyproject.toml --extra journal --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	    --no-emit-index-url --no-emit-find-links --quiet -o requirements/runtime.txt
	uv pip compile pyproject.toml --extra journal --extra pipeline --group dev --universal --python-version 3.11 --generate-hashes --no-annotate \
	    --no-header --no-emit-index-url --no-emit-find-links --quiet -o requirements/dev.txt

clean:  ## Remove everything that was made
	rm -rf .venv site build *.egg-info broker/forwarding/*.so broker/forwarding/compiled_*.c report.html .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
