"""Runs every bench, one after the other; each prints one JSON line. Nothing else should run on the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


NO_BENCHES = (Path(__file__).name, "link.py")


def main() -> int:
    """0 when every bench ran."""
    failed = 0
    for bench in sorted(Path(__file__).parent.glob("*.py")):
        if bench.name not in NO_BENCHES and not bench.name.startswith("rival_"):
            failed += subprocess.run([sys.executable, bench], check=False).returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
