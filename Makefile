# Bare `make` lists these targets. Each does what set-up it needs; a second call is fast.
.DEFAULT_GOAL := help
BIN := .venv/bin

.PHONY: help setup up demo test unit e2e lint format types bench vendor

help:
	@echo 'make setup    a virtual environment with the locked packages, bubblewrap and libseccomp'
	@echo 'make up       start Umpteenth at http://127.0.0.1:8080 (another port: PORT=…)'
	@echo 'make demo     set up, then run the example to its end'
	@echo 'make test     set up everything, then lint, types and all tests'
	@echo 'make unit     the fast tests;  make e2e  the browser tests'
	@echo 'make lint     ruff and djlint'
	@echo 'make format   let ruff and djlint rewrite what they can'
	@echo 'make types    mypy'
	@echo 'make bench    measure against the bare SDK, into bench/results.md; then look for what 500 runs leave'
	@echo 'make vendor   fetch the pinned CSS and JavaScript into static/vendor'

setup:
	@.ci/setup demo

up: setup
	@exec $(BIN)/umpteenth up $(if $(PORT),--port $(PORT))

demo: setup
	@exec $(BIN)/umpteenth demo

test:
	@.ci/setup test
	@.ci/test

unit:
	@.ci/setup packages
	@$(BIN)/pytest -q -n 2 tests/units

e2e:
	@.ci/setup test
	@$(BIN)/pytest -q tests/e2e

lint:
	@.ci/setup packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/djlint --quiet --lint templates

format:
	@.ci/setup packages
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/djlint --quiet --reformat templates

types:
	@.ci/setup packages
	@$(BIN)/mypy .

bench:
	@.ci/setup test
	@$(BIN)/python -m bench
	@LEAK_RUNS=500 $(BIN)/pytest -q tests/real/test_leaks_of_runs.py

vendor:
	@.ci/vendor
