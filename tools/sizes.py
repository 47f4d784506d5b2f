"""The size budgets of the house, measured and enforced: files, functions, constructors, annotations, handlers.

Lines of a function are those from `def` to its end less its docstring. Run by `make check`; prints a table, exits
with 1 when a budget is broken and names the places."""

from __future__ import annotations

import ast
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_MAX, FILE_MEDIAN, FUNCTION_MAX, FUNCTION_MEDIAN, FUNCTION_P90, INIT_MAX, BROAD_MAX = 400, 180, 60, 8, 30, 7, 3
FACADES = {"Loader", "Checkpointer"}  # the two classes whose constructors may take more


@dataclass(frozen=True)
class Function:
    """One function or method with what the budgets ask of it."""

    where: str
    lines: int
    annotated: bool
    init_arguments: int


def functions(path: Path, tree: ast.Module) -> list[Function]:
    """Every function of a module."""
    owners = {id(f): c.name for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        doc = node.body[0] if ast.get_docstring(node) else None
        doc_lines = (doc.end_lineno or 0) - doc.lineno + 1 if doc else 0
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        named = [a for a in every if a.arg not in ("self", "cls")]
        owner = owners.get(id(node), "")
        found.append(
            Function(
                f"{path.relative_to(ROOT)}:{node.lineno} {owner + '.' if owner else ''}{node.name}",
                (node.end_lineno or node.lineno) - node.lineno + 1 - doc_lines,
                node.returns is not None and all(a.annotation is not None for a in named),
                len(named) if node.name == "__init__" and owner not in FACADES else 0,
            )
        )
    return found


def broad_handlers(path: Path, tree: ast.Module) -> list[str]:
    """Handlers that catch everything."""
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or (isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")))
    ]


def inner_imports(path: Path, tree: ast.Module) -> list[str]:
    """First-party imports hidden inside functions."""
    found = []
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stoker"):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def code_lines(folder: str) -> int:
    """Lines that are neither blank nor comment."""
    return sum(
        1
        for path in (ROOT / folder).rglob("*.py")
        for line in path.read_text().splitlines()
        if line.strip() and not line.strip().startswith("#")
    )


def main() -> int:
    """Print the report; 1 when a budget is broken."""
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "src").rglob("*.py"))}
    lengths = {path: len(path.read_text().splitlines()) for path in trees if path.stat().st_size}
    every = [f for path, tree in trees.items() for f in functions(path, tree)]
    sizes = sorted(f.lines for f in every)
    broad = [place for path, tree in trees.items() for place in broad_handlers(path, tree)]
    p90 = sizes[int(len(sizes) * 0.9)]
    ratio = code_lines("tests") / max(1, code_lines("src"))
    file_median = statistics.median(lengths.values())
    print(f"files      median {file_median:.0f} (≤ {FILE_MEDIAN}), max {max(lengths.values())} (≤ {FILE_MAX})")
    print(
        f"functions  median {statistics.median(sizes):.0f} (≤ {FUNCTION_MEDIAN}), "
        f"p90 {p90} (≤ {FUNCTION_P90}), max {sizes[-1]} (≤ {FUNCTION_MAX})"
    )
    print(
        f"broad handlers {len(broad)} (≤ {BROAD_MAX}); tests : code {ratio:.2f}; "
        f"{len(trees)} files, {sum(lengths.values())} lines"
    )
    faults = [f"file too long: {p.relative_to(ROOT)} {n}" for p, n in lengths.items() if n > FILE_MAX]
    faults += [f"function too long: {f.where} {f.lines}" for f in every if f.lines > FUNCTION_MAX]
    faults += [f"not annotated: {f.where}" for f in every if not f.annotated]
    faults += [
        f"constructor with {f.init_arguments} arguments: {f.where}" for f in every if f.init_arguments > INIT_MAX
    ]
    faults += [f"hidden import: {place}" for path, tree in trees.items() for place in inner_imports(path, tree)]
    if len(broad) > BROAD_MAX:
        faults += [f"broad handler: {place}" for place in broad]
    if (
        statistics.median(lengths.values()) > FILE_MEDIAN
        or statistics.median(sizes) > FUNCTION_MEDIAN
        or p90 > FUNCTION_P90
    ):
        faults.append("a median or p90 is over its budget")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
