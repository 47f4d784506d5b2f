"""`stoker formats`: what the formats are good for."""

from __future__ import annotations

from dataclasses import asdict

import typer

from stoker.cli.show import print_json
from stoker.format.compare import COMPARISON, HEADINGS, cells

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: stoker formats --json")
def formats(as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> None:
    """Compare the formats: how each is read, random access, compression, who writes it. Exit code: 0."""
    if as_json:
        print_json({"formats": [asdict(one) for one in COMPARISON]})
        return
    for one in COMPARISON:
        name, *rest = cells(one)
        print(name)
        for heading, cell in zip(HEADINGS[1:], rest, strict=True):
            print(f"  {heading:<15}{cell.replace('`', '')}")
