"""What tests of formats with typed fields share: values, comparing them, foreign libraries, datasets on disk."""

from __future__ import annotations

import importlib.util
import io
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from stoker.format.mds import MDSWriter
from stoker.format.mds_index import index_json, shard_record
from stoker.format.tfrecord import TFRecordWriter
from stoker.index import Index, open_index
from stoker.store import connect

ROOT = Path(__file__).resolve().parent.parent
Sample = dict[str, Any]

STREAMING = """
import importlib, pickle, sys, types
sys.path.append(sys.argv[1])  # torch, which streaming imports
for name, member in (
    ("torchvision.datasets", "VisionDataset"), ("torchvision.transforms.functional", "to_tensor"),
    ("transformers.feature_extraction_utils", "BatchFeature"),
    ("transformers.tokenization_utils_base", "BatchEncoding"),
    ("transformers.models.auto.tokenization_auto", "AutoTokenizer"),
):  # imported by streaming, never used for shards
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        module = sys.modules.setdefault(".".join(parts[:count]), types.ModuleType(".".join(parts[:count])))
        module.__path__ = []
    setattr(sys.modules[name], member, type(member, (), {}))
import streaming
"""
"""Start of a script that uses mosaicml-streaming; its further arguments begin at sys.argv[2]."""


def foreign(script: str, *arguments: object) -> str:
    """What a script prints that runs with the foreign libraries."""
    made = subprocess.run(
        [str(ROOT / "tools/interop.sh")], capture_output=True, text=True, env={**os.environ, "PYTHON": sys.executable}
    )
    assert not made.returncode, f"tools/interop.sh cannot make .venv-interop: {made.stderr[-1000:]}"
    found = importlib.util.find_spec("torch")
    assert found is not None and found.origin is not None
    lent = Path(found.origin).parent.parent
    command = [str(ROOT / ".venv-interop/bin/python"), "-c", script, str(lent), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def same(left: object, right: object) -> bool:
    """Equal in type, element type, shape and value; NaN equals NaN."""
    if isinstance(left, np.ndarray | np.generic):
        if not isinstance(right, np.ndarray | np.generic) or type(left) is not type(right):
            return False
        return left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and (left == right or (left != left and right != right))


def mds_value(random_: random.Random, encoding: str) -> Any:
    """A value that a column of that encoding holds; edges come often."""
    name, _, rest = encoding.partition(":")
    if name in ("bytes", "str"):
        text = "".join(random_.choices("aü日\n\0", k=random_.choice((0, 1, 7, 300))))
        return text if name == "str" else text.encode()
    if name in ("int", "str_int"):
        edge = 63 if name == "int" else 90
        return random_.choice((0, -1, 1, 2**edge - 1, -(2**edge), random_.randrange(10**6)))
    if name == "str_float":
        return random_.choice((0.0, -1.5, 1e300, random_.random()))
    if name == "str_decimal":
        return Decimal(random_.choice(("0", "1.10", "-3.14159265358979323846264338327950288")))
    if name == "json":
        return {"k": [random_.randrange(9), None, "é", True], "n": {"x": random_.random()}}
    if name == "ndarray":
        dtype = rest.partition(":")[0] or random_.choice(("uint8", "int64", "float16", "float64"))
        fixed = rest.partition(":")[2]
        shape = (
            [int(part) for part in fixed.split(",")] if fixed else random_.choice(([1], [300], [2, 3], [1, 1, 70_000]))
        )
        return np.array(random_.choices(range(100), k=int(np.prod(shape)))).astype(dtype).reshape(shape)
    return np.dtype(encoding).type(random_.choice((0, 1, 100)))


MDS_ENCODINGS = (
    "bytes", "str", "int", "str_int", "str_float", "str_decimal", "json", "ndarray", "ndarray:uint16",
    "ndarray:float32:3,4", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "float32", "float64",
)  # fmt: skip


def mds_schema(random_: random.Random) -> dict[str, str]:
    """Some columns."""
    return {f"column{n}": random_.choice(MDS_ENCODINGS) for n in range(random_.randint(1, 7))}


def write_mds(
    folder: Path,
    samples: Sequence[Mapping[str, Any]],
    *,
    columns: Mapping[str, str] | None = None,
    shards: int = 1,
    compression: str = "",
    hashes: Iterable[str] = (),
    keys: bool = True,
) -> Path:
    """An MDS dataset of ours; keys are "key N" over all shards, or none."""
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for number in range(shards):
        out = io.BytesIO()
        writer = MDSWriter(out, columns=columns, keys=keys)
        first, last = (len(samples) * at // shards for at in (number, number + 1))
        for at in range(first, last):
            writer.add(f"key {at}" if keys else f"{at - first:08d}", samples[at])
        writer.close()
        assert writer.columns is not None
        record, name, data = shard_record(
            f"shard.{number:05d}.mds",
            out.getvalue(),
            writer.columns,
            last - first,
            compression=compression,
            hashes=hashes,
        )
        (folder / name).write_bytes(data)
        records.append(record)
    (folder / "index.json").write_bytes(index_json(records))
    return folder


def tfrecord(samples: Mapping[str, Mapping[str, Any]], *, compression: str = "", keys: bool = True) -> bytes:
    """A file of Examples of ours."""
    out = io.BytesIO()
    writer = TFRecordWriter(out, compression=compression, keys=keys)
    for key, values in samples.items():
        writer.add(key, values)
    writer.close()
    return out.getvalue()


def indexed(folder: Path, **options: Any) -> Index:
    """The index of a foreign dataset."""
    return open_index(connect(str(folder)), place=folder.parent / "indexes", **options)
