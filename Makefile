# Two commands: `make demo` and `make test`. Each sets up .venv by itself, with pip alone.

.DEFAULT_GOAL := help
.NOTPARALLEL: # both set-ups write into one .venv
.PHONY: help demo test clean

# Set PYTHON to choose one; otherwise the first of these that is new enough.
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
PIP := .venv/bin/python -m pip --disable-pip-version-check

help:
	@echo 'make demo    train a Transformer to pronounce English (about 3 minutes on 2 cores), score it, look into it'
	@echo 'make test    ruff, mypy, the import linter, all tests'
	@echo 'make clean   remove .venv and caches; runs/ stays'
	@echo
	@echo 'PYTHON=...   the Python (3.11 or newer) to make .venv with, as in: make demo PYTHON=python3.12'

demo: .venv/demo.stamp
	@echo 'training on the CMU Pronouncing Dictionary into runs/demo (about 3 minutes on 2 cores) ...'
	.venv/bin/regard train recipes/cmudict-demo.toml run=runs/demo
	.venv/bin/regard evaluate runs/demo
	@echo 'a handful of words, also some that are in no dictionary:'
	printf '%s\n' attention regard transformer phoneme brillig slithy | .venv/bin/regard predict runs/demo --format tsv
	@echo 'who reads what: phonemes down the side, the letters that each one read, in the head that aligns them best:'
	.venv/bin/regard look runs/demo attention --terminal --no-open --out runs/demo/look/attention.html
	@echo 'open runs/demo/look/attention.html in a browser for every head, step by step, with a check of what is shown'

test: .venv/test.stamp
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	@echo 'checking types (about half a minute the first time) ...'
	.venv/bin/mypy
	.venv/bin/lint-imports
	@echo 'running the tests (a few minutes) ...'
	.venv/bin/pytest -q -n 2

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was installed from, so a set-up happens once and again when that changes.
.venv/demo.stamp: .venv/made.stamp pyproject.toml constraints.txt
	@echo 'installing into .venv (about 1 minute, 250 MB to download with a CPU build of torch) ...'
	@$(PIP) install -q -c constraints.txt -e '.[demo]'
	@touch $@

.venv/test.stamp: .venv/made.stamp pyproject.toml constraints.txt
	@echo 'installing into .venv (about 1 minute, 400 MB to download with a CPU build of torch) ...'
	@$(PIP) install -q -c constraints.txt -e '.[all,test]'
	@touch $@

# A command may be on the PATH and still not run (version managers leave such shims), so each one is tried.
.venv/made.stamp:
	@for python in $(PYTHONS); do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	  $$python -c 'import ensurepip, venv' >/dev/null 2>&1 || { \
	    echo "$$python has no venv module. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }; \
	  echo "making .venv with $$($$python --version) ..."; \
	  $$python -m venv .venv && touch $@; exit; \
	done; \
	echo 'no Python 3.11 or newer among: $(PYTHONS)' >&2; \
	echo 'install one, or name it: make demo PYTHON=/path/to/python3' >&2; exit 1
