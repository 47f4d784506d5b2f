"""`stoker demo`: the whole road on real photographs, and the share of time for which training waited.

Raw photos are packed into a real S3 server on this machine, warmed to a local cache, decoded, batched and trained on
by a small network on the CPU. All that is started is stopped, also on Ctrl-C.

Two numbers and what they mean: *images/s* counts the images of all batches after the first over the wall time after it;
*data wait* is the time in `next()` after the first batch over the same wall time, seams between epochs included.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import typer

from stoker import machine
from stoker.cache import Cache
from stoker.cli.demo_data import Division, Keep, cut_photos, divide
from stoker.cli.servers import Server, juicefs_gateway, moto_server
from stoker.cli.show import print_json, print_table, progress, say
from stoker.dataset import Dataset
from stoker.dataset import open as open_dataset
from stoker.decode.image import CenterCrop, RandomResizedCrop
from stoker.errors import MissingExtraError, StokerError, UsageError
from stoker.events import RUN_LOG_VARIABLE, STAGES
from stoker.loader import Loader, LoaderReport
from stoker.pack import pack
from stoker.store import StoreOptions
from stoker.units import format_bytes, format_duration

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SIDE = 96
RESIZE_SHORT = 256
SHARD_BYTES = 8_000_000
BOX = "stoker-demo-"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a demo run measured."""

    report: LoaderReport
    accuracy: float | None
    seconds: dict[str, float]
    run_log: Path


@dataclass(frozen=True, slots=True)
class Plan:
    """What a demo run was asked to do."""

    epochs: int
    batch: int
    model: Literal["cnn", "none"]
    rate: float | None
    shuffle_labels: bool


@app.command(epilog="Example: stoker demo --data ~/photos --epochs 3")
def demo(
    data: Path | None = typer.Option(None, help="Folder of photos; default: crops of two photographs."),
    label: str | None = typer.Option(None, help="Where labels come from: parent, prefix:_, regex:…, none."),
    epochs: int = typer.Option(5, min=1, help="Passes over the photos."),
    batch: int = typer.Option(64, min=1, help="Images a batch."),
    model: str = typer.Option("cnn", help="cnn trains a small network; none only draws batches."),
    rate: float | None = typer.Option(None, min=0.001, help="With --model none: images/s that the consumer takes."),
    shuffle_labels: bool = typer.Option(False, "--shuffle-labels", help="Draw labels at random: accuracy must fall."),
    as_json: bool = typer.Option(False, "--json", help="Print the figures as one JSON object."),
) -> None:
    """Pack real photos, serve them from S3, warm a cache, train, and show where the time went."""
    if model not in ("cnn", "none"):
        raise UsageError(f"--model is cnn or none, found {model!r}")
    if rate is not None and model != "none":
        raise UsageError("--rate goes with --model none: the network sets its own rate")
    plan = Plan(epochs, batch, "cnn" if model == "cnn" else "none", rate, shuffle_labels)
    _sweep()
    owner = machine.owner_token().replace("/", "_")
    with tempfile.TemporaryDirectory(prefix=f"{BOX}{owner}-", dir=machine.scratch_folder()) as box:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", box)  # torch makes this folder when an optimizer is made
        outcome = _run(Path(box), data, label, plan)
    _show(outcome, as_json=as_json)


def _sweep() -> None:
    """Remove the temporary folders of demos that were killed."""
    for folder in Path(machine.scratch_folder()).glob(f"{BOX}*"):
        owner = folder.name.removeprefix(BOX).rpartition("-")[0].replace("_", "/")
        if not machine.owner_lives(owner):
            shutil.rmtree(folder, ignore_errors=True)


def _run(box: Path, data: Path | None, label: str | None, plan: Plan) -> Outcome:
    seconds: dict[str, float] = {}
    photos = data if data is not None else box / "photos"
    if data is None:
        with _timed(seconds, "cut photos"), progress("cutting photos") as bar:
            cut_photos(photos, bar)
    source = open_dataset(photos, label=label, cache=Cache(box / "source"))
    division = divide(source)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_server(box))
        server.make_bucket("demo")
        options = StoreOptions(endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key)
        with _timed(seconds, "pack and upload"):
            _pack(photos, label, options, division, plan)
        cache = Cache(box / "cache")
        parts = {"train": division.train, "held-out": division.held_out}
        opened = {n: open_dataset(f"s3://demo/{n}", cache=cache, options=options) for n, keys in parts.items() if keys}
        with _timed(seconds, "warm"), progress("warming") as bar:
            for dataset in opened.values():
                cache.warm(dataset, progress=bar)
        return _train(opened["train"], opened.get("held-out"), plan, seconds, len(division.classes))


@contextlib.contextmanager
def _server(box: Path) -> Iterator[Server]:
    """JuiceFS's S3 gateway; moto, with a word about it, where that cannot run."""
    with contextlib.ExitStack() as stack:
        try:
            server = stack.enter_context(juicefs_gateway(box / "s3"))
        except (MissingExtraError, StokerError, OSError) as error:
            say(f"stoker demo: the JuiceFS gateway cannot run here ({error}); using moto_server, all in memory")
            server = stack.enter_context(moto_server())
        yield server


def _pack(photos: Path, label: str | None, options: StoreOptions, division: Division, plan: Plan) -> None:
    for name, keys in (("train", division.train), ("held-out", division.held_out)):
        if not keys:
            continue
        keep = Keep(keys, len(division.classes), 1 if plan.shuffle_labels else None)
        with progress(f"packing {name}") as bar:
            pack(
                str(photos), f"s3://demo/{name}", label=label, shard_size=SHARD_BYTES, resize_short=RESIZE_SHORT,
                transform=keep, on_bad="skip", options=options, progress=bar,
            )  # fmt: skip


def _train(train: Dataset, held: Dataset | None, plan: Plan, seconds: dict[str, float], classes: int) -> Outcome:
    run_log = _run_log()
    os.environ[RUN_LOG_VARIABLE] = str(run_log)
    batch = min(plan.batch, len(train))
    fields: dict[str, object] = {"image": RandomResizedCrop(SIDE, scale=(0.3, 1), flip=True), "cls": int}
    with Loader(train, batch, fields=fields, seed=7) as loader:
        step: Callable[[Any], None]
        network = None
        if plan.model == "cnn":
            network = _network(max(classes, 1))
            step = network.step
        else:
            pause_s = batch / plan.rate if plan.rate else 0.0
            step = lambda drawn: time.sleep(pause_s)  # noqa: E731  # a consumer that does nothing but take its time
        with _timed(seconds, "train"), progress("training") as bar:
            for epoch in range(plan.epochs):
                for number, drawn in enumerate(loader):
                    step(drawn)
                    done = epoch * len(loader) + number + 1
                    bar(done, plan.epochs * len(loader), 0)
        report = loader.report()
    del os.environ[RUN_LOG_VARIABLE]
    accuracy = None
    if network is not None and held is not None:
        with (
            _timed(seconds, "test"),
            Loader(
                held, min(64, len(held)), fields={"image": CenterCrop(SIDE), "cls": int}, shuffle="none", tail="pad"
            ) as test,
        ):
            accuracy = network.accuracy(test)
    return Outcome(report, accuracy, seconds, run_log)


def _run_log() -> Path:
    """A file that outlives the demo, so that its report can be made again."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "stoker"
    home.mkdir(parents=True, exist_ok=True)
    return home / f"demo-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.jsonl"


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[name] = time.monotonic() - began


class _Network:
    """A small convolutional network; its running means follow quickly, because a demo has few steps."""

    def __init__(self, classes: int) -> None:
        import torch  # the demo's pack and warm parts run without it

        self._torch = torch
        nn = torch.nn
        torch.manual_seed(0)
        torch.set_num_threads(max(1, machine.cpus() - 1))  # one core stays with the feeder

        def block(before: int, after: int) -> list[Any]:
            return [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after, momentum=0.3), nn.ReLU()]

        self._model = nn.Sequential(
            *block(3, 32), *block(32, 64), *block(64, 96), *block(96, 128), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
            nn.Linear(1152, classes),
        )  # fmt: skip
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)

    def _input(self, images: Any) -> Any:
        return images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)

    def step(self, batch: dict[str, Any]) -> None:
        """One training step."""
        self._model.train()
        loss: Any = self._torch.nn.functional.cross_entropy(self._model(self._input(batch["image"])), batch["cls"])
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def accuracy(self, loader: Loader) -> float:
        """Share of right answers over one epoch of *loader*."""
        self._model.eval()
        right = seen = 0
        with self._torch.no_grad():
            for batch in loader:
                said = self._model(self._input(batch["image"])).argmax(1)
                right += int(((said == batch["cls"]) & batch["__mask__"]).sum())
                seen += int(batch["__mask__"].sum())
        return right / seen


def _network(classes: int) -> _Network:
    try:
        return _Network(classes)
    except ImportError as error:
        raise MissingExtraError(
            "the demo's network needs torch", "pip install 'stoker[demo]', or --model none"
        ) from error


def _show(outcome: Outcome, *, as_json: bool) -> None:
    report, counts = outcome.report, outcome.report.counts
    accuracy = "n/a" if outcome.accuracy is None else f"{outcome.accuracy:.3f}"
    store, cache = counts.get("read.store_bytes", 0), counts.get("read.cache_bytes", 0)
    hits = cache / (cache + store) if cache + store else 0.0
    if as_json:
        measured = {"accuracy": outcome.accuracy, "cache_hit_share": hits, "seconds": outcome.seconds}
        print_json({**report.as_dict(), **measured, "run_log": str(outcome.run_log)})
        return
    rows = [
        ("images/s", f"{report.samples_per_s:.0f}"),
        ("data wait", f"{report.wait_share:.1%} of {format_duration(report.wall_s)}"),
        ("first batch", f"{format_duration(report.first_wait_s)} after the first next()"),
        ("cache hits", f"{hits:.1%} of the bytes"),
        ("read", f"{format_bytes(cache)} from the cache, {format_bytes(store)} from the store"),
    ]
    rows += [(f"  wait: {s}", format_duration(w)) for s in STAGES if (w := report.wait_by_stage_s.get(s, 0.0)) >= 0.001]
    rows += [(name, format_duration(spent)) for name, spent in outcome.seconds.items()]
    rows += [("held-out accuracy", accuracy), ("run log", str(outcome.run_log))]
    print_table("stoker demo", rows)
    wait = f"data wait {report.wait_share * 100:.1f} %"
    print(f"stoker demo: {report.samples_per_s:.0f} images/s, {wait}, accuracy {accuracy}")
