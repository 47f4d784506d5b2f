#!/usr/bin/env bash
# Makes .venv-interop: foreign readers of the formats that stoker writes, at exact versions, apart from stoker's own environment.
# mosaicml-streaming also imports torch, which the tests lend it from stoker's environment, and torchvision and transformers,
# which they replace by empty modules: it never uses them to read or write a shard.
set -euo pipefail
cd "$(dirname "$0")/.."
exec 9< tools/interop.sh
flock 9 # two test processes may come at once
want=$(cksum tools/interop-constraints.txt)
[ "$(cat .venv-interop/.ready 2>/dev/null || true)" = "$want" ] && exit 0
python=${PYTHON:-.venv/bin/python}
[ -x .venv-interop/bin/python ] || "$python" -m venv .venv-interop
.venv-interop/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r tools/interop-constraints.txt
echo "$want" > .venv-interop/.ready
