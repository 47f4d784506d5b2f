"""What `convert` writes is read by the libraries whose formats these are: keys, order and values."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq

from stoker.convert import convert
from support_rows import npy, write_table
from support_typed import STREAMING, foreign, same

READ = f"""{STREAMING}
import glob, io, numpy, pickle
from tfrecord.reader import tfrecord_loader
import webdataset
mds, tf, tar, out = sys.argv[3], sys.argv[4], sys.argv[5], {{}}
dataset = streaming.LocalDataset(mds)
out["mds"] = [dataset[n] for n in range(len(dataset))]
out["tfrecord"] = [dict(one) for path in sorted(glob.glob(tf + "/*.tfrecord")) for one in tfrecord_loader(path, None)]
shards = sorted(glob.glob(tar + "/*.tar"))
out["webdataset"] = [dict(one) for one in webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)]
pickle.dump(out, open(sys.argv[2], "wb"))
"""


def samples() -> dict[str, dict[str, Any]]:
    """Numbers and arrays, in more than one shard."""
    rng = np.random.default_rng(2)
    return {f"key {at:02d}": {"cls": np.int64(at), "npy": rng.random(4).astype(np.float32)} for at in range(17)}


def test_others_read_what_was_converted(tmp_path: Path) -> None:
    """mosaicml-streaming, tfrecord, webdataset, h5py and pyarrow find all samples as they were."""
    given = samples()
    (tmp_path / "table").mkdir()
    write_table(tmp_path / "table" / "rows.parquet", given)
    for name in ("mds", "tfrecord", "webdataset", "hdf5", "table"):
        convert(tmp_path / "table", tmp_path / f"to-{name}", format=name, shard_size=100)
    foreign(READ, tmp_path / "read", *(tmp_path / f"to-{name}" for name in ("mds", "tfrecord", "webdataset")))
    read = pickle.loads((tmp_path / "read").read_bytes())
    assert [one.pop("__key__") for one in read["mds"]] == list(given)
    for found, wanted in zip(read["mds"], given.values(), strict=True):
        assert found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    assert [bytes(one["__key__"]).decode() for one in read["tfrecord"]] == list(given)
    for found, wanted in zip(read["tfrecord"], given.values(), strict=True):
        assert found["cls"].tolist() == [wanted["cls"]] and np.array_equal(found["npy"], wanted["npy"])
    assert [one["__key__"] for one in read["webdataset"]] == list(given)
    assert [(one["cls"], one["npy"]) for one in read["webdataset"]] == [
        (b"%d" % wanted["cls"], npy(wanted["npy"])) for wanted in given.values()
    ]
    rows = [h5py.File(path) for path in sorted((tmp_path / "to-hdf5").glob("*.h5"))]
    assert [key.decode() for file in rows for key in file["__key__"][:]] == list(given)
    assert np.array_equal(np.concatenate([file["npy"][:] for file in rows]), [one["npy"] for one in given.values()])
    tables = [pq.read_table(path) for path in sorted((tmp_path / "to-table").glob("*.parquet"))]
    assert [row["cls"] for table in tables for row in table.to_pylist()] == list(range(17))
