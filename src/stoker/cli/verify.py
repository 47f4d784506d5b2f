"""`stoker verify`: all that is wrong with a dataset, and with --repair what can be saved of it."""

from __future__ import annotations

import typer

from stoker.check import Salvaged, Verified, salvage
from stoker.check import verify as run_verify
from stoker.cli.show import print_json, progress, say
from stoker.format.names import printable

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(epilog="Example: stoker verify s3://bucket/photos --deep --json")
def verify(
    url: str = typer.Argument(help="A dataset in any format: folder, bucket or brace pattern; raw files."),
    deep: bool = typer.Option(False, "--deep", help="Read and decode every field, too."),
    repair: str | None = typer.Option(
        None, metavar="DST", help="Write the whole samples of damaged shards to this new place; the source stays."
    ),
    warnings_ok: bool = typer.Option(False, "--warnings-ok", help="Exit with 0 unless there are errors."),
    format: str | None = typer.Option(None, help="Format of the dataset; recognised by default."),  # noqa: A002  # the option is --format
    label: str | None = typer.Option(None, help="Labels of raw files: parent, prefix:_, regex:…, none."),
    workers: int | None = typer.Option(None, min=1, help="Shards looked at, and samples decoded, at once."),
    cache: str | None = typer.Option(None, help="Folder for the cache that remote HDF5 and tables are read through."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Look for damage. Exit codes: 0 nothing was found; 1 something was, or could not be looked at; 2 wrong usage."""
    with progress("verify") as bar:
        found = run_verify(url, deep=deep, format=format, label=label, cache=cache, workers=workers, progress=bar)
    saved = None
    if repair is not None and found.damaged:
        with progress("repair") as bar:
            saved = salvage(url, repair, found, format=format, cache=cache, progress=bar)
    if as_json:
        print_json({**found.to_dict(), "repaired": None if saved is None else saved.to_dict()})
    else:
        _show(found, saved)
    if repair is not None and saved is None:
        say(f"{'no shard holds what is wrong' if found.errors else 'nothing is damaged'}: nothing was written")
    if found.errors or (found.findings and not warnings_ok):
        raise typer.Exit(1)


def _show(found: Verified, saved: Salvaged | None) -> None:
    for finding in found.findings:
        more = f" ({finding.count:,} times)" if finding.count > 1 else ""
        print(f"{finding.severity}  {finding.code}  {printable(finding.where)}: {printable(finding.message)}{more}")
    counts = found.to_dict()["counts"]
    told = ", ".join(f"{count:,} {name}s" for name, count in counts.items())
    if saved is not None:
        for shard in saved.shards:
            before = "an unknown number of" if shard.before is None else f"{shard.before:,}"
            print(f"repaired  {printable(shard.shard)}: {before} samples before, {shard.after:,} after")
        for name in saved.doubtful:
            print(f"doubtful  {printable(name)}: saved, but its sum is wrong, and which sample changed is not known")
        for place in saved.lost:
            print(f"lost  {printable(place)}")
        print(f"saved {saved.samples:,} samples" + (f" in {saved.url}" if saved.samples else ""))
    print(f"stoker verify: {found.url}: {found.format}: {found.samples:,} whole samples; {told}")
