"""Bytes that were changed on the way, in every format that stoker writes: fetched again; wrong for ever, put aside.

A shard that stoker wrote has a digest in its index. What has another is fetched once more. If it is wrong again, no
byte of it is kept or given out: its samples are bad samples, as `on_bad` says, and all others are read as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.cli.servers import Server, moto_server
from stoker.convert import convert
from stoker.errors import SampleError
from stoker.pack import pack
from stoker.store import StoreOptions
from stoker.testing.fault_proxy import FaultPlan, FaultProxy
from support_dataset import jpeg, write_shards
from support_rows import npy
from support_store import options_for, until

SAMPLES, SHARDS = 48, 3
FORMATS = ("webdataset", "mds", "tfrecord", "hdf5", "table", "arrays", "compressed")
VALUES: dict[str, object] = {"x": stoker.npy, "n": int}


def vector(number: int) -> np.ndarray:
    """What sample *number* holds beside its number: 4 kB, so that shards are cut where it is wanted."""
    return np.full(1000, number, np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """moto with the same samples in every format, each in three shards, at s3://bucket/FORMAT."""
    folder = tmp_path_factory.mktemp("source")
    write_shards(folder / "tar", SAMPLES, member=lambda i: {"x.npy": npy(vector(i)), "n.cls": str(i).encode()})
    files = folder / "files"
    files.mkdir()
    for number in range(SAMPLES):
        (files / f"{number:03d}.jpg").write_bytes(jpeg(number, width=8, height=8))
        (files / f"{number:03d}.npy").write_bytes(npy(vector(number)))
        (files / f"{number:03d}.id").write_text(str(number))
    with moto_server() as running:
        running.make_bucket("bucket")
        options = options_for(running)
        for name in FORMATS[:-1]:
            renamed = ["x.npy=x", "n.cls=n"] if name != "webdataset" else ["x.npy=npy", "n.cls=cls"]
            convert(
                folder / "tar", f"s3://bucket/{name}", format=name, shard_size="68kB", rename=renamed,
                decode=["x.npy", "n.cls"] if name != "webdataset" else [], options=options,
            )  # fmt: skip
        pack(files, "s3://bucket/compressed", shards=SHARDS, compress="zstd", options=options)
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """Harmless until a plan is set."""
    with FaultProxy("127.0.0.1", server.port) as running:
        yield running


def opened(name: str, server: Server, proxy: FaultProxy, cache: Path | None) -> tuple[stoker.Dataset, dict[str, Any]]:
    """The dataset through the proxy, and how its vector and its number are read."""
    options: StoreOptions = options_for(server, endpoint=proxy.endpoint)
    fields = {"webdataset": {"npy": stoker.npy, "cls": int}, "compressed": {"npy": stoker.npy, "id": int}}
    return stoker.open(f"s3://bucket/{name}", options=options, cache=cache), fields.get(name, VALUES)


def drawn(loader: stoker.Loader) -> list[int]:
    """The numbers of an epoch's samples, each with its own vector."""
    seen = []
    for batch in loader:
        x, n = (next(batch[name] for name in names if name in batch) for names in (("npy", "x"), ("cls", "id", "n")))
        for row, number in enumerate(np.asarray(n).tolist()):
            np.testing.assert_array_equal(np.asarray(x[row]), vector(number))
            seen.append(number)
    return seen


def kept(cache: Path) -> set[str]:
    """Digests of what lies in the cache."""
    return {path.name.removesuffix(".x") for path in (cache / "objects").rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_changed_once_is_fetched_again(name: str, server: Server, proxy: FaultProxy, tmp_path: Path) -> None:
    """Every shard arrives wrong the first time: the epoch is right, the faults are counted, the cache holds all."""
    dataset, fields = opened(name, server, proxy, tmp_path / "cache")
    assert dataset.index.manifest.shards == SHARDS
    proxy.plan = FaultPlan(corrupt_first=1, paths="shard_")
    with stoker.Loader(dataset, 4, fields=fields, seed=1, output="numpy") as loader:
        assert sorted(drawn(loader)) == list(range(SAMPLES))
        counts = loader.report().counts
        until(lambda: kept(tmp_path / "cache") == {dataset.index.shard(number).digest for number in range(SHARDS)})
    assert counts["cache.wrong_digests"] == SHARDS and "cache.quarantined" not in counts
    assert proxy.counts["corrupt"] == SHARDS


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_wrong_for_ever_is_put_aside(name: str, server: Server, proxy: FaultProxy, tmp_path: Path) -> None:
    """One shard's samples are bad ones, counted by that reason and not kept; the others are read, nobody waits."""
    dataset, fields = opened(name, server, proxy, tmp_path / "cache")
    starts = dataset.shard_starts.tolist()
    bad = set(range(starts[1], starts[2]))
    proxy.plan = FaultPlan(corrupt_rate=1.0, paths="shard_00001")
    with stoker.Loader(dataset, 4, fields=fields, seed=1, output="numpy", on_bad="skip", on_bad_max=1.0) as loader:
        indexes = []
        for batch in loader:
            indexes += batch["__index__"].tolist()
        report = loader.report()
        until(lambda: kept(tmp_path / "cache") == {dataset.index.shard(number).digest for number in (0, 2)})
    assert sorted(indexes) == sorted(set(range(SAMPLES)) - bad)
    assert report.bad == {"quarantined shard": len(bad)} and "quarantined shard" in str(report)
    assert report.counts["cache.quarantined"] >= 1


@pytest.mark.parametrize("name", ["webdataset", "hdf5", "compressed"])
def test_the_error_names_the_shard_and_both_digests(
    name: str, server: Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    """on_bad="raise" ends the epoch at the first such sample; a new reader finds a store that got well."""
    dataset, fields = opened(name, server, proxy, tmp_path / "cache")
    digest = dataset.index.shard(1).digest
    proxy.plan = FaultPlan(corrupt_rate=1.0, paths="shard_00001")
    with (
        stoker.Loader(dataset, 4, fields=fields, seed=1, output="numpy") as loader,
        pytest.raises(SampleError, match=rf"shard_00001.*is damaged: expected digest {digest}, found .*twice"),
    ):
        drawn(loader)
    with pytest.raises(SampleError, match="is damaged"):
        dataset[int(dataset.shard_starts[1])]
    proxy.plan = FaultPlan()
    with stoker.Loader(dataset, 4, fields=fields, seed=1, output="numpy") as loader:
        assert sorted(drawn(loader)) == list(range(SAMPLES))


@pytest.mark.parametrize("policy", ["replace", "skip"])
def test_without_a_cache_a_compressed_shard_is_verified_too(policy: Any, server: Server, proxy: FaultProxy) -> None:
    """It is expanded to a file without a name by the same rules: once more, then put aside."""
    dataset, fields = opened("compressed", server, proxy, None)
    proxy.plan = FaultPlan(corrupt_first=1, paths="shard_")
    with stoker.Loader(dataset, 4, fields=fields, seed=1, output="numpy") as loader:
        assert sorted(drawn(loader)) == list(range(SAMPLES))
    proxy.plan = FaultPlan(corrupt_rate=1.0, paths="shard_00001")
    with stoker.Loader(dataset, 4, fields=fields, seed=1, output="numpy", on_bad=policy, on_bad_max=1.0) as loader:
        seen = drawn(loader)
        report = loader.report()
    bad = int(dataset.shard_starts[2] - dataset.shard_starts[1])
    assert len(seen) == (SAMPLES if policy == "replace" else SAMPLES - bad)
    assert report.bad == {"quarantined shard": bad}
