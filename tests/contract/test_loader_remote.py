"""The loader over a real S3 server: a bad network changes no byte and is told; caches fill and serve."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import stoker
from stoker.cli.servers import Server, moto_server
from stoker.store import StoreOptions, connect
from stoker.testing.fault_proxy import FaultPlan, FaultProxy
from support_dataset import jpeg, write_shards
from support_store import random_bytes, until

SAMPLES = 400


def member(number: int) -> dict[str, bytes]:
    """Half of the samples are large enough that a reset hits their bodies."""
    return {"jpg": jpeg(number, width=160, height=120), "cls": str(number).encode()}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 samples in eight shards."""
    return write_shards(tmp_path_factory.mktemp("shards"), SAMPLES, shards=8, member=member)


@pytest.fixture(scope="module")
def server(shards: Path) -> Iterator[Server]:
    """moto with the shards in s3://bucket/data."""
    with moto_server() as running:
        running.make_bucket("bucket")
        store = connect("s3://bucket/data", options=options(running.endpoint))
        for path in sorted(shards.iterdir()):
            store.put(path.name, path.read_bytes())
        yield running


def options(endpoint: str) -> StoreOptions:
    """How to reach it."""
    return StoreOptions(endpoint=endpoint, access_key="testing", secret_key="testing", region="us-east-1")


def large(number: int) -> dict[str, bytes]:
    """So much that a shard of twenty comes in several pieces."""
    return {"bin": random_bytes(number, 500_000)}


@pytest.fixture(scope="module")
def big(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[int, int]:
    """60 samples in three shards of 10 MB in s3://bucket/big; the checksum of each."""
    folder = write_shards(tmp_path_factory.mktemp("big"), 60, shards=3, member=large)
    store = connect("s3://bucket/big", options=options(server.endpoint))
    for path in sorted(folder.iterdir()):
        store.put(path.name, path.read_bytes())
    return {number: zlib.crc32(large(number)["bin"]) for number in range(60)}


def crcs(loader: stoker.Loader) -> dict[int, int]:
    """Checksum of every sample that was drawn, each once."""
    seen: dict[int, int] = {}
    for batch in loader:
        for sample, data in zip(batch["__index__"].tolist(), batch["bin"], strict=True):
            assert sample not in seen
            seen[sample] = zlib.crc32(data)
    return seen


def epoch(loader: stoker.Loader) -> dict[int, tuple[int, str]]:
    """Label and digest of the bytes of every sample that was drawn, each once."""
    seen: dict[int, tuple[int, str]] = {}
    for batch in loader:
        rows = zip(batch["__index__"].tolist(), batch["cls"].tolist(), batch["jpg"], strict=True)
        for sample, label, data in rows:
            assert sample not in seen
            seen[sample] = (label, hashlib.sha256(data).hexdigest())
    return seen


EXPECTED = {i: (i, hashlib.sha256(member(i)["jpg"]).hexdigest()) for i in range(SAMPLES)}

FIELDS: dict[str, object] = {"cls": int, "jpg": bytes}


def test_a_far_and_failing_store_changes_nothing(server: Server) -> None:
    """50 ms away, 5 % 503s, 1 % resets in mid-body: every sample once, right to the byte, and the retries are told."""
    plan = FaultPlan(seed=3, latency_s=0.05, unavailable_rate=0.05, reset_rate=0.01)
    with FaultProxy("127.0.0.1", server.port, plan) as proxy:
        dataset = stoker.open("s3://bucket/data", options=options(proxy.endpoint))
        with stoker.Loader(dataset, 8, fields=FIELDS, shuffle=stoker.Window(shards=4), seed=1) as loader:
            assert epoch(loader) == EXPECTED
            report = loader.report()
        assert proxy.counts["unavailable"] > 0
        assert proxy.counts["reset"] > 0
    assert sum(n for name, n in report.counts.items() if name.startswith("store.retries")) > 0
    assert "retried" in str(report)
    assert report.counts["read.store_bytes"] > 0
    assert report.counts["read.cache_bytes"] == 0


def test_a_cold_cache_fills_and_a_warm_one_needs_no_store(server: Server, tmp_path: Path) -> None:
    """The first epoch reads from the store, a later one from the cache only, with the same bytes; waits are misses."""
    cache = stoker.Cache(tmp_path / "cache")
    with FaultProxy("127.0.0.1", server.port, FaultPlan(latency_s=0.02)) as proxy:
        dataset = stoker.open("s3://bucket/data", cache=cache, options=options(proxy.endpoint))
        with stoker.Loader(dataset, 8, fields=FIELDS, seed=1) as loader:
            assert epoch(loader) == EXPECTED
            cold = loader.report()
        assert cold.counts["read.store_bytes"] > 0
        cache.warm(dataset)
        asked = proxy.counts["requests"]
        with stoker.Loader(dataset, 8, fields=FIELDS, seed=2) as loader:
            assert epoch(loader) == EXPECTED
            warm = loader.report()
        assert proxy.counts["requests"] == asked
    assert warm.counts["read.store_bytes"] == 0
    whole_bytes = sum(len(data) for i in range(SAMPLES) for data in member(i).values())
    assert warm.counts["read.cache_bytes"] >= whole_bytes  # the feeder is in the next epoch already
    assert not list((tmp_path / "cache" / "tmp").iterdir())


def test_a_store_that_is_gone_is_an_error_with_words(server: Server) -> None:
    """No endless wait: the error names the store and what was tried."""
    with FaultProxy("127.0.0.1", server.port) as proxy:
        short = StoreOptions(
            endpoint=proxy.endpoint, access_key="testing", secret_key="testing", region="us-east-1", deadline_s=2
        )
        dataset = stoker.open("s3://bucket/data", options=short)
    with (
        stoker.Loader(dataset, 8, fields=FIELDS) as loader,
        pytest.raises(stoker.StokerError, match=r"s3://bucket/data"),
    ):
        epoch(loader)


IMPATIENT = {"connect_timeout_s": 1.0, "read_timeout_s": 1.0}


@pytest.mark.parametrize("silence", [{"hang_rate": 0.4}, {"stall_rate": 0.4}])
def test_silent_requests_hold_nobody_for_ever(
    server: Server, big: dict[int, int], tmp_path: Path, silence: dict[str, float]
) -> None:
    """Requests that are never answered, or stop in the middle, are made again: while the cache fills, every
    sample comes once and right, and all of the cache fills."""
    with FaultProxy("127.0.0.1", server.port, FaultPlan(seed=1)) as proxy:
        cache = stoker.Cache(tmp_path / "cache")
        patience = replace(options(proxy.endpoint), deadline_s=60, **IMPATIENT)
        dataset = stoker.open("s3://bucket/big", cache=cache, options=patience)
        proxy.plan = FaultPlan(seed=1, **silence)
        with stoker.Loader(dataset, 4, fields={"bin": bytes}, seed=1) as loader:
            seen = crcs(loader)
            until(lambda: cache.status().entries == 3)
        assert sum(proxy.counts[what] for what in ("hang", "stall")) > 0
    assert seen == big
    assert not list((tmp_path / "cache" / "tmp").iterdir())


def test_a_store_that_falls_silent_is_an_error(server: Server, big: dict[int, int], tmp_path: Path) -> None:
    """With nothing answered any more the run ends when the deadline is over, and says what was tried."""
    with FaultProxy("127.0.0.1", server.port) as proxy:
        patience = replace(options(proxy.endpoint), deadline_s=4, **IMPATIENT)
        dataset = stoker.open("s3://bucket/big", cache=stoker.Cache(tmp_path / "cache"), options=patience)
        proxy.plan = FaultPlan(hang_rate=1.0)
        begin = time.monotonic()
        with (
            pytest.raises(stoker.StokerError, match=r"s3://bucket/big: 'shard_0000\d.tar'.*gave up after"),
            stoker.Loader(dataset, 4, fields={"bin": bytes}, seed=1) as loader,
        ):
            crcs(loader)
        assert time.monotonic() - begin < 20
    with stoker.Loader(
        stoker.open("s3://bucket/big", cache=dataset.cache, options=options(server.endpoint)),
        4,
        fields={"bin": bytes},
        seed=1,
    ) as loader:
        assert crcs(loader) == big
    assert not list((tmp_path / "cache" / "tmp").iterdir()), "what the first run left was not swept"


def test_a_shard_that_changed_is_an_error_that_names_both(server: Server) -> None:
    """Another object under the same name is never mixed in."""
    dataset = stoker.open("s3://bucket/data", options=options(server.endpoint))
    store = connect("s3://bucket/data", options=options(server.endpoint))
    before = store.get("shard_00003.tar")
    try:
        store.put("shard_00003.tar", before[:-512] + b"\1" * 512)
        with stoker.Loader(dataset, 8, fields=FIELDS) as loader, pytest.raises(stoker.StokerError, match="changed"):
            epoch(loader)
    finally:
        store.put("shard_00003.tar", before)
