#!/usr/bin/env bash
# Makes .venv-bench: the rivals, with torch and torchvision that fit each other (a CUDA build of some 5 GB), and stoker.
# Run by `make bench-env`; not part of CI. What cannot be installed is named and left out of the comparison.
set -euo pipefail
cd "$(dirname "$0")/.."
[ -x .venv-bench/bin/python ] || python3 -m venv .venv-bench
pip=".venv-bench/bin/python -m pip install --quiet --disable-pip-version-check"
$pip 'torch==2.14.1' 'torchvision==0.29.1'
for rival in webdataset mosaicml-streaming litdata spdl nvidia-dali-cuda120; do
    $pip "$rival" 'torch==2.14.1' 'torchvision==0.29.1' || echo "bench-env: $rival cannot be installed here" >&2
done
$pip -e .
