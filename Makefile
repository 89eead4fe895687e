# The two commands of the README: `make demo` and `make test`. Both set up `.venv` first.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[torch,plot,search,dev]'
	touch $@

demo: .venv/installed
	PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo.sh

test: lint
	$(BIN)/pytest -n 2

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build
