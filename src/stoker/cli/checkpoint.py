"""`stoker checkpoint …`: look at checkpoints on any tier, verify, move, pin, export them; how often to save."""

from __future__ import annotations

import importlib
import time
from dataclasses import asdict
from pathlib import Path

import typer

from stoker.checkpoint import Keep, admin
from stoker.checkpoint.interval import best_interval
from stoker.cli.show import print_json, say
from stoker.errors import UsageError
from stoker.format.names import printable
from stoker.store.atomic import whole_file
from stoker.units import format_bytes, format_duration, parse_duration

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, no_args_is_help=True,
    help="Look at, verify, move and pin checkpoints.", epilog="Example: stoker checkpoint ls /nvme/ck s3://bucket/ck",
)  # fmt: skip

_URL = typer.Argument(help="Folder or URL that holds checkpoints.")
_NAME = typer.Argument(None, metavar="[NAME|STEP]", help="Name or step; by default the newest complete one.")
_NAMED = typer.Argument(metavar="NAME|STEP", help="Name or step.")
_JSON = typer.Option(False, "--json", help="Print one JSON object.")
_RATE = typer.Option(None, "--rate", help="Most bytes a second, as 500MB/s.")


@app.command(epilog="Example: stoker checkpoint ls /nvme/ck s3://bucket/ck --json")
def ls(
    urls: list[str] = typer.Argument(help="Folders and URLs, nearest first."), as_json: bool = _JSON
) -> None:  # fmt: skip
    """List checkpoints, newest first. Exit code: 0."""
    rows = admin.rows([admin.tier_of(url) for url in urls])
    if as_json:
        print_json({"checkpoints": [asdict(row) for row in rows]})
        return
    for row in rows:
        age = "" if row.created_s is None else f"  {format_duration(max(0.0, time.time() - row.created_s))} ago"
        pinned = "  pinned" if row.pinned else ""
        print(f"{row.name}  {row.state:<10}  {format_bytes(row.size):>8}{age}{pinned}  {printable(row.url)}")
    say(f"{len(rows)} on {len(urls)} tiers")


@app.command(epilog="Example: stoker checkpoint verify s3://bucket/ck 12000")
def verify(url: str = _URL, name: str | None = _NAME, as_json: bool = _JSON) -> None:
    """Read every byte of one checkpoint. Exit codes: 0 it is what was saved; 1 it is not; 2 wrong usage."""
    tier = admin.tier_of(url)
    seen = admin.chosen(tier, name)
    faults = admin.verify(tier, seen)
    if as_json:
        print_json({"url": tier.url, "name": seen.name, "findings": faults})
    else:
        for fault in faults:
            print(printable(fault))
        print(f"{seen.name}: {'every byte is what was saved' if not faults else f'{len(faults)} findings'}")
    if faults:
        raise typer.Exit(1)


@app.command(epilog="Example: stoker checkpoint scrub /lustre/ck")
def scrub(url: str = _URL, as_json: bool = _JSON) -> None:
    """Read all checkpoints back; mark the damaged ones, which are then no candidates any more. Exit codes: 0 all are
    right; 1 some are damaged; 2 wrong usage."""
    tier, found = admin.tier_of(url), []

    def told(name: str, faults: list[str]) -> None:
        found.append({"name": name, "findings": faults})
        if not as_json:
            print(f"{name}: {'right' if not faults else 'damaged: ' + printable('; '.join(faults))}", flush=True)

    damaged = admin.scrub(tier, told)
    if as_json:
        print_json({"url": tier.url, "checkpoints": found, "damaged": damaged})
    if damaged:
        raise typer.Exit(1)


@app.command(epilog="Example: stoker checkpoint push /nvme/ck s3://bucket/ck")
def push(
    local: str = _URL, remote: str = typer.Argument(help="Where to."), name: str | None = _NAME,
    every: int = typer.Option(0, min=0, help="Multiples of this step are permanent: all of them are pushed."),
    rate: str | None = _RATE, as_json: bool = _JSON,
) -> None:  # fmt: skip
    """Upload what a remote lacks: the newest, pinned and permanent ones, or the one named. Exit codes: 0 done; 1 it
    could not be; 2 wrong usage."""
    here, there = admin.tier_of(local), admin.tier_of(remote, rate, make=True)
    sent = admin.push(here, there, name, Keep(every=every))
    if as_json:
        print_json({"remote": there.url, "pushed": [{"name": one, "sent_bytes": count} for one, count in sent]})
        return
    for one, count in sent:
        print(f"{one}: {format_bytes(count)} sent, verified")
    if not sent:
        say("nothing to push")


@app.command(epilog="Example: stoker checkpoint pull s3://bucket/ck /nvme/ck")
def pull(
    remote: str = _URL, local: str = typer.Argument(help="Where to."), name: str | None = _NAME,
    rate: str | None = _RATE, as_json: bool = _JSON,
) -> None:  # fmt: skip
    """Fetch a checkpoint, verified, so that `resume` finds it. Exit codes: 0 done; 1 it could not be; 2 wrong usage."""
    folder = admin.pull(admin.tier_of(remote, rate), admin.tier_of(local, make=True), name)
    if as_json:
        print_json({"folder": str(folder)})
    else:
        print(printable(str(folder)))


@app.command(epilog="Example: stoker checkpoint pin s3://bucket/ck 12000")
def pin(
    url: str = _URL, name: str = _NAMED, off: bool = typer.Option(False, "--off", help="No longer."),
    as_json: bool = _JSON,
) -> None:  # fmt: skip
    """Keep a checkpoint for ever on a tier; pinned local ones are uploaded too. Exits with 0, or 2 for wrong usage."""
    tier = admin.tier_of(url)
    seen = tier.find(name)
    admin.pin(tier, seen, pinned=not off)
    if as_json:
        print_json({"url": tier.url, "name": seen.name, "pinned": not off})
    else:
        print(f"{seen.name}: {'no longer pinned' if off else 'pinned'}")


@app.command(epilog="Example: stoker checkpoint export /nvme/ck model.safetensors 12000")
def export(
    url: str = typer.Argument(help="Local folder that holds checkpoints."),
    out: Path = typer.Argument(help="A new .pt or .safetensors file."), name: str | None = _NAME, as_json: bool = _JSON,
) -> None:  # fmt: skip
    """Write a verified checkpoint as one file. .safetensors holds tensors only. Exit codes: 0 done; 1 it is damaged; 2
    wrong usage."""
    if out.suffix not in (".pt", ".safetensors"):
        raise UsageError(f"{out}: the file must end in .pt or .safetensors")
    if out.exists():
        raise UsageError(f"{out}: there is such a file already", "remove it, or give another name")
    tier = admin.tier_of(url)
    if tier.root is None:
        raise UsageError(f"{url}: export reads a local folder", "`stoker checkpoint pull` brings one here")
    seen = admin.chosen(tier, name)
    manifest = admin.complete_manifest(tier, seen)
    load = importlib.import_module("stoker.checkpoint.load")
    with tier.reading(seen.name):
        faults = admin.verify(tier, seen)
        if faults:
            say("\n".join(map(printable, faults)))
            raise typer.Exit(1)
        opened = load.Opened.of(tier.root / seen.name, manifest)
        with whole_file(out.absolute()) as file:
            left = load.export_safetensors(opened, file) if out.suffix == ".safetensors" else []
            if out.suffix == ".pt":
                load.export_pt(opened, file)
    if as_json:
        print_json({"name": seen.name, "file": str(out), "bytes": out.stat().st_size, "left_out": left})
    else:
        more = f"; without {len(left)} values that are no tensors" if left else ""
        print(f"{printable(str(out))}: {format_bytes(out.stat().st_size)} of {seen.name}{more}")


@app.command(epilog="Example: stoker checkpoint interval --cost 0.2 --write 40 --mtbf 8h --restart 5min")
def interval(
    cost: str | None = typer.Option(None, help="What a save takes from training, as 0.2s."),
    write: str | None = typer.Option(None, help="Time until a save is durable, as 40s."),
    mtbf: str = typer.Option(help="Mean time between failures of the whole job, as 8h."),
    restart: str = typer.Option("0s", help="Time to start again after a failure."),
    run_log: Path | None = typer.Option(None, help="Take --cost and --write from this run log."),
    as_json: bool = _JSON,
) -> None:
    """How often to save: the interval that loses least, by Young and Daly. Exit codes: 0; 2 wrong usage."""
    if run_log is not None:
        cost_s, write_s = admin.measured(run_log)
    elif cost is not None and write is not None:
        cost_s, write_s = parse_duration(cost), parse_duration(write)
    else:
        raise UsageError("give --cost and --write, or --run-log")
    found = best_interval(
        cost_s=cost_s, write_s=write_s, mtbf_s=parse_duration(mtbf), restart_s=parse_duration(restart)
    )
    if as_json:
        print_json({"cost_s": cost_s, "write_s": write_s, **asdict(found)})
        return
    print(f"save every {format_duration(found.interval_s)} ({found.saves_per_day:.0f} a day)")
    print(f"saving takes {found.overhead_share:.3%} of the time")
    print(f"a failure loses {format_duration(found.lost_s_per_failure)} of work on average")
    print(f"failures lose {found.lost_share:.3%} of the time")


@app.command(epilog="Example: stoker checkpoint gc s3://bucket/ck --dry-run")
def gc(
    url: str = _URL, dry_run: bool = typer.Option(False, "--dry-run", help="Only tell."),
    older_than: str = typer.Option("24h", help="Age of unfinished uploads that are aborted."),
    as_json: bool = _JSON,
) -> None:  # fmt: skip
    """Remove half-written checkpoints of dead writers, and abort uploads in parts that were never finished (extra aws).
    Exit codes: 0 done; 1 it could not be; 2 wrong usage."""
    tier = admin.tier_of(url)
    found = admin.clean(tier, age_s=parse_duration(older_than), dry=dry_run)
    if as_json:
        print_json({"url": tier.url, "dry_run": dry_run, **asdict(found)})
        return
    for name in found.partial:
        print(f"{name}  half-written")
    for piece in found.pieces:
        print(f"{printable(piece.key)}  unfinished upload, begun {format_duration(piece.age_s)} ago")
    if found.pieces_unknown:
        say(found.pieces_unknown)
    verb = "found" if dry_run else "removed"
    print(f"{verb} {len(found.partial)} half-written checkpoints and {len(found.pieces)} unfinished uploads")
