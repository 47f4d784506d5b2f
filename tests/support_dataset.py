"""Small datasets that tests make for themselves."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from PIL import Image

from stoker.loader import Loader
from stoker.loader.lanes import Lanes

SRC = Path(__file__).resolve().parent.parent / "src"


def jpeg(number: int, *, width: int = 40, height: int = 32) -> bytes:
    """A JPEG whose mean colour tells its number."""
    random = np.random.default_rng(number)
    pixels = np.clip(random.normal(number % 200 + 28, 8, (height, width, 3)), 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=92)
    return out.getvalue()


def write_shards(
    folder: Path, samples: int, *, shards: int = 3, member: Callable[[int], dict[str, bytes]] | None = None
) -> Path:
    """WebDataset shards written by the standard library: `jpg`, `cls` (the sample's number modulo 10) and `txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    made = member or (lambda i: {"jpg": jpeg(i), "cls": str(i % 10).encode(), "txt": f"sample {i}".encode()})
    for shard in range(shards):
        with tarfile.open(folder / f"shard_{shard:05d}.tar", "w") as out:
            for number in range(samples * shard // shards, samples * (shard + 1) // shards):
                for extension, data in made(number).items():
                    info = tarfile.TarInfo(f"{number:06d}.{extension}")
                    info.size = len(data)
                    out.addfile(info, io.BytesIO(data))
    return folder


def own_index_folder(home: Path) -> dict[str, str]:
    """Environment for a subprocess that must not share the built indexes of other tests."""
    return {**os.environ, "XDG_CACHE_HOME": str(home)}


def feeders(pid: int | None = None) -> list[psutil.Process]:
    """The living feeders among a process's children (default: this one's); zombies of others are passed over."""
    found = []
    for child in psutil.Process(pid).children():
        try:
            if "stoker.loader.feeder" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def lanes_of(loader: Loader) -> Lanes:
    """The trainer's ends of its feeders."""
    assert loader._early is not None
    return loader._early.lanes


def spoil_what_comes_back(loader: Loader) -> list[int]:
    """Have every slot overwritten with a pattern as soon as it is free again; the list grows by their numbers."""
    feeder, spoiled = lanes_of(loader)._lanes[0].feeder, list[int]()
    give_back = feeder.free

    def spoil(slots: list[int]) -> None:
        assert feeder.slab is not None
        for slot in slots:
            for array in feeder.slab.arrays(slot).values():
                array.reshape(-1).view("uint8")[:] = 0xA5
        spoiled.extend(slots)
        give_back(slots)

    feeder.free = spoil  # type: ignore[method-assign]  # between the feeder and what it is told
    return spoiled
