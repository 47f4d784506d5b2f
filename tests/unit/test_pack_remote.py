"""Packing from and to a real S3 server: the same shards as from a folder, and what a bucket's changes get."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.servers import moto_server
from stoker.errors import NotFoundError, StoreError
from stoker.pack import pack
from stoker.pack.cut import shuffled
from stoker.store import Store, StoreOptions, connect
from support_pack import make_photos, tar_of, tree


@pytest.fixture(scope="module")
def options() -> Iterator[StoreOptions]:
    """How to reach a server that has a bucket `raw`."""
    with moto_server() as server:
        server.make_bucket("raw")
        yield StoreOptions(endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key)


def upload(folder: Path, store: Store) -> None:
    """Every file of a folder as an object."""
    for key, data in tree(folder).items():
        store.put(key, data)


def test_a_bucket_is_packed_like_a_folder(tmp_path: Path, options: StoreOptions) -> None:
    """Bucket to bucket, many reads at once: the objects are those of a local pack, byte for byte."""
    source = make_photos(tmp_path / "in")
    upload(source, connect("s3://raw/photos", options=options))
    pack(source, tmp_path / "local", shards=3)
    report = pack("s3://raw/photos", "s3://raw/out", shards=3, options=options)
    remote = connect("s3://raw/out", options=options)
    local = tree(tmp_path / "local")
    found = {info.key: remote.get(info.key) for info in remote.list()}
    assert found.keys() == local.keys() and report.shards == 3
    assert all(found[key] == local[key] for key in local if key != "_stoker/manifest.json")


def test_a_remote_archive_is_read_from_a_copy(tmp_path: Path, options: StoreOptions) -> None:
    """An archive in a bucket is packed like its folder, and its copy leaves nothing in scratch."""
    source = make_photos(tmp_path / "in", count=9)
    connect("s3://raw/archives", options=options).put("photos.tar", tar_of(source))
    (tmp_path / "scratch").mkdir()
    pack(source, tmp_path / "local", shards=2)
    pack("s3://raw/archives/photos.tar", tmp_path / "out", shards=2, options=options, scratch=tmp_path / "scratch")
    for shard in ("shard_00000.tar", "shard_00001.tar"):
        assert (tmp_path / "out" / shard).read_bytes() == (tmp_path / "local" / shard).read_bytes()
    assert list((tmp_path / "scratch").iterdir()) == []


@pytest.mark.parametrize("on_bad", ["fail", "skip"])
def test_an_object_that_vanishes_is_named(tmp_path: Path, options: StoreOptions, on_bad: Any) -> None:
    """An object that is deleted after the listing stops the pack, or is left out and told."""
    store = connect(f"s3://raw/moving-{on_bad}", options=options)
    source = make_photos(tmp_path / "in", count=90)
    upload(source, store)
    keys = [str(path.relative_to(source))[:-4] for path in source.rglob("*.jpg")]
    last = keys[shuffled(keys, 0)[-1]]

    def deleting(sample: dict[str, Any]) -> dict[str, Any]:
        store.delete(f"{last}.jpg")
        return sample

    if on_bad == "fail":
        with pytest.raises(NotFoundError, match=last):
            pack(store.url, tmp_path / "out", shards=1, transform=deleting, workers=1, options=options)
        return
    report = pack(store.url, tmp_path / "out", shards=1, transform=deleting, workers=1, on_bad="skip", options=options)
    assert report.samples == 89 and [(f.code, f.where) for f in report.findings] == [("vanished", f"{last}.jpg")]


def test_an_outage_is_no_bad_sample(tmp_path: Path) -> None:
    """A server that cannot be reached stops the pack, even if bad samples may be skipped, and nothing is written."""
    nobody = StoreOptions(endpoint="http://127.0.0.1:9", access_key="a", secret_key="b", deadline_s=0.5)
    with pytest.raises(StoreError):
        pack("s3://raw/photos", tmp_path / "out", on_bad="skip", options=nobody)
    assert not (tmp_path / "out").exists()
