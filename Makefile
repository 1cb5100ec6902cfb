# Every chore of this project, for people and for CI alike. `make` lists them.
#
# Needs: Python >= 3.11.3 with venv, make, git. Everything else lands in .venv of this checkout.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# What was imported once stays compiled, whatever the environment says: a process starts in a third of the time, and
# tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
# An environment cannot be moved: where this checkout is not where it was, or its Python is gone, set up anew.
ifneq ($(shell $(BIN)/python -c 'print(open("$(READY)").read())' 2>/dev/null),$(CURDIR))
$(shell rm -f $(READY))
endif
# `make test ARGS="tests/lua -k lapse"` runs a part, `ARGS="-n 0"` all of it in one process.
ARGS ?=
# Two processes, on any machine: each starts servers of its own, and most of a test's time is waiting for those.
SPREAD := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help setup demo test soak bench lint format types lua imports cov docs lock ci clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv and install what requirements.lock pins

$(READY): requirements.lock pyproject.toml .ci/setup
	@.ci/setup $(VENV)

demo: setup ## Start everything, stream one chat job through it, show what happened, stop
	@$(BIN)/hordechat demo

test: setup ## Run every test against real servers
	@$(BIN)/python -m pytest -m "not soak" $(SPREAD) $(ARGS)

soak: setup ## Run the long forms of the tests, in one process
	@$(BIN)/python -m pytest -m soak $(ARGS)

cov: setup ## Run the tests with branch coverage of the packages that hold the rules
	@$(BIN)/python -m pytest -m "not soak" $(SPREAD) --cov --cov-report=term $(ARGS)

bench: setup ## Measure, print ratios, write JSON
	@$(BIN)/python -m bench $(ARGS)

lint: setup ## Check format and lint (ruff)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .

format: setup ## Rewrite the code in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

types: setup ## Check types (mypy --strict)
	@$(BIN)/mypy

lua: setup ## Expand the Lua scripts into build/lua and run luacheck over them
	@rm -rf build/lua
	@$(BIN)/python -m lua.scripts build/lua
	@command -v luacheck >/dev/null || { echo "luacheck is missing: install the Debian package lua-check" >&2; exit 1; }
	@luacheck --no-color --quiet build/lua

imports: setup ## Check the import contract (import-linter)
	@$(BIN)/lint-imports

docs: setup ## Write the parts of docs/ that are generated
	@$(BIN)/python -m hordechat settings --markdown > docs/settings.md.tmp
	@mv docs/settings.md.tmp docs/settings.md
	@$(BIN)/python -m tests.spec
	@$(BIN)/python -m tests.event_page

lock: setup ## Resolve the dependencies anew and write requirements.lock
	@.ci/lock

ci: ## The whole gate
	@.ci/run

clean: ## Remove the environment and what was built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
