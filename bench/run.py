"""Runs every bench, one after the other; each prints one JSON line. Nothing else should run on the machine.

With `--write` the lines go into docs/benchmarks.md and its plot as well (`page.py`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NO_BENCHES = (Path(__file__).name, "link.py", "page.py", "served.py")


def main() -> int:
    """0 when every bench ran."""
    failed, lines = 0, ""
    for bench in sorted(HERE.glob("*.py")):
        if bench.name not in NO_BENCHES and not bench.name.startswith("rival_"):
            done = subprocess.run([sys.executable, bench], check=False, stdout=subprocess.PIPE, text=True)
            print(done.stdout, end="", flush=True)
            failed += done.returncode != 0
            lines += done.stdout
    if "--write" in sys.argv[1:]:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as kept:
            kept.write(lines)
            kept.flush()
            subprocess.run([sys.executable, HERE / "page.py", kept.name], check=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
