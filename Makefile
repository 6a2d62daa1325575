# make demo   set up, profile the bundled example on the CPU, show where its time went
# make test   set up, then everything CI runs: lint, types, import contracts, all tests
# make check  the fast part of `make test`, without installing anything
# make docs   the documentation as a site in .cache/site; every warning and dead link fails
# make compat TORCH=2.6.0 [PYTHON=python3.12] [WILD=1] [KEEP=1]
#             the tests that touch torch, on another torch, in an environment of its own
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test timing compat check lint types contracts unit slow schemas docs dist clean

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# One stamp a set of extras, made again when what is to be installed changes.
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

test: $(STAMP)-dev
	$(MAKE) lint types contracts
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not clients and not timing'

# Alone, and on a machine that is otherwise idle.
timing: $(STAMP)-dev
	$(BIN)/python -m pytest -n 0 -m timing

# A torch with CUDA's libraries is several gigabytes; see scripts/compat.py.
compat:
	$(PYTHON) scripts/compat.py $(TORCH) --python $(PYTHON) $(if $(WILD),--wild) $(if $(KEEP),--keep)

docs: $(STAMP)-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What looks at the code takes one processor each, so two of it go beside one another.
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

# At the end: what the tests took of the processor, which of them are too dear for here.
unit:
	$(BIN)/python -m pytest -n 2 --dist worksteal --costs 190

# The wheel and the sdist, as they are published, in dist/.
dist:
	$(PYTHON) -m venv .cache/dist
	.cache/dist/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt build twine
	rm -rf dist
	.cache/dist/bin/python -m build -o dist .
	.cache/dist/bin/python -m twine check --strict dist/*

clean:
	rm -rf $(VENV) .cache dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
