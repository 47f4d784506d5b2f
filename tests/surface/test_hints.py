"""What errors advise can be done: no hint names a command that does not exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import stoker
from stoker.cli.main import COMMANDS

SOURCE = Path(stoker.__file__).parent
COMMAND = re.compile(r"`stoker ([a-z]+)")


def advised(text: str) -> set[str]:
    """The commands that the string literals of a module name in backquotes, docstrings apart."""
    tree = ast.parse(text)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and node.body
        if isinstance(node.body[0], ast.Expr)
    }
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings]
    return {name for text in texts if isinstance(text, str) for name in COMMAND.findall(text)}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_hints_name_commands_that_exist(path: Path) -> None:
    """Every `stoker …` in a message is a command of this version."""
    assert advised(path.read_text()) <= set(COMMANDS)


def test_a_missing_command_would_be_found() -> None:
    """The search sees through line breaks and f-strings, and some hint does name a command."""
    assert advised('raise E(f"{x}: run `stoker frobnicate {y}`", "or `stoker index`")') == {"frobnicate", "index"}
    assert any(advised(path.read_text()) for path in SOURCE.rglob("*.py"))
