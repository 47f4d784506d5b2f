"""Every WebDataset shard of the real data gives the outcome of its key, in bounded memory and time.

All scans run in one process of their own, as `stoker index` runs them, under a limit of address space.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from stoker.format.codec import expanded
from support_format import expected, run_limited

SUFFIXES = (".tar", ".gz", ".zst", ".bz2", ".xz", ".tgz")
MEMORY_BYTES = 256 << 20
SECONDS_EACH_MAX = 2.0

SCAN_ALL = """
import json, pathlib, sys, time
from stoker.format import FORMATS
from stoker.index.scan import scan_shard
from stoker.store import Local
# LIMIT HERE
root = pathlib.Path(sys.argv[1])
store = Local(root)
for key in json.loads(sys.argv[2]):
    start = time.perf_counter()
    scanned = scan_shard(store, store.head(key), FORMATS["webdataset"])
    print(json.dumps({
        "key": key,
        "seconds": time.perf_counter() - start,
        "samples": [[one.key, sorted(place.name for place in one.fields)] for one in scanned.scan.samples],
        "places": sorted(
            [p.offset, p.length, one.key + "." + p.name] for one in scanned.scan.samples for p in one.fields
        ),
        "findings": [[one.code, one.severity, one.message] for one in scanned.scan.findings],
        "size": scanned.ref.size, "expanded": scanned.ref.expanded_size, "compression": scanned.ref.compression,
    }))
"""

ERRORS = {  # file → what the error says; samples found all the same, where that is fixed
    "crafted/all-zero-1M.tar": ("1048576 bytes of NULs", 0),
    "crafted/bad-checksum.tar.zst": ("damaged zstd", None),
    "crafted/bad-crc.tar.gz": ("damaged gzip", None),
    "crafted/huge-size-header.tar": ("needs 8589934591 bytes", 1),
    "crafted/negative-size-header.tar": ("size is negative", 1),
    "crafted/random.tar": ("not a tar", 0),
    "crafted/trunc-mid-member.tar": ("shard is cut", 12),
    "crafted/zero-hole-16k.tar": ("a hole: 16384 bytes", 8),
    "lhotse-shar/cuts.000000.jsonl.gz": ("not a tar", 0),
}
WARNINGS = {
    "crafted/cat-two.tar": "second-archive",
    "crafted/evil-paths.tar": "escaping-name",
    "crafted/trailing-junk.tar": "trailing-junk",
}
NOTICES = {"crafted/meta-files.tar": {"hidden-member", "no-extension"}}


@pytest.fixture(scope="module")
def key(shared_data: Path) -> dict[str, Any]:
    """What the key says of each shard."""
    return {
        name.removeprefix("webdataset/"): value.get("expect", {})
        for name, value in expected(shared_data, "webdataset").items()
        if name.endswith(SUFFIXES)
    }


@pytest.fixture(scope="module")
def outcomes(shared_data: Path, key: dict[str, Any]) -> dict[str, Any]:
    """What stoker says of each shard."""
    done = run_limited(
        SCAN_ALL, str(shared_data / "webdataset"), json.dumps(list(key)), memory_bytes=MEMORY_BYTES, seconds=100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["key"]: one for one in found}


def test_every_shard_is_scanned(key: dict[str, Any], outcomes: dict[str, Any]) -> None:
    """None is left out, and none takes long."""
    assert outcomes.keys() == key.keys()
    assert len(key) >= 30
    assert {name: one["seconds"] for name, one in outcomes.items() if one["seconds"] > SECONDS_EACH_MAX} == {}


def test_samples_are_those_of_the_key(key: dict[str, Any], outcomes: dict[str, Any]) -> None:
    """Keys and fields of every shard that can be read are those that the webdataset library finds."""
    for name, expect in key.items():
        if name in ERRORS or "LFS pointer" in expect.get("verdict", ""):
            continue
        samples = outcomes[name]["samples"]
        lines = "\n".join(f"{sample}\t{','.join(fields)}" for sample, fields in samples)
        assert len(samples) == expect["rule_samples"], name
        assert hashlib.sha256(lines.encode()).hexdigest() == expect["rule_keys_digest"], name


def test_damaged_shards_are_errors(key: dict[str, Any], outcomes: dict[str, Any]) -> None:
    """Each damaged shard has an error that says what is wrong, and exactly these have one."""
    pointers = {name: ("git lfs pull", 0) for name, expect in key.items() if "LFS pointer" in expect.get("verdict", "")}
    assert len(pointers) > 5
    for name, (words, samples) in (ERRORS | pointers).items():
        errors = [message for _, severity, message in outcomes[name]["findings"] if severity == "error"]
        assert any(words in message for message in errors), (name, errors)
        assert samples in (None, len(outcomes[name]["samples"])), name
    with_errors = {name for name, one in outcomes.items() if any(f[1] == "error" for f in one["findings"])}
    assert with_errors == (ERRORS | pointers).keys()


def test_suspicious_shards_are_warned_about(outcomes: dict[str, Any]) -> None:
    """Two archives in one file, junk behind the end, names that escape: readable, with a warning each; no others."""
    warned = {name: {f[0] for f in one["findings"] if f[1] == "warning"} for name, one in outcomes.items()}
    assert {name: codes for name, codes in warned.items() if codes} == {name: {code} for name, code in WARNINGS.items()}


def test_what_is_passed_over_is_counted(outcomes: dict[str, Any]) -> None:
    """Members that are no data are notices."""
    noticed = {name: {f[0] for f in one["findings"] if f[1] == "notice"} for name, one in outcomes.items()}
    assert {name: codes for name, codes in noticed.items() if codes} == NOTICES


def test_compression_is_found_by_content(key: dict[str, Any], outcomes: dict[str, Any]) -> None:
    """gzip under a plain name is gzip; offsets lie in the expanded bytes."""
    for name, expect in key.items():
        if "outer_compression" in expect:
            assert outcomes[name]["compression"] == (expect["outer_compression"] or ""), name
    assert outcomes["crafted/ok-gz-named.tar"]["compression"] == "gzip"
    for one in outcomes.values():
        assert all(0 <= offset <= offset + length <= one["expanded"] for offset, length, _ in one["places"])


def test_fields_hold_the_members_bytes(shared_data: Path, key: dict[str, Any], outcomes: dict[str, Any]) -> None:
    """Names, sizes and bytes at the places are those of the members: their digest is that of the key."""
    compared = 0
    for name, expect in key.items():
        one = outcomes[name]
        if name in ERRORS or name in NOTICES or name == "crafted/case-ext.tar" or not one["places"]:
            continue
        data = (shared_data / "webdataset" / name).read_bytes()
        if one["compression"]:
            data = b"".join(expanded([data], one["compression"]))
        lines = [
            f"{member}\t{length}\t{hashlib.sha256(data[offset : offset + length]).hexdigest()}"
            for offset, length, member in one["places"]
        ]
        assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == expect["members_digest"], name
        compared += 1
    assert compared >= 25


def test_nothing_escaped(outcomes: dict[str, Any]) -> None:
    """No member was written anywhere, no pickle was loaded."""
    assert outcomes
    assert not list(Path("/tmp").glob("evil*"))
    assert not Path("/tmp/STOKER_PICKLE_EXECUTED").exists()
