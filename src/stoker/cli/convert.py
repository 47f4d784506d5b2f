"""`stoker convert`: a dataset in another format. The last line has the counts."""

from __future__ import annotations

import typer

from stoker.cli.show import print_json, progress
from stoker.convert import ConvertReport
from stoker.convert import convert as run_convert
from stoker.units import format_bytes

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: stoker convert shards/ s3://bucket/photos-mds --format mds")
def convert(
    src: str = typer.Argument(help="A dataset in any format: folder, bucket or brace pattern; raw files."),
    dst: str = typer.Argument(help="Folder or bucket prefix: new, or of an earlier run of the same conversion."),
    format: str = typer.Option(..., help="webdataset, mds, tfrecord, hdf5, table or arrays."),  # noqa: A002  # the option is --format
    shard_size: str = typer.Option("256MB", help="Bytes of the values in a shard."),
    field: list[str] | None = typer.Option(None, help="Take only this field. May be repeated."),
    rename: list[str] | None = typer.Option(None, help="Call a field otherwise: old=new. May be repeated."),
    decode: list[str] | None = typer.Option(
        None, help="Write this field's value (npy an array, txt a text, cls a number), not its bytes. May be repeated."
    ),
    source_format: str | None = typer.Option(None, "--from", help="Format of the source; recognised by default."),
    label: str | None = typer.Option(None, help="Labels of raw files: parent, prefix:_, regex:…, none."),
    workers: int | None = typer.Option(None, min=1, help="Shards written at once."),
    cache: str | None = typer.Option(None, help="Folder for the cache that remote HDF5 and tables are read through."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Write a dataset in another format; after a kill, run it again. Exit codes: 0 done; 1 bad data; 2 wrong usage,
    or a value that the format cannot hold: then nothing was written."""
    with progress("converting") as bar:
        report = run_convert(
            src, dst, format=format, shard_size=shard_size, fields=field or (), rename=rename or (),
            decode=decode or (), source_format=source_format, label=label, cache=cache, workers=workers, progress=bar,
        )  # fmt: skip
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report)


def _show(report: ConvertReport) -> None:
    if report.shards_made == 0:
        print(f"{report.url} was finished before: nothing to do")
    elif report.shards_made < report.shards:
        print(f"went on with an earlier run: {report.shards - report.shards_made} shards were there")
    counts = f"samples {report.samples:,}, shards {report.shards:,}, {format_bytes(report.shard_bytes)}"
    print(f"stoker convert: {report.url}: {report.format}: {counts}")
