"""`stoker plan`: will the data keep up? Prints the formulas with the numbers in them."""

from __future__ import annotations

import math
from typing import cast

import typer

from stoker.cli.show import print_json
from stoker.machine import cpus
from stoker.plan import Demand, Plan, Supply
from stoker.plan import plan as make_plan
from stoker.plan.formulas import HEADROOM, PASSES, SOURCES, Source
from stoker.units import format_bytes, format_duration, parse_bytes, parse_duration, parse_rate

app = typer.Typer(add_completion=False, rich_markup_mode=None)

WORDS = {
    "fed": "the data keeps up: every stage carries 1.2 × the consumption",
    "tight": "a steady run is fed, but a queue that ran empty (epoch seam, checkpoint) fills slowly",
    "starved": "the data does not keep up",
}


@app.command(epilog="Example: stoker plan --batch 256 --sample-bytes 110KB --step-time 180ms --gpus 8 --cores 96")
def plan(
    batch: int = typer.Option(..., help="Samples a step of one GPU."),
    sample_bytes: str = typer.Option(..., help="Bytes of a sample as it is stored, as 110KB."),
    step_time: str = typer.Option(..., help="A training step without its data, as 180ms."),
    gpus: int = typer.Option(1, help="GPUs a node."),
    nodes: int = typer.Option(1, help="Nodes that train together."),
    source: str = typer.Option("store", "--from", help=f"Where the samples come from: {', '.join(SOURCES)}."),
    cores: int | None = typer.Option(None, help="CPU cores a node for decoding; default: this machine's."),
    decode_time: str | None = typer.Option(None, help="CPU time to decode a sample, as 1.2ms; 0 for none."),
    tensor_bytes: str | None = typer.Option(None, help="Bytes of a sample on its way to the GPU; default: as stored."),
    store_rate: str | None = typer.Option(None, help="Object store, over all nodes, as 20GB/s."),
    lustre_rate: str | None = typer.Option(None, help="Lustre, over all nodes."),
    network_rate: str | None = typer.Option(None, help="Network of one node, as 100Gb/s (b is bits, B bytes)."),
    nvme_rate: str | None = typer.Option(None, help="One local drive."),
    nvme_drives: int = typer.Option(1, help="Drives a node."),
    pcie_rate: str | None = typer.Option(None, help="To one GPU."),
    cache: str | None = typer.Option(None, help="Cache on a node's NVMe, as 3TB; needs --dataset."),
    dataset: str | None = typer.Option(None, help="Size of the dataset, as 10TB."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Say whether the data can feed the GPUs: consumption = batch × sample bytes × 2 / step time, and every stage must
    supply 1.2 × that. Rates that are not given are typical ones and marked so. Exit code: 0, whatever the verdict."""
    demand = Demand(
        batch, parse_bytes(sample_bytes), parse_duration(step_time), gpus, nodes,
        parse_bytes(tensor_bytes) if tensor_bytes is not None else None,
    )  # fmt: skip
    supply = Supply(
        cast(Source, source), cores if cores is not None else cpus(), _rate(store_rate), _rate(lustre_rate),
        _rate(network_rate), _rate(nvme_rate), nvme_drives,
        parse_duration(decode_time) if decode_time is not None else None, _rate(pcie_rate),
        parse_bytes(cache) if cache is not None else 0, parse_bytes(dataset) if dataset is not None else None,
    )  # fmt: skip
    found = make_plan(demand, supply)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found, supply)


def _rate(text: str | None) -> float | None:
    return None if text is None else parse_rate(text)


def _show(found: Plan, supply: Supply) -> None:
    demand = found.demand
    print(
        f"consumption  {format_bytes(demand.consumption_bytes_per_s)}/s a node = {demand.gpus} GPU(s) × "
        f"{demand.batch} samples × {format_bytes(demand.sample_bytes)} × {PASSES:g} / {format_duration(demand.step_s)}"
    )
    print(
        f"             (the {PASSES:g}: a byte goes into host memory and out again; the next batch is made meanwhile)"
    )
    print(
        f"needed       {format_bytes(found.needed_bytes_per_s)}/s = {HEADROOM:g} × consumption: "
        f"{found.needed_samples_per_s:,.0f} samples/s through every stage; "
        f"a steady run takes {demand.samples_per_s:,.0f}"
    )
    if supply.cached_share:
        print(f"cache        {supply.cached_share:.0%} of the samples, once it is warm")
    print(f"{'stage':<9}{'rate':<26}{'':<9}{'samples/s':>14}{'of needed':>11}")
    for stage in found.stages:
        able = stage.supply_samples_per_s
        shown = f"{able:,.0f}" if math.isfinite(able) else "any"
        part = f"{able / found.needed_samples_per_s:.0%}" if math.isfinite(able) else ""
        mark = "  ← narrowest" if stage is found.narrowest else ""
        print(f"{stage.name:<9}{stage.rate:<26}{'given' if stage.given else 'typical':<9}{shown:>14}{part:>11}{mark}")
    print(f"verdict: {found.verdict}: {WORDS[found.verdict]}")
    if found.idle_share:
        print(f"  the GPUs would idle {found.idle_share:.0%} of the time")
    for change in found.changes:
        print(f"  needs {change.text}")
