"""The cache shared by processes that know nothing of each other, over a real server behind a counting proxy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from stoker.cache import Cache
from stoker.cli.servers import Server, moto_server
from stoker.flow import parallel_map
from stoker.store import connect
from stoker.testing.fault_proxy import FaultPlan, FaultProxy
from support_store import fresh_prefix, options_for, random_bytes, refs_of, until

_READER = """
import json, random, sys
from pathlib import Path
from stoker.cache import Cache
from stoker.events import Events
from stoker.index.entry import ObjectRef
from stoker.store import ByteRange, StoreOptions, connect
job = json.loads(sys.argv[1])
events = Events()
store = connect(job["url"], options=StoreOptions(**job["options"]))
objects = Cache(job["cache"]).objects(store, recorder=events)
refs = [ObjectRef(*ref) for ref in job["refs"]]
chance = random.Random(job["seed"])
print("ready", flush=True)
sys.stdin.readline()
for turn in range(job["turns"]):
    ref = chance.choice(refs)
    start = chance.randrange(ref.size - 100)
    data = bytes(objects.read(ref, [ByteRange(start, start + 100)]).data[0])
    if data != Path(job["truth"], ref.key).read_bytes()[start : start + 100]:
        sys.exit(f"wrong bytes of {ref.key} at {start}")
sys.stdin.readline()
objects.close()
print(json.dumps(events.totals()))
"""


@pytest.fixture(scope="module")
def moto() -> Iterator[Server]:
    """moto's S3."""
    with moto_server() as server:
        yield server


def test_four_processes_share_one_cold_cache(tmp_path: Path, moto: Server) -> None:
    """Four readers of 20 cold objects get right bytes, fetch each object whole once, and end with a full cache."""
    url, truth = fresh_prefix(moto), tmp_path / "truth"
    direct = connect(url, options=options_for(moto))
    truth.mkdir()
    for number in range(20):
        data = random_bytes(number, 1_500_000 + number)
        (truth / f"shard{number:02d}").write_bytes(data)
        direct.put(f"shard{number:02d}", data)
    refs = refs_of(direct)
    with FaultProxy("127.0.0.1", moto.port, FaultPlan(seed=1, latency_s=0.002, unavailable_rate=0.02)) as proxy:
        options = {
            "endpoint": proxy.endpoint,
            "region": "us-east-1",
            "access_key": moto.access_key,
            "secret_key": moto.secret_key,
        }
        job = {
            "url": url,
            "options": options,
            "cache": str(tmp_path / "c"),
            "refs": [(ref.key, ref.size, ref.version) for ref in refs],
            "turns": 200,
            "truth": str(truth),
        }
        readers = [
            subprocess.Popen(
                [sys.executable, "-c", _READER, json.dumps({**job, "seed": seed})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for seed in range(4)
        ]
        lines = [reader.stdout.readline() for reader in readers if reader.stdout is not None]
        assert lines == ["ready\n"] * 4
        for reader in readers:
            assert reader.stdin is not None
            reader.stdin.write("go\n")
            reader.stdin.flush()
        cache = Cache(tmp_path / "c")
        until(lambda: cache.status().entries == 20)
        assert cache.status().readers == 4
        outputs = list(parallel_map(lambda reader: reader.communicate("end\n")[0], readers, workers=4))
        assert [reader.returncode for reader in readers] == [0] * 4
        sent = {ref.key: proxy.sent_bytes[quote(f"/tests/{url.split('/')[3]}/{ref.key}")] for ref in refs}
    totals = [json.loads(output) for output in outputs]
    assert sum(total.get("cache.admitted_bytes", 0) for total in totals) == sum(ref.size for ref in refs)
    for ref in refs:  # once whole, and few enough ranges while it came in that a second time would show
        assert ref.size <= sent[ref.key] < 1.5 * ref.size
    assert sum(total["cache.hits"] + total["cache.misses"] for total in totals) == 800
    status = cache.status()
    assert (status.entries, status.reserved_bytes, status.readers) == (20, 0, 0)
    assert status.hits + status.misses == 800
    assert list((tmp_path / "c" / "tmp").iterdir()) == []


def test_two_processes_warm_together(tmp_path: Path, moto: Server) -> None:
    """Two processes that warm the same dataset at once share the work and both return when all is there."""
    url = fresh_prefix(moto)
    store = connect(url, options=options_for(moto))
    for number in range(12):
        store.put(f"s{number:02d}", random_bytes(number, 3_000_000))
    refs = refs_of(store)
    code = """
import json, sys
from stoker.cache import Cache
from stoker.index.entry import ObjectRef
from stoker.store import StoreOptions, connect
job = json.loads(sys.argv[1])
class Dataset:
    store = connect(job["url"], options=StoreOptions(**job["options"]))
    def objects(self):
        return [ObjectRef(*ref) for ref in job["refs"]]
seen = []
report = Cache(job["cache"]).warm(Dataset(), workers=3, progress=lambda *now: seen.append(now))
assert seen[-1] == (12, 12, 36_000_000) == (len(seen), report.objects, report.bytes), seen
print(report.admitted_objects, report.refused_objects)
"""
    options = {
        "endpoint": moto.endpoint,
        "region": "us-east-1",
        "access_key": moto.access_key,
        "secret_key": moto.secret_key,
    }
    job = json.dumps(
        {
            "url": url,
            "options": options,
            "cache": str(tmp_path / "c"),
            "refs": [(ref.key, ref.size, ref.version) for ref in refs],
        }
    )
    both = [subprocess.Popen([sys.executable, "-c", code, job], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [process.communicate()[0].split() for process in both]
    assert sum(int(admitted) for admitted, _ in found) == 12 and all(refused == "0" for _, refused in found)
    cache = Cache(tmp_path / "c")
    assert all(cache.contains(store, ref) for ref in refs) and cache.status().bytes == 36_000_000
