# make demo      train on real data, get killed twice, compare with the run that was not        (about a minute)
# make demo-all  the same with each framework: Lightning, Accelerate, transformers.Trainer
# make test      the tests, without the long sweeps
# make test-all  all tests that this machine can run
# make test-gpu  those that need a CUDA device, with a torch that has it (PY=... or TORCH_INDEX=)
# make chaos     ckpt-chaos kills short trainings at operations on files, one rank and two (8 minutes; not in `test`)
# make lint      ruff, mypy --strict, import-linter
# make bench     benchmarks/overhead.py
# make docs      the documentation as pages, in build/site; a warning is an error
# make clean     remove .venv and everything that was built (an environment elsewhere is left alone)
#
# Each of them first makes .venv and installs what it needs, again whenever pyproject.toml or constraints.txt changes.
#
#   PYTHON=python3.12        the interpreter that makes the environment (3.10 or newer)
#   VENV=/path               where the environment lies
#   PY=/path/to/bin/python   use this interpreter as it is: nothing is created, nothing is installed
#   TORCH_INDEX=URL          where torch's CPU build is looked for when pip's own configuration does not offer one.
#                            On Linux, PyPI's torch is a CUDA build of several GB, so the default is PyTorch's index of
#                            CPU builds. It is asked for torch alone; if it cannot be reached, or does not have the
#                            build, pip takes what it finds elsewhere.
#   TORCH_INDEX=             no CPU build: what pip finds by itself, for a machine with a GPU

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PYTEST_ARGS ?=
FRAMEWORKS ?= lightning accelerate trainer
DEMO_ARGS ?=

ifeq ($(origin PY),undefined)
PY := $(VENV)/bin/python
READY := $(VENV)/.installed
endif

PIP := $(PY) -m pip install --disable-pip-version-check --quiet -c constraints.txt
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
SCRIPTS = $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("scripts"))')

.PHONY: demo demo-all test test-all test-gpu lint bench docs clean
.DELETE_ON_ERROR:

demo: $(READY)
	$(SCRIPTS)/exact-resume demo $(DEMO_ARGS)

demo-all: $(READY)
	set -e; for framework in $(FRAMEWORKS); do \
		$(SCRIPTS)/exact-resume demo --framework $$framework --out demo-out/$$framework $(DEMO_ARGS); \
	done

test: $(READY)
	$(PY) -m pytest -n 2 --dist worksteal -m "not slow and not gpu" $(PYTEST_ARGS)

test-all: $(READY)
	$(PY) -m pytest -n 2 $(PYTEST_ARGS)

test-gpu: $(READY)
	$(PY) -m pytest -m gpu $(PYTEST_ARGS)

chaos: $(READY)
	$(PY) tests/chaos.py

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict
	$(PY) -m mypy --strict tests/usage.py
	$(SCRIPTS)/lint-imports

bench: $(READY)
	$(PY) benchmarks/overhead.py

docs: $(READY)
	$(if $(READY),$(PIP) -e '.[docs]')
	$(PY) -m mkdocs build --strict

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first and without its dependencies, so that no other package decides which build of it is taken, and so
# that the extra index is asked for nothing else
$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV); the first time this takes some minutes"
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(PIP) --no-deps "torch==$(TORCH)+cpu" 2>/dev/null \
		|| $(PIP) --no-deps --extra-index-url $(TORCH_INDEX) torch,$(PIP) --no-deps torch)
	$(PIP) -e '.[dev]'
	touch $@
