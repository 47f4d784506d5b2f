"""Joins the notes in changes/ into CHANGELOG.md; with --check only says whether that was done. Run by `make check`."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "fixed", "removed")
HEAD = "# Changelog\n\nWritten by `tools/changelog.py` from the notes in `changes/`.\n\n## Unreleased\n"


def joined() -> str:
    """The changelog's text. SystemExit names a note of no known kind."""
    notes: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in sorted((ROOT / "changes").glob("*.md")):
        kind = path.stem.rpartition(".")[2]
        if kind not in notes:
            raise SystemExit(f"{path}: a note is called <slug>.<kind>.md, kind one of {', '.join(KINDS)}")
        notes[kind].append("- " + " ".join(path.read_text().split()))
    parts = [f"\n### {kind.capitalize()}\n\n" + "\n".join(found) + "\n" for kind, found in notes.items() if found]
    return HEAD + "".join(parts)


def main() -> int:
    """Write, or with --check compare; 1 when they differ."""
    target, text = ROOT / "CHANGELOG.md", joined()
    if "--check" not in sys.argv[1:]:
        target.write_text(text)
        return 0
    if target.read_text() == text:
        return 0
    print("CHANGELOG.md is not what changes/ says: run tools/changelog.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
