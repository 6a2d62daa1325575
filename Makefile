# make demo   set up, profile the bundled example on the CPU, show where its time went
# make test   set up, then run everything that CI runs: lint, types, import contracts, all tests
# make check  run the fast part of `make test`, without installing anything
# make docs   build the documentation site in .cache/site; fails on warnings and dead links
# make compat TORCH=2.6.0 [PYTHON=python3.12] [WILD=1] [KEEP=1]
#             run the tests that need torch with another release, in a separate environment
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
ALL    := 'not clients and not timing'

.PHONY: demo test timing compat check lint types contracts unit slow schemas docs dist clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per set of extras; a change of the requirements installs again.
$(STAMP)-run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[torch]'
	touch $@

$(STAMP)-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[torch,dev]'
	touch $@ $(STAMP)-run

$(STAMP)-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

demo: $(STAMP)-run
	$(BIN)/uprof run --backend cpu --force -o .cache/demo examples/transformer.py

# A test that fails is run again alone, because some programs under test (gloo of PyTorch, for
# example) end abnormally now and then on a busy machine. A test that fails twice fails the job.
test: $(STAMP)-dev
	$(MAKE) --no-print-directory -j 2 lint types contracts
	$(BIN)/python -m pytest -n 3 --dist worksteal -m $(ALL) || { [ $$? = 1 ] && \
	  echo 'again, one at a time:' && $(BIN)/python -m pytest -n 0 -x -m $(ALL) \
	  --last-failed --last-failed-no-failures none; }

# Needs an otherwise idle machine.
timing: $(STAMP)-dev
	$(BIN)/python -m pytest -n 0 -m timing

# A torch with CUDA's libraries is several gigabytes; see scripts/compat.py.
compat:
	$(PYTHON) scripts/compat.py $(TORCH) --python $(PYTHON) $(if $(WILD),--wild) $(if $(KEEP),--keep)

docs: $(STAMP)-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The static checks use one processor each, so two run in parallel.
check:
	$(MAKE) --no-print-directory -j 2 lint types contracts
	$(MAKE) --no-print-directory unit

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell unified_prof docs tests scripts action templates examples *.md

types:
	$(BIN)/mypy

contracts:
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

# Temporary files in memory save a tenth of the time, where it has 2 GB to spare and runs programs.
IN_MEMORY = $(shell grep ' /dev/shm ' /proc/mounts 2>/dev/null | grep -qv noexec && \
  [ "$$(df --output=avail /dev/shm | tail -1)" -gt 2000000 ] && echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

# Prints the CPU time of the tests, and those that belong to `make test` only. Two workers wait a
# third of the time, for processes and timeouts, so three use two processors.
unit:
	$(IN_MEMORY) $(BIN)/python -m pytest -n 3 --dist worksteal --costs 150 \
	  -o tmp_path_retention_policy=failed

# Build wheel and sdist in dist/.
dist:
	$(PYTHON) -m venv .cache/dist
	.cache/dist/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt build twine
	rm -rf dist
	.cache/dist/bin/python -m build -o dist .
	.cache/dist/bin/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) .cache dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
