# Every target sets itself up: Python 3.11+, pip, gcc and make are all a machine needs.
PYTHON ?= python3
BIN := .venv/bin

# Waiting OpenMP threads that spin slow a shared machine down 1.4 to 4 times.
export OMP_WAIT_POLICY := PASSIVE

# Packages are installed uncompiled: what the first process compiles, the next ones must find.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check docs install clean

demo: .venv/base
	$(BIN)/python examples/text_to_image.py --out out/demo.png

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --durations 10

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/installed
	$(BIN)/python scripts/docs.py

install: .venv/installed

# torch goes first and pinned: anything else that asks for it would fetch another build.
.venv/base: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[plot]'
	touch $@

# constraints.txt names all that the extra [dev] asks for, so there is nothing left to resolve.
.venv/installed: .venv/base
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --requirement constraints.txt
	touch $@

clean:
	rm -rf .venv out
