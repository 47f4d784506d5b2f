"""Conversion from and to a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

import stoker
from stoker.check import inspect, salvage, verify
from stoker.cli.servers import moto_server
from stoker.convert import convert
from stoker.errors import UsageError
from stoker.store import StoreOptions, connect
from support_dataset import write_shards
from support_pack import tree


def test_a_bucket_is_converted_like_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bucket to bucket, by a stream and by a library: the shards are those of a folder, and scratch is empty after."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    source = write_shards(tmp_path / "tar", 12)
    with moto_server() as server:
        server.make_bucket("raw")
        options = StoreOptions(endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key)
        store = connect("s3://raw/tar", options=options)
        for key, data in tree(source).items():
            store.put(key, data)
        for name in ("mds", "table"):
            report = convert("s3://raw/tar", f"s3://raw/{name}", format=name, shard_size="4kB", options=options)
            convert(source, tmp_path / name, format=name, shard_size="4kB")
            remote = connect(f"s3://raw/{name}", options=options)
            found = {info.key: remote.get(info.key) for info in remote.list()}
            local = tree(tmp_path / name)
            assert report.shards > 1 and found.keys() == local.keys()
            assert all(found[key] == local[key] for key in local if key != "_stoker/manifest.json")
            assert len(stoker.open(f"s3://raw/{name}", options=options)) == 12
            assert verify(f"s3://raw/{name}", deep=True, cache=tmp_path / "cache", options=options).findings == ()
        convert("s3://raw/table", tmp_path / "back", format="mds", cache=tmp_path / "cache", options=options)
        assert len(stoker.open(tmp_path / "back")) == 12
        with pytest.raises(UsageError, match="from a file"):
            verify("s3://raw/table", deep=True, options=options)
        told = inspect("s3://raw/table", cache=tmp_path / "cache", options=options)
        assert {one.name: one.samples for one in told.fields} == {"jpg": 12, "cls": 12, "txt": 12}
        damaged = connect("s3://raw/mds", options=options)
        damaged.put("shard_00001.mds", damaged.get("shard_00001.mds")[:-10])
        saved = salvage("s3://raw/mds", "s3://raw/saved", verify("s3://raw/mds", options=options), options=options)
        (shard,) = saved.shards
        assert shard.shard == "shard_00001.mds" and shard.before == shard.after + 1 == len(saved.lost) + shard.after
        assert len(stoker.open("s3://raw/saved", options=options)) == saved.samples
    assert list((tmp_path / "scratch").iterdir()) == []
