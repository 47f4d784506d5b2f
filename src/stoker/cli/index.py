"""`stoker index`: build the index of a dataset, write it beside the data when asked to, or look for damage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from stoker.cli.show import print_json, progress
from stoker.dataset.open import split_urls
from stoker.errors import UsageError
from stoker.format.names import printable
from stoker.index import (
    Index,
    Manifest,
    build,
    check_dataset,
    check_published,
    objects_named,
    open_index,
    options_of,
    plain_findings,
    source_of,
)
from stoker.index.build import Damaged
from stoker.store import check_there, connect
from stoker.store.base import Store
from stoker.units import format_bytes

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: stoker index s3://bucket/photos --check --json")
def index(
    url: str = typer.Argument(help="Folder, bucket or brace pattern of shards; a folder of raw files."),
    publish: bool = typer.Option(False, "--publish", help="Write the index beside the data, into _stoker/."),
    check: bool = typer.Option(
        False, "--check", help="Scan all, compare with the index; exit 1 when an error is found."
    ),
    label: str | None = typer.Option(None, help="Labels of raw files: parent, prefix:_, regex:…, none."),
    format: str | None = typer.Option(  # noqa: A002  # the option is --format
        None, help="webdataset, mds, tfrecord, hdf5, table or files; recognised by default."
    ),
    manifest: str | None = typer.Option(None, help="CSV, JSONL or Parquet: paths and metadata of raw files."),
    keep_damaged: bool = typer.Option(False, "--keep-damaged", help="Index what is whole of damaged shards."),
    workers: int | None = typer.Option(None, min=1, help="Shards scanned at once."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Index a dataset. Exit codes: 0 done; 1 damaged, or --check found an error; 2 wrong usage."""
    if publish and check:
        raise UsageError("--publish and --check exclude each other", "check first, then publish")
    root, shards = split_urls(url)
    store = connect(root)
    check_there(store)
    damaged: Damaged = "keep" if keep_damaged else "refuse"
    with progress("index") as bar:
        if check or publish:
            options = options_of(store, format=format, label=label, manifest=manifest, damaged=damaged)
            source = source_of(
                store, options, infos=objects_named(store, shards, workers=workers), workers=workers, progress=bar
            )
            if check:
                found = check_dataset(source)
                by_index = list(check_published(store, workers=workers, progress=bar)) if shards is None else []
            else:
                written = build(source, store, damaged=damaged, extra={"label": label})
        else:
            opened = open_index(
                store, shards=shards, format=format, label=label, manifest=manifest, damaged=damaged,
                workers=workers, progress=bar,
            )  # fmt: skip
    if check:
        _show_check(store, found.samples, plain_findings((*by_index, *found.findings)), as_json)
    elif publish:
        _show(store, written, f"{store.url}/_stoker", as_json)
    else:
        _show(store, opened.manifest, _place_of(opened), as_json)


def _place_of(opened: Index) -> str:
    return str(opened.folder)


def _show(store: Store, manifest: Manifest, place: str, as_json: bool) -> None:
    findings = manifest.extra.get("findings", [])
    if as_json:
        print_json(
            {
                "url": store.url,
                "index": place,
                "format": manifest.format,
                "samples": manifest.samples,
                "shards": manifest.shards,
                "shard_bytes": manifest.shard_bytes,
                "fields": dict(manifest.fields),
                "columns": dict(manifest.columns),
                "classes": manifest.classes,
                "findings": findings,
            }
        )
        return
    rows = [
        ("format", manifest.format),
        ("samples", f"{manifest.samples:,}"),
        ("shards", f"{manifest.shards:,} ({format_bytes(manifest.shard_bytes)})"),
        ("fields", _most(list(manifest.fields))),
        ("columns", _most(list(manifest.columns)) or "none"),
        ("classes", "none" if manifest.classes is None else f"{len(manifest.classes)}: {_most(manifest.classes)}"),
        ("index", place),
    ]
    print(printable(f"index of {store.url}"))
    for name, value in rows:
        print(f"{name:<8} {printable(value)}")
    _print_findings(findings)


def _show_check(store: Store, samples: int, findings: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print what a check found; ends the command with 1 when an error is among it."""
    counts = {severity: _count(findings, severity) for severity in ("error", "warning", "notice")}
    if as_json:
        print_json({"url": store.url, "samples": samples, "counts": counts, "findings": list(findings)})
    else:
        _print_findings(findings)
        print(f"{samples:,} samples; " + ", ".join(f"{count} {name}s" for name, count in counts.items()))
    if counts["error"]:
        raise typer.Exit(1)


def _count(findings: Sequence[Mapping[str, Any]], severity: str) -> int:
    return sum(finding["count"] for finding in findings if finding["severity"] == severity)


def _most(names: Sequence[str], shown_max: int = 12) -> str:
    more = len(names) - shown_max
    return ", ".join(names[:shown_max]) + (f" and {more} more" if more > 0 else "")


def _print_findings(findings: Sequence[Mapping[str, Any]]) -> None:
    """A line each on stdout, in columns; names from outside cannot move the cursor or colour anything."""
    rows = []
    for finding in findings:
        more = f" ({finding['count']} times)" if finding["count"] > 1 else ""
        cells = (finding["severity"], finding["code"], finding["where"], f"{finding['message']}{more}")
        rows.append([printable(str(cell)) for cell in cells])
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(3)]
    for row in rows:
        print("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))
