# Every target sets up its own environment: Python 3.11+, pip, gcc and make are the only requirements.
PYTHON ?= python3
BIN := .venv/bin

# OpenMP threads that spin while they wait slow down a shared machine 1.4 to 4 times.
export OMP_WAIT_POLICY := PASSIVE

# Packages are installed without bytecode: the first process writes it, and the next ones read it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check mutate docs tables install clean

demo: .venv/base
	$(BIN)/python examples/text_to_image.py --out out/demo.png

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --durations 10

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Plausible mistakes in the code, each of which a test must detect; prints those that none does. About 10 minutes.
mutate: .venv/installed
	$(BIN)/python scripts/mutate.py

# The generated pages of docs/.
docs: .venv/installed tables
	$(BIN)/python scripts/docs.py

# What `tmatch variants`, `recipes` and `models` print; run it after changing a variant or a recipe.
tables: .venv/base
	$(BIN)/python -m tmatch.app.tables

install: .venv/installed

# torch is installed first and pinned: any other package that requires it would fetch another build.
.venv/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[plot]'
	touch $@

# constraints.txt lists everything the extra [dev] requires, so there is nothing to resolve.
.venv/installed: .venv/base
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --requirement constraints.txt
	touch $@

clean:
	rm -rf .venv out
