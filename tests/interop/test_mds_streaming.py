"""mosaicml-streaming reads what stoker writes, and the other way round: values and types, for generated schemas."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import stoker
from support_typed import STREAMING, foreign, mds_schema, mds_value, same, write_mds

READ = f"""{STREAMING}
import json, os
from streaming.base.compression import decompress
from streaming.base.hashing import get_hash
out = {{}}
for folder in sys.argv[3:]:
    for shard in json.load(open(folder + "/index.json"))["shards"]:  # as StreamingDataset: compare, expand, compare
        raw, packed = shard["raw_data"], shard["zip_data"]
        data = open(os.path.join(folder, (packed or raw)["basename"]), "rb").read()
        assert {{name: get_hash(name, data) for name in shard["hashes"]}} == (packed or raw)["hashes"]
        if packed:
            data = decompress(shard["compression"], data)
            assert {{name: get_hash(name, data) for name in shard["hashes"]}} == raw["hashes"]
            open(os.path.join(folder, raw["basename"]), "wb").write(data)
        assert len(data) == raw["bytes"]
    dataset = streaming.LocalDataset(folder)
    out[folder] = [dataset[n] for n in range(len(dataset))]
pickle.dump(out, open(sys.argv[2], "wb"))
"""
WRITE = f"""{STREAMING}
for folder, columns, samples, options in pickle.load(open(sys.argv[2], "rb")):
    with streaming.MDSWriter(out=folder, columns=columns, **options) as writer:
        for sample in samples:
            writer.write(sample)
"""
OPTIONS: list[dict[str, Any]] = [
    {}, {"compression": "zstd:3", "hashes": ["sha1"]}, {"compression": "gz", "hashes": ["blake2b", "xxh64"]},
    {"compression": "br:5", "hashes": ["md5"]}, {"compression": "bz2:9"}, {"compression": "snappy"},
    {"hashes": ["sha256", "xxh3_64"]}, {"size_limit": 3_000},
]  # fmt: skip


def generated(seed: int, count: int = 25) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Columns and values."""
    rng = random.Random(seed)
    columns = mds_schema(rng)
    return columns, [{name: mds_value(rng, encoding) for name, encoding in columns.items()} for _ in range(count)]


def test_streaming_reads_what_stoker_writes(tmp_path: Path) -> None:
    """Every compression and hash, several shards, with and without keys."""
    written = {}
    for seed, options in enumerate(OPTIONS * 2):
        columns, samples = generated(seed)
        compression = options.get("compression", "").partition(":")[0]
        folder = write_mds(
            tmp_path / f"{seed}", samples, columns=columns, shards=1 + seed % 3, compression=compression,
            hashes=options.get("hashes", ()), keys=seed % 2 == 0,
        )  # fmt: skip
        written[str(folder)] = (seed, samples)
    foreign(READ, tmp_path / "read", *written)
    found = pickle.loads((tmp_path / "read").read_bytes())
    for folder, (seed, samples) in written.items():
        assert len(found[folder]) == len(samples)
        for n, (read, values) in enumerate(zip(found[folder], samples, strict=True)):
            assert read.pop("__key__", f"key {n}") == f"key {n}", seed
            assert read.keys() == values.keys()
            assert all(same(read[name], values[name]) for name in values), (seed, n)


def test_stoker_reads_what_streaming_writes(tmp_path: Path) -> None:
    """Every compression and hash: values and types are those that were written, and nothing is complained of."""
    jobs = [(str(tmp_path / f"{seed}"), *generated(100 + seed), options) for seed, options in enumerate(OPTIONS * 2)]
    (tmp_path / "jobs").write_bytes(pickle.dumps(jobs))
    foreign(WRITE, tmp_path / "jobs")
    for folder, columns, samples, options in jobs:
        dataset = stoker.open(folder)
        assert len(dataset) == len(samples) and dataset.index.manifest.extra["findings"] == []
        for n, values in enumerate(samples):
            read = {name: bytes(x) if isinstance(x, memoryview) else x for name, x in dataset[n].items()}
            wrong = {
                name: (columns[name], read[name], values[name])
                for name in columns
                if not same(read[name], values[name])
            }
            assert wrong == {}, (options, n)
