"""What tests of formats and the index share."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stoker.format import FieldPlace, SampleEntry, WebDatasetWriter
from stoker.index import Index, IndexWriter, ObjectRef
from stoker.store import Local
from stoker.store.base import Store


def shard(samples: Mapping[str, Mapping[str, bytes]], *, compression: str = "") -> bytes:
    """A shard of these samples."""
    out = io.BytesIO()
    writer = WebDatasetWriter(out, compression=compression)
    for key, fields in samples.items():
        writer.add(key, fields)
    writer.close()
    return out.getvalue()


def photos(first: int, count: int) -> dict[str, dict[str, bytes]]:
    """Samples that look like photos with labels: key, content and label tell the number."""
    return {
        f"{number:06d}": {"jpg": f"photo {number}".encode() * 20, "cls": str(number % 10).encode()}
        for number in range(first, first + count)
    }


def fill(store: Store, shards: int = 3, count: int = 5) -> None:
    """Put *shards* shards of *count* samples each into a store."""
    for number in range(shards):
        store.put(f"shard_{number:05d}.tar", shard(photos(number * count, count)))


def entries(first: int, count: int) -> Iterable[SampleEntry]:
    """Samples as a scan gives them, without any bytes behind."""
    for number in range(first, first + count):
        places = (FieldPlace("jpg", number * 10, 7), FieldPlace("cls", number * 10 + 7, 3))
        yield SampleEntry(f"sample-{number}", places[: 1 + number % 2], {"label": f"l{number % 3}", "number": number})


def small_index(folder: Path, *, shards: int = 3, count: int = 5) -> Index:
    """An index with metadata columns in *folder*, of shards that do not exist."""
    with IndexWriter(Local(folder), "index", format="webdataset", columns={"label": str, "number": int}) as writer:
        for number in range(shards):
            ref = ObjectRef(f"shard_{number:05d}.tar", 10_000_000, f"version {number}", expanded_size=10_000_000)
            writer.add_shard(ref, entries(number * count, count))
        writer.commit(classes=("l0", "l1", "l2"))
    return Index(folder / "index")


def expected(shared_data: Path, kind: str) -> dict[str, dict[str, Any]]:
    """The key of one set of the real data: path → what must come out."""
    with (shared_data / "expected.json").open() as file:
        found: dict[str, dict[str, Any]] = json.load(file)["sets"][kind]["files"]
        return found


def run_limited(script: str, *arguments: str, memory_bytes: int, seconds: float) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that may map so much memory beyond its start, for so long."""
    limit = (
        "import resource, sys\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        f"bound = used + {memory_bytes}\n"
        "resource.setrlimit(resource.RLIMIT_AS, (bound, bound))\n"
    )
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script.replace("# LIMIT HERE\n", limit), *arguments],
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
