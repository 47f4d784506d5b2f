#!/usr/bin/env bash
# Makes .venv-oracle: TensorFlow, whose own readers and writers of TFRecord are the judge of ours. Run by `make oracle`; not part
# of CI, because it takes 1.6 GB.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
[ -x .venv-oracle/bin/python ] || "$python" -m venv .venv-oracle
.venv-oracle/bin/python -m pip install --quiet --disable-pip-version-check 'tensorflow-cpu==2.21.0'
