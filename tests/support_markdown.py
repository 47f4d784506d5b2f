"""Code blocks of documents, so that tests can run what readers will."""

from __future__ import annotations

import re
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    """The fenced blocks of that language, in order."""
    return [code for name, code in _BLOCK.findall(document.read_text()) if name == language]
