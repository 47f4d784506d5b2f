"""`stoker inspect`: what a dataset is made of."""

from __future__ import annotations

import typer

from stoker.check import Inspected
from stoker.check import inspect as run_inspect
from stoker.cli.show import print_json, progress
from stoker.format.names import printable
from stoker.units import format_bytes

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: stoker inspect s3://bucket/photos --json")
def inspect(
    url: str = typer.Argument(help="A dataset in any format: folder, bucket or brace pattern; raw files."),
    format: str | None = typer.Option(None, help="Format of the dataset; recognised by default."),  # noqa: A002  # the option is --format
    label: str | None = typer.Option(None, help="Labels of raw files: parent, prefix:_, regex:…, none."),
    cache: str | None = typer.Option(None, help="Folder for the cache that remote HDF5 and tables are read through."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Describe a dataset: fields, sizes, labels, order, what is unwise. Exit code: 0 when it could be described."""
    with progress("inspect") as bar:
        found = run_inspect(url, format=format, label=label, cache=cache, progress=bar)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found)


def _show(found: Inspected) -> None:
    print(printable(found.url))
    print(f"{found.format}: {found.samples:,} samples, {found.shards:,} shards, {format_bytes(found.shard_bytes)}")
    print("fields (bytes: min, median, max)")
    width = max((len(printable(one.name)) for one in found.fields), default=0)
    for one in found.fields:
        sizes = ", ".join(map(format_bytes, (one.bytes_min, one.bytes_median, one.bytes_max)))
        print(f"  {printable(one.name):<{width}}  {printable(one.kind)}, in {one.samples:,} samples: {sizes}")
    print(f"columns: {printable(', '.join(found.columns)) or 'none'}")
    print("shards by size")
    most = max(count for _, _, count in found.shard_sizes)
    for start, stop, count in found.shard_sizes:
        bar = "#" * max(1, 40 * count // most)
        print(f"  {format_bytes(start):>8} to {format_bytes(stop):>8}  {count:>6,}  {bar}")
    if found.labels:
        shown = ", ".join(f"{label} {count:,}" for label, count in found.labels)
        print(f"labels: {printable(shown)}{' …' if (found.classes or 0) > len(found.labels) else ''}")
    if found.shuffle is not None:
        share = f"{found.shuffle.equal_share:.1%} of neighbours alike, {found.shuffle.expected_share:.1%} expected"
        print(f"order: {found.shuffle.verdict} ({share})")
    for warning in found.warnings:
        print(f"warning: {warning.code}: {warning.message}")
