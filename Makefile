# Every target works on a bare Debian or Ubuntu with python3 and make: `.venv/.ready` does all set-up.
SHELL := /bin/bash
PY := .venv/bin/python
SRC := src tests bench examples tools

.PHONY: demo test check bench bench-env crash fuzz oracle docs constraints clean

.venv/.ready: pyproject.toml constraints.txt tools/bootstrap.sh
	tools/bootstrap.sh

demo: .venv/.ready
	.venv/bin/stoker demo

test: .venv/.ready
	$(PY) -m pytest tests -n 2 --dist loadfile

check: .venv/.ready
	$(PY) -m ruff format --check $(SRC)
	$(PY) -m ruff check $(SRC)
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) tools/sizes.py
	$(PY) tools/changelog.py --check

crash: .venv/.ready
	STOKER_CRASH_POINTS=50 $(PY) -m pytest tests/crash

FUZZ_S ?= 60
fuzz: .venv/.ready
	FUZZ_S=$(FUZZ_S) $(PY) tests/fuzz.py

oracle: .venv/.ready
	tools/oracle.sh
	$(PY) -m pytest tests/interop/test_tensorflow_oracle.py

bench: .venv/.ready
	$(PY) bench/run.py

bench-env:
	tools/bench-env.sh

docs: .venv/.ready
	$(PY) tools/changelog.py
	$(PY) -m pytest tests/surface/test_documents.py

constraints: .venv/.ready
	.venv/bin/pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf .venv .venv-interop .venv-oracle .venv-bench .mypy_cache .ruff_cache build dist
