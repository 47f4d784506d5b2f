#!/usr/bin/env bash
# Makes .venv-interop: foreign readers of the formats that stoker writes, at exact versions, apart from stoker's own environment.
set -euo pipefail
cd "$(dirname "$0")/.."
want=$(cksum tools/interop-constraints.txt)
[ "$(cat .venv-interop/.ready 2>/dev/null || true)" = "$want" ] && exit 0
python=${PYTHON:-.venv/bin/python}
[ -x .venv-interop/bin/python ] || "$python" -m venv .venv-interop
.venv-interop/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tools/interop-constraints.txt
echo "$want" > .venv-interop/.ready
