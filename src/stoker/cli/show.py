"""How commands talk to people: progress on stderr when it is a terminal, tables and JSON on stdout."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from stoker.flow import Progress as ProgressCall
from stoker.units import format_bytes


def say(text: str) -> None:
    """A line for the person who watches: stderr."""
    print(text, file=sys.stderr, flush=True)


def print_json(value: Mapping[str, object]) -> None:
    """One object on stdout."""
    print(json.dumps(value, indent=2, default=str))


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A two-column table on stdout, readable without colour."""
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column()
    table.add_column(overflow="fold")  # a cut path is no path
    for name, value in rows:
        table.add_row(name, value)
    Console(file=sys.stdout, highlight=False).print(table)


@contextlib.contextmanager
def progress(label: str) -> Iterator[ProgressCall]:
    """A bar that is fed by a `flow.Progress` call; nothing at all when stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, count_bytes: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[size]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None, size="")

        def update(done: int, total: int, count_bytes: int) -> None:
            bar.update(task, completed=done, total=total or None, size=format_bytes(count_bytes) if count_bytes else "")

        yield update
