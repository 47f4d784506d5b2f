#!/usr/bin/env bash
# Everything that needs a GPU, in under four minutes: prints one JSON line a check, exits with 1 when one fails.
# usage: tests/gpu/run.sh [PYTHON]   (a Python with a CUDA torch; stoker is taken from this tree)
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
"$python" -c 'import obstore, pyarrow, simplejpeg, blake3' 2>/dev/null || "$python" -m pip install --quiet -e .
PYTHONPATH=src:tests exec timeout 230 "$python" tests/gpu/checks.py
