"""What `verify` finds in whole and damaged datasets, and what `--repair` saves of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.check import Verified, salvage, verify
from stoker.convert import convert
from stoker.errors import ShardError, UsageError
from support_dataset import jpeg, own_index_folder, write_shards
from support_rows import write_hdf5
from support_typed import tfrecord, write_mds

MEMBERS = {"cls": b"1", "txt": b"text"}


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def codes(found: Verified) -> dict[str, int]:
    """How often each code was found."""
    return {finding.code: finding.count for finding in found.findings}


def tree(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Every file with its bytes and time."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def run(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command line."""
    return subprocess.run(
        [sys.executable, "-m", "stoker.cli.main", "verify", *arguments],
        env=own_index_folder(home), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["webdataset", "mds", "tfrecord", "hdf5", "table", "arrays"])
def test_a_whole_dataset_has_no_findings(tmp_path: Path, name: str) -> None:
    """In every format, with an index beside it and deep."""
    write_shards(tmp_path / "tar", 10, member=lambda at: {"cls": b"%d" % at})
    convert(tmp_path / "tar", tmp_path / "whole", format=name, decode=("cls",), shard_size=40)
    found = verify(tmp_path / "whole", deep=True)
    assert (found.format, found.samples, found.findings) == (name, 10, ())


def test_a_cut_shard_is_found_and_what_is_whole_is_saved(tmp_path: Path) -> None:
    """The finding has a place; the saved samples have their bytes; the lost ones are named; the source stays."""
    source = tmp_path / "tar"
    write_shards(source, 30)
    whole = [stoker.open(source)[at] for at in range(30)]
    stoker.open(source)
    subprocess.run([sys.executable, "-m", "stoker.cli.main", "index", str(source), "--publish"], check=True)
    path = source / "shard_00001.tar"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    before = tree(source)
    found = verify(source)
    assert found.damaged == {"shard_00001.tar"} and found.errors
    assert {"not-as-indexed"} < set(codes(found))
    assert all(finding.where.startswith("shard_00001.tar") for finding in found.findings)
    saved = salvage(source, tmp_path / "saved", found)
    (shard,) = saved.shards
    assert shard.before == 10 and 0 < shard.after < 10 and shard.after == saved.samples
    assert len(saved.lost) == 10 - shard.after
    again = stoker.open(tmp_path / "saved")
    wanted = {one["__key__"]: one["jpg"] for one in whole[10:20]}
    assert {again[at]["__key__"]: again[at]["jpg"] for at in range(len(again))}.items() <= wanted.items()
    assert {*wanted} == {place.partition(":")[2] for place in saved.lost} | {
        again[at]["__key__"] for at in range(len(again))
    }
    assert verify(tmp_path / "saved", deep=True).findings == ()
    assert tree(source) == before


def test_a_flipped_byte_is_found_by_what_the_format_knows(tmp_path: Path) -> None:
    """A checksum of TFRecord, a hash of MDS."""
    data = bytearray(tfrecord({f"k{at}": {"x": b"some bytes"} for at in range(5)}))
    (tmp_path / "tf").mkdir()
    data[len(data) // 2] ^= 1
    (tmp_path / "tf" / "a.tfrecord").write_bytes(data)
    found = verify(tmp_path / "tf")
    assert found.samples == 4 and found.errors == 1
    saved = salvage(tmp_path / "tf", tmp_path / "saved", found)
    assert saved.samples == 4 and len(stoker.open(tmp_path / "saved")) == 4
    shard = write_mds(tmp_path / "mds", [{"x": b"some bytes"}] * 5, hashes=("sha1",)) / "shard.00000.mds"
    bytes_ = bytearray(shard.read_bytes())
    bytes_[-1] ^= 1
    shard.write_bytes(bytes_)
    found = verify(tmp_path / "mds")
    assert codes(found) == {"wrong-hash": 1}
    assert salvage(tmp_path / "mds", tmp_path / "again", found).doubtful == ("shard.00000.mds",)
    assert saved.doubtful == ()


def test_a_table_with_captions_and_nulls_is_repaired(tmp_path: Path) -> None:
    """The row groups around a damaged one are saved, with lists of text and a null in the first row."""
    (tmp_path / "in").mkdir()
    noise = np.random.default_rng(1).bytes
    columns = {"captions": [None, *[["one", "two"]] * 59], "data": [noise(2_000) for _ in range(60)]}
    path = tmp_path / "in" / "0.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=10, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    found = verify(tmp_path / "in", deep=True)
    saved = salvage(tmp_path / "in", tmp_path / "saved", found)
    assert saved.samples == 50 and len(saved.lost) == 10
    again = stoker.open(tmp_path / "saved")
    assert "captions" not in again[0] and again[1]["captions"] == ["one", "two"]


def test_only_a_deep_look_finds_what_cannot_be_decoded(tmp_path: Path) -> None:
    """A JPEG cut inside a whole tar; repaired, the sample is gone and named."""
    write_shards(tmp_path / "tar", 9, shards=1, member=lambda at: {"jpg": jpeg(at)[: 200 if at == 4 else None]})
    assert verify(tmp_path / "tar").findings == ()
    found = verify(tmp_path / "tar", deep=True)
    (finding,) = found.findings
    assert (finding.code, finding.severity, finding.where) == ("undecodable", "error", "shard_00000.tar:000004")
    assert "field 'jpg'" in finding.message
    saved = salvage(tmp_path / "tar", tmp_path / "saved", found)
    assert saved.lost == ("shard_00000.tar:000004",) and saved.samples == 8


def test_samples_without_a_field_are_counted(tmp_path: Path) -> None:
    """The first place is named; pictures of two kinds are one field."""
    write_shards(
        tmp_path / "tar", 20,
        member=lambda at: {("jpg", "png")[at % 2]: jpeg(at), **({} if at in (3, 4) else {"cls": b"1"})},
    )  # fmt: skip
    (finding,) = verify(tmp_path / "tar").findings
    assert (finding.code, finding.severity, finding.count) == ("missing-field", "warning", 2)
    assert finding.where == "shard_00000.tar:000003" and "'cls'" in finding.message


def test_links_that_lead_out_are_told(tmp_path: Path) -> None:
    """A shard that is a link to elsewhere is no part of the dataset, and nobody may miss that; nor a dangling one."""
    write_shards(tmp_path / "tar", 9, shards=1, member=lambda at: MEMBERS)
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.tar").symlink_to(tmp_path / "tar" / "shard_00000.tar")
    with pytest.raises(ShardError, match=r"links out of the folder are not followed, as 'a\.tar'"):
        stoker.open(tmp_path / "links")
    (tmp_path / "tar" / "b.tar").symlink_to(tmp_path / "absent.tar")
    (tmp_path / "tar" / "inside.tar").symlink_to("shard_00000.tar")
    (finding,) = verify(tmp_path / "tar").findings
    assert (finding.code, finding.severity, finding.where) == ("outside-link", "warning", "b.tar")


def test_a_file_of_another_kind_is_a_damaged_shard(tmp_path: Path) -> None:
    """HDF5 that is none gives a finding, and a repair that has nothing to save writes nothing."""
    (tmp_path / "h5").mkdir()
    write_hdf5(tmp_path / "h5" / "good.h5", {"a": {"x": 1}})
    (tmp_path / "h5" / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    found = verify(tmp_path / "h5", deep=True)
    assert found.damaged == {"bad.h5"} and found.samples == 1
    saved = salvage(tmp_path / "h5", tmp_path / "saved", found)
    assert (saved.samples, [(one.shard, one.after) for one in saved.shards]) == (0, [("bad.h5", 0)])
    assert not (tmp_path / "saved").exists()


def test_raw_files_are_verified_and_not_repaired(tmp_path: Path) -> None:
    """A picture that cannot be decoded is named by its file."""
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "a.jpg").write_bytes(jpeg(1))
    (tmp_path / "photos" / "cat" / "b.jpg").write_bytes(jpeg(2)[:150])
    found = verify(tmp_path / "photos", deep=True)
    assert [(one.code, one.where) for one in found.findings] == [("undecodable", "cat/b.jpg")]
    with pytest.raises(UsageError, match="raw files"):
        salvage(tmp_path / "photos", tmp_path / "saved", found)


def test_exit_codes_and_both_outputs(tmp_path: Path) -> None:
    """0 without any finding, 1 with a warning, 0 when warnings are fine, 1 with an error whatever is fine."""
    write_shards(tmp_path / "whole", 6, member=lambda at: MEMBERS)
    write_shards(tmp_path / "warned", 6, member=lambda at: MEMBERS if at else {"cls": b"1"})
    write_shards(tmp_path / "cut", 6, member=lambda at: MEMBERS)
    path = tmp_path / "cut" / "shard_00000.tar"
    path.write_bytes(path.read_bytes()[:1_600])
    assert run(str(tmp_path / "whole"), home=tmp_path).returncode == 0
    assert run(str(tmp_path / "warned"), home=tmp_path).returncode == 1
    assert run(str(tmp_path / "warned"), "--warnings-ok", home=tmp_path).returncode == 0
    done = run(str(tmp_path / "cut"), "--warnings-ok", "--json", "--repair", str(tmp_path / "saved"), home=tmp_path)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["counts"]["error"] >= 1 and told["findings"][0]["where"].startswith("shard_00000.tar")
    assert told["repaired"]["samples"] == len(stoker.open(tmp_path / "saved"))
    text = run(str(tmp_path / "cut"), home=tmp_path)
    assert text.stdout.splitlines()[-1].startswith(f"stoker verify: file://{tmp_path}/cut: webdataset: ")
