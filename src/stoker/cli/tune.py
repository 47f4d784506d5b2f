"""`stoker tune`: the DataLoader's settings, found by trying them. The last line is the one to paste."""

from __future__ import annotations

import os
import re
from pathlib import Path

import typer

from stoker.cli.show import print_json, say
from stoker.dataset import open as open_dataset
from stoker.errors import UsageError
from stoker.tune import Limits, Target
from stoker.tune import tune as run_tune
from stoker.tune.plot import check_name, draw
from stoker.tune.report import text
from stoker.units import parse_bytes, parse_duration

app = typer.Typer(add_completion=False, rich_markup_mode=None)

FACTORY = re.compile(r"(?!.*://)[\w./-]+:[A-Za-z_]\w*")
URL_FACTORY = "stoker.torch.tuned:make_loader"
OWN_LOADER = "stoker.torch.tuned:stoker_loader"


@app.command(epilog="Example: stoker tune my_module:make_loader --step-time 180ms --gpus 8 --plot tune.svg")
def tune(
    what: str = typer.Argument(
        help="module:function or file.py:function that returns a DataLoader; or a dataset's URL."
    ),
    step_time: str | None = typer.Option(
        None, help="A training step without its data, as 180ms; default: the fastest."
    ),
    gpus: int = typer.Option(1, min=1, help="GPUs of this node: each one's loader gets its share of CPUs and memory."),
    cpus: int | None = typer.Option(None, min=1, help="CPUs of this node; default: those that this process may use."),
    seconds: float = typer.Option(
        4.0, help="How long the best settings are measured; others a half or a quarter of it."
    ),
    limit: str = typer.Option("60s", help="A trial that shows no sign of life for so long has hung."),
    budget: str = typer.Option("15min", help="After that no new trial begins."),
    ram: str | None = typer.Option(None, help="Memory that a trial may take; default: 80 % of what is free / gpus."),
    batch: int = typer.Option(64, min=1, help="With a URL: samples of a batch."),
    image_size: int = typer.Option(224, help="With a URL: pictures are cropped and resized to it; 0: as they are."),
    cache: str | None = typer.Option(None, help="With a URL: folder of the cache to read through."),
    plot: Path | None = typer.Option(None, help="Write a picture of the trials: .svg or .html."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Find num_workers, prefetch_factor, pin_memory, persistent_workers and multiprocessing_context for a DataLoader.

    The function is called with those of them that it takes as keyword arguments. Every trial draws real batches in a
    process of its own and is ended when it hangs or takes too much memory. Exit codes: 0 when a setting was found, also
    if it does not feed the step; 1 when none works; 2 for a function that cannot be used."""
    if plot is not None:
        check_name(plot.name)
        if not os.access(plot if plot.exists() else plot.parent, os.W_OK):
            raise UsageError(f"{plot} cannot be written", "--plot takes a file in a folder that is there and writable")
    beside = None
    if FACTORY.fullmatch(what):
        target = Target(what)
    else:
        open_dataset(what, cache=cache)  # its errors are told at once, and its index is built once
        extra = {"url": what, "batch_size": batch, "image_size": image_size, "cache": cache}
        target, beside = Target(URL_FACTORY, extra), Target(OWN_LOADER, extra)
    limits = Limits(
        seconds,
        parse_duration(limit),
        parse_duration(budget),
        parse_bytes(ram) if ram is not None else None,
        gpus,
        cpus,
    )
    step_s = parse_duration(step_time) if step_time is not None else None
    found = run_tune(target, step_s=step_s, limits=limits, beside=beside, say=say)
    if as_json:
        print_json(found.to_dict())
    else:
        print("\n".join(text(found)))
    if plot is not None:
        plot.write_text(draw(found, plot.name))
    raise typer.Exit(0 if found.chosen is not None else 1)
