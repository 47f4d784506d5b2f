#!/usr/bin/env bash
# Makes .venv from nothing but python3: the virtual environment, exact versions, stoker itself in place. Run by make.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "stoker: python3 is missing; install it first (apt-get install python3)" >&2; exit 1; }
"$python" - <<'P' || exit 1
import sys
if sys.version_info < (3, 11):
    sys.exit(f"stoker: Python 3.11 or newer is needed, this is {sys.version.split()[0]}; set PYTHON=/path/to/python3.11")
P
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv >/dev/null
    else
        echo "stoker: this Python has no venv module; run: sudo apt-get install python3-venv" >&2
        exit 1
    fi
fi
include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
if ! command -v cc >/dev/null || [ ! -f /usr/include/jpeglib.h ] || [ ! -f "$include/Python.h" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then  # for decoding parts of JPEGs; optional
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y gcc libc6-dev libjpeg-dev python3-dev >/dev/null ||
            echo "stoker: no compiler or libjpeg headers: JPEGs will be decoded whole, which is slower" >&2
    else
        echo "stoker: JPEGs will be decoded whole, which is slower; for the rest: sudo apt-get install gcc libjpeg-dev python3-dev" >&2
    fi
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
echo "stoker: installing into .venv (the first time takes a minute or two)" >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
touch .venv/.ready
