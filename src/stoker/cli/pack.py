"""`stoker pack`: raw files → shards. What was left out is told a line each, the last line has the counts."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Literal, cast

import typer

from stoker.cli.show import print_json, progress
from stoker.decode import quiet_pillow
from stoker.errors import UsageError
from stoker.format.names import printable
from stoker.pack import PackReport
from stoker.pack import pack as run_pack
from stoker.units import format_bytes

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: stoker pack photos/ s3://bucket/photos --shard-size 256MB")
def pack(
    src: str = typer.Argument(help="Folder, bucket or archives (.zip, .tar, .tar.gz, .tar.zst) of raw files."),
    dst: str = typer.Argument(
        help="Folder or bucket prefix for the shards: new, or of an earlier run of the same job."
    ),
    format: str | None = typer.Option(  # noqa: A002  # the option is --format
        None, help="Format of the shards: webdataset, or with --predecode arrays."
    ),
    shard_size: str | None = typer.Option(None, help="Bytes of a shard, as 256MB (the default) or 1GiB."),
    shards: int | None = typer.Option(None, min=1, help="Number of shards, instead of their size."),
    label: str | None = typer.Option(None, help="Where labels come from: parent, prefix:_, regex:…, none."),
    manifest: str | None = typer.Option(None, help="CSV, JSONL or Parquet: paths and metadata of the files."),
    include: list[str] | None = typer.Option(None, help="Take only paths that match, as '*.jpg'. May be repeated."),
    exclude: list[str] | None = typer.Option(None, help="Leave out paths that match. May be repeated."),
    resize_short: int | None = typer.Option(
        None, min=1, help="Shrink pictures until the shorter side has that many pixels."
    ),
    transcode: str | None = typer.Option(None, help="Encode pictures anew: jpeg:90, webp:80 or png."),
    predecode: int | None = typer.Option(
        None, min=1, help="Decode pictures once: keep a square of so many pixels a side, which no loader decodes."
    ),
    transform: str | None = typer.Option(
        None, help="module:function that takes a sample and gives none, one or several."
    ),
    seed: int = typer.Option(0, min=0, help="Decides the order of the samples."),
    workers: int | None = typer.Option(
        None, min=1, help="Threads; by default as many as CPUs, more for remote stores."
    ),
    on_bad: str = typer.Option("fail", help="fail stops at a bad sample, skip leaves it out and tells."),
    compress: str = typer.Option("", help="Compress the shards as a whole: gzip or zstd."),
    scratch: str | None = typer.Option(None, help="Folder for shards in the making; default: the system's."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Pack raw files into shards with an index; after a kill, run it again. Exit codes: 0 done; 1 bad data; 2 usage."""
    if on_bad not in ("fail", "skip"):
        raise UsageError(f"--on-bad is fail or skip, found {on_bad!r}")
    quiet_pillow()
    if transform is not None:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does: a script beside the data can be named
    with progress("packing") as bar, contextlib.redirect_stdout(sys.stderr):  # stdout is ours, not a transform's
        report = run_pack(
            src, dst, format=format, shard_size=shard_size, shards=shards, label=label, manifest=manifest,
            include=include or (), exclude=exclude or (), resize_short=resize_short, transcode=transcode,
            predecode=predecode, transform=transform, seed=seed, workers=workers,
            on_bad=cast(Literal["fail", "skip"], on_bad), compress=compress, scratch=scratch, progress=bar,
        )  # fmt: skip
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report)


def _show(report: PackReport) -> None:
    for finding in report.findings:
        more = f" ({finding.count} times)" if finding.count > 1 else ""
        print(f"{finding.severity}  {finding.code}  {printable(finding.where)}: {printable(finding.message)}{more}")
    if report.shards_made == 0:
        print(f"{report.url} was finished before: nothing to do")
    elif report.shards_made < report.shards:
        print(f"went on with an earlier run: {report.shards - report.shards_made} shards were there")
    skipped = f", {report.skipped:,} skipped" if report.skipped else ""
    counts = f"samples {report.samples:,}, shards {report.shards:,}, {format_bytes(report.shard_bytes)}"
    print(f"stoker pack: {report.url}: {counts}{skipped}")
