"""Runs benches one after the other and prints their numbers beside the targets: `python bench/run.py [NAME …] [--write]`.

Without names: every bench that has a target (`targets.py`), over an hour on two cores. Nothing else should run on the machine.
Each prints one JSON line, which is passed on; the table comes last, on stderr. With `--write` the lines go into docs/benchmarks.md
and its plot as well (`page.py`). Exits with 1 when a bench failed; a number that is missed is only said.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from page import write
from targets import ROWS, Lines, printed, rows

HERE = Path(__file__).parent


def main(arguments: list[str]) -> int:
    """0 when every bench ran."""
    names = [one for one in arguments if not one.startswith("-")] or list(ROWS)
    found: Lines = {}
    failed = []
    for name in names:
        done = subprocess.run([sys.executable, HERE / f"{name}.py"], check=False, stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="", flush=True)
        failed += [name] if done.returncode else []
        for line in filter(lambda one: one.startswith("{"), done.stdout.splitlines()):
            found[name] = json.loads(line)
    print(printed(rows(found)), file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    if "--write" in arguments:
        write(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
