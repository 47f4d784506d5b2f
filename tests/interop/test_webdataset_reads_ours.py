"""Shards that stoker packed are read by the webdataset library, sample for sample."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.pack import pack
from support_decode import encode, photo
from support_pack import make_photos, packed

ROOT = Path(__file__).resolve().parent.parent.parent
READER = """
import hashlib, json, sys, webdataset
for sample in webdataset.WebDataset(sys.argv[1:], shardshuffle=False, empty_check=False):
    fields = {k: hashlib.sha256(v).hexdigest() for k, v in sample.items() if not k.startswith("__")}
    print(json.dumps([sample["__key__"], sample["__url__"], fields]))
"""


@pytest.fixture(scope="module")
def foreign_python() -> Path:
    """The environment of foreign readers, made if it is missing."""
    made = subprocess.run(
        [str(ROOT / "tools/interop.sh")], capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable}
    )
    if made.returncode:
        pytest.fail(f"tools/interop.sh cannot make .venv-interop: {made.stderr[-1000:]}")
    return ROOT / ".venv-interop/bin/python"


def read_by_webdataset(python: Path, shards: list[Path]) -> list[tuple[str, str, dict[str, str]]]:
    """Key, shard and digests of the fields of every sample, in the order in which the library gives them."""
    done = subprocess.run([str(python), "-c", READER, *map(str, shards)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(key, Path(url).name, fields) for key, url, fields in map(json.loads, done.stdout.splitlines())]


def ours(folder: Path) -> list[tuple[str, str, dict[str, str]]]:
    """The same by stoker's index."""
    return [
        (s.key, s.shard, {name: hashlib.sha256(data).hexdigest() for name, data in s.fields.items()})
        for s in packed(folder)
    ]


def odd_names(folder: Path) -> Path:
    """Pictures whose names are hard on a tar: dots, spaces, long, not ASCII, deep, one name with two extensions."""
    names = [
        "a.b.c.jpg",
        "with space.jpg",
        "ü/東京.jpg",
        f"{'n' * 200}.jpg",
        "/".join("deep" * 1 for _ in range(30)) + "/x.jpg",
        "two.jpg",
        "two.png",
    ]
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photo(9, 9, number), "PNG" if name.endswith("png") else "JPEG"))
    return folder


@pytest.mark.parametrize("compress", ["", "gzip"])
def test_webdataset_reads_what_stoker_packs(foreign_python: Path, tmp_path: Path, compress: str) -> None:
    """Same samples, keys, fields and bytes, in the same order, from every shard."""
    source = make_photos(odd_names(tmp_path / "in"), count=40)

    def enriched(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "json": {"key": sample["__key__"]}, "seg.png": sample.get("jpg", b"")}

    pack(source, tmp_path / "out", shards=4, compress=compress, transform=enriched)
    shards = sorted((tmp_path / "out").glob("shard_*"))
    expected = ours(tmp_path / "out")
    assert len(shards) == 4 and len(expected) == 47
    assert read_by_webdataset(foreign_python, shards) == expected
