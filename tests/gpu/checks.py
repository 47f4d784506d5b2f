"""The checks of `run.sh`: each a function that gives figures or raises; each prints one JSON line."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import checkpoint
import torch

import stoker
from stoker.torch import normalize
from support_dataset import jpeg, spoil_what_comes_back, write_shards

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Figures = dict[str, object]


def batches_are_right(folder: Path) -> Figures:
    """Batches on the device equal those on the host, also when every one is kept while the slab is refilled."""
    fields: dict[str, object] = {"image": stoker.image.RandomResizedCrop(64, flip=True), "cls": int}
    dataset = stoker.open(folder)
    with stoker.Loader(dataset, 16, fields=fields, seed=3, device=DEVICE) as loader:
        moved = list(loader)
    with stoker.Loader(dataset, 16, fields=fields, seed=3) as loader:
        for got, expected in zip(moved, loader, strict=True):
            assert got["image"].device.type == DEVICE
            assert torch.equal(got["image"].cpu(), expected["image"]), "pixels differ"
            assert torch.equal(got["cls"].cpu(), expected["cls"]), "labels differ"
    return {"batches": len(moved)}


def recycled_slots_are_safe(folder: Path) -> Figures:
    """No batch that is still used shows the pattern of a slot that came back, moved to the device or not."""
    fields: dict[str, object] = {"image": stoker.image.CenterCrop(64), "cls": int}
    dataset, counts = stoker.open(folder), {}
    with stoker.Loader(dataset, 16, fields=fields, seed=3) as loader:
        expected = [batch["image"].clone() for batch in loader]
    for device in (DEVICE, None):
        with stoker.Loader(dataset, 16, fields=fields, seed=3, device=device) as loader:
            spoiled, used = spoil_what_comes_back(loader), deque[tuple[torch.Tensor, torch.Tensor]](maxlen=3)
            for batch, its in zip(loader, expected, strict=True):
                used.append((batch["image"], its))
                assert all(torch.equal(one.cpu(), right) for one, right in used), "a used slot was given back"
        counts[device or "none"] = len(spoiled)
        assert len(spoiled) > 10, f"device={device}: only {len(spoiled)} slots came back"
    return {"slots": counts}


def early_batches_are_right(folder: Path) -> Figures:
    """Steps long enough for the thread that takes the next batch over: normalised on the device, equal to the plain."""
    fields: dict[str, object] = {"image": stoker.image.RandomResizedCrop(64, flip=True), "cls": int}
    dataset, batches, early = stoker.open(folder), 0, 0

    def on_device(batch: dict[str, object]) -> dict[str, object]:
        return {"image": normalize(batch["image"])}

    with (
        stoker.Loader(dataset, 16, fields=fields, seed=3) as plain,
        stoker.Loader(dataset, 16, fields=fields, seed=3, device=DEVICE, device_transform=on_device) as moved,
    ):
        for expected, got in zip(plain, moved, strict=True):
            busy = torch.ones(512, 512, device=DEVICE)
            began = time.perf_counter()
            while time.perf_counter() - began < 0.02:  # a step
                busy = (busy @ busy).clamp_(0, 1)
            _settle()
            assert torch.allclose(got["image"].cpu(), normalize(expected["image"]), atol=1e-5), "pixels differ"
            assert got["image"].is_contiguous(memory_format=torch.channels_last)
            assert moved._early is not None
            batches, early = batches + 1, early + (moved._early._taken is not None)
        report = moved.report()
    assert early > batches / 2, f"only {early} of {batches} batches were taken over in the step before"
    return {"batches": batches, "early": early, "next_ms": round(1000 * report.wait_s / batches, 3)}


def copies_are_fast(folder: Path) -> Figures:
    """Bytes a second from the page-locked slab to the device, against a pageable copy of the same batch."""
    with stoker.Loader(
        stoker.open(folder), 64, fields={"image": stoker.image.CenterCrop(224)}, device=DEVICE
    ) as loader:
        batch = next(iter(loader))["image"]
        pageable = batch.cpu()
        seconds = {}
        for name, source in (
            ("pageable", pageable),
            ("pinned", pageable.pin_memory() if DEVICE == "cuda" else pageable),
        ):
            _settle()
            began = time.perf_counter()
            for _ in range(20):
                source.to(DEVICE, non_blocking=True)
            _settle()
            seconds[name] = time.perf_counter() - began
    return {f"{name}_gb_s": round(batch.numel() * 20 / s / 1e9, 2) for name, s in seconds.items()}


def training_waits_little(folder: Path) -> Figures:
    """A convolutional network on the device over six epochs (one on a CPU): the share of time in next()."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(64, 256, 3, stride=2), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(256, 10),
    ).to(DEVICE)  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fields: dict[str, object] = {"image": stoker.image.RandomResizedCrop(224, flip=True), "cls": int}
    with stoker.Loader(stoker.open(folder), 32, fields=fields, device=DEVICE) as loader:
        for _ in range(6 if DEVICE == "cuda" else 1):
            for batch in loader:
                loss = torch.nn.functional.cross_entropy(
                    model(batch["image"].permute(0, 3, 1, 2).float() / 255), batch["cls"]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                _settle()
        report = loader.report()
    return {"wait_share": round(report.wait_share, 4), "images_per_s": round(report.samples_per_s)}


def _settle() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


CHECKS: tuple[Callable[[Path], Figures], ...] = (
    batches_are_right,
    early_batches_are_right,
    recycled_slots_are_safe,
    copies_are_fast,
    training_waits_little,
)


def main() -> int:
    """Run all; 1 when one failed or there is no GPU."""
    failed = DEVICE != "cuda"
    name = torch.cuda.get_device_name() if DEVICE == "cuda" else "none: the same steps on the CPU"
    print(json.dumps({"check": "device", "ok": not failed, "device": name, "torch": torch.__version__}), flush=True)
    with tempfile.TemporaryDirectory() as box:
        folder = write_shards(
            Path(box) / "data",
            512,
            member=lambda i: {"jpg": jpeg(i, width=256, height=256), "cls": str(i % 10).encode()},
        )
        for check in (*CHECKS, *checkpoint.CHECKS):
            place = folder if check in CHECKS else Path(box)
            try:
                print(json.dumps({"check": check.__name__, "ok": True, **check(place)}), flush=True)
            except (AssertionError, RuntimeError, stoker.StokerError) as error:
                failed = True
                print(json.dumps({"check": check.__name__, "ok": False, "error": str(error)}), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
