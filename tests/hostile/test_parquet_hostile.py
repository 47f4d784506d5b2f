"""Tables made by others, damaged, encrypted and hostile: each gives what the key says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.errors import SampleError, ShardError
from stoker.format import table_guard
from stoker.format.table import TableFile, open_table, scan_table
from support_format import expected, run_limited
from support_rows import write_table

CHECKSUMS = {
    "parquet/parquet-testing/data/datapage_v1-corrupt-checksum.parquet",
    "parquet/parquet-testing/data/rle-dict-uncompressed-corrupt-checksum.parquet",
}
"""Read by the reader of the key, which verified no checksums; here they are verified."""


def everything(file: TableFile) -> dict[str, list[object]]:
    """All values of all columns."""
    return {name: file.read(range(int(file._starts[-1])), name) for name in file._names}


def test_every_table_of_the_key(shared_data: Path) -> None:
    """What the key reads is read, row for row; what it cannot open or read is an error of the shard or the sample."""
    opened = refused = unread = 0
    for name, one in expected(shared_data, "parquet").items():
        key, path = one["expect"], shared_data / name
        if name.endswith((".csv", ".gz")):
            assert scan_table(path, name).errors, name
        elif "open_error" in key:
            scan = scan_table(path, name)
            assert [finding.code for finding in scan.errors] == ["damaged-shard"], name
            refused += 1
        elif key.get("read") == "error" or name in CHECKSUMS:
            scan = scan_table(path, name)
            if not scan.errors:
                assert len(scan.samples) == key.get("read_rows", key["rows"]), name
                with pytest.raises(SampleError, match=r"rows \d+ to \d+: cannot be read|no value"):
                    everything(open_table(path))
            unread += 1
        else:
            scan = scan_table(path, name)
            assert not scan.errors, f"{name}: {scan.errors}"
            assert len(scan.samples) == key.get("read_rows", key["rows"]), name
            columns = everything(open_table(path))
            named = [line.partition(": ")[0] for line in key["schema"]] if "schema" in key else key["columns"]
            assert set(named) <= set(columns), name
            opened += 1
    assert opened > 50 and refused > 10 and unread > 6


def test_values_are_those_of_the_reader(shared_data: Path) -> None:
    """Metadata, lists, nulls and dictionaries come as pyarrow gives them, with their own types."""
    path = shared_data / "parquet/crafted/meta.parquet"
    table, file = pq.read_table(path), open_table(path)
    for name, values in everything(file).items():
        for value, known in zip(values, table.column(name).to_pylist(), strict=True):
            assert (value.tolist() if isinstance(value, np.ndarray) else value) == known, name
    assert isinstance(file.read([0], "label")[0], np.int32)
    assert None in file.read(range(120), "w")


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_hugging_face_images(shared_data: Path, codec: str) -> None:
    """The struct of bytes and path gives the encoded image, under the column's name and as `image`."""
    file = open_table(shared_data / f"parquet/crafted/hf-images-{codec}.parquet")
    images = file.read([39, 0, 3], "image")
    assert all(isinstance(one, bytes) and one[:2] in (b"\xff\xd8", b"\x89P") for one in images)
    assert images[1] != images[2]


def test_a_path_without_bytes_is_no_value(tmp_path: Path) -> None:
    """An image column that only says where the file lay leads outside: the row has no such field."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": None, "path": "/etc/passwd"}, {"bytes": b"x", "path": "/etc/passwd"}, None]
    pq.write_table(pa.table({"image": pa.array(rows, kind)}), tmp_path / "x.parquet")
    assert open_table(tmp_path / "x.parquet").read([0, 1, 2], "image") == [None, b"x", None]


def test_encrypted_files_kill_nobody(shared_data: Path) -> None:
    """All encrypted files of the suite are errors with a reason, those included that abort the library."""
    for path in sorted((shared_data / "parquet").rglob("*.encrypted")):
        scan = scan_table(path, path.name)
        assert scan.errors, path.name


def test_more_rows_than_a_file_can_hold(tmp_path: Path) -> None:
    """A column of one value over and over is a small file of many rows: refused beyond 1,024 rows a byte."""
    path = tmp_path / "many.parquet"
    with pq.ParquetWriter(path, pa.schema([("x", pa.int8())]), compression="none") as writer:
        column = pa.array(np.zeros(2_000_000, np.int8))
        for _ in range(8):
            writer.write_table(pa.table({"x": column}))
    if path.stat().st_size * 1_024 < 16_000_000:
        assert "declares 16000000 rows" in scan_table(path, "many").errors[0].message
    else:
        assert len(scan_table(path, "many").samples) == 16_000_000


def test_limits_of_the_structure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many columns, too wide a group, two columns of one name: refused before a row is read."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({str(n): [1, 2] for n in range(40)}), path)
    monkeypatch.setattr(table_guard, "ROW_FIELDS_MAX", 39)
    with pytest.raises(ShardError, match="40 columns, at most 39"):
        table_guard.look(path)
    monkeypatch.setattr(table_guard, "GROUP_BYTES_MAX", 10)
    with pytest.raises(ShardError, match="at most 10 are read at once"):
        table_guard.look(path)
    twice = tmp_path / "twice.arrow"
    with pa.ipc.new_file(str(twice), pa.schema([("a", pa.int8()), ("a", pa.int8())])) as writer:
        writer.write_batch(pa.record_batch([pa.array([1], pa.int8())] * 2, names=["a", "a"]))
    assert "same name" in scan_table(twice, "twice").errors[0].message


def test_a_buffer_that_claims_to_expand_without_end(tmp_path: Path) -> None:
    """A compressed Arrow buffer that promises 2^60 bytes is refused; nothing of that size is allocated."""
    path = tmp_path / "x.arrow"
    write_table(path, {str(n): {"x": np.arange(500)} for n in range(40)})
    data = bytearray(path.read_bytes())
    at = data.find(b"\x28\xb5\x2f\xfd")
    while at > 0:
        data[at - 8 : at] = (1 << 60).to_bytes(8, "little")
        at = data.find(b"\x28\xb5\x2f\xfd", at + 4)
    path.write_bytes(bytes(data))
    assert scan_table(path, "x").errors


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_turned_bytes(tmp_path: Path, suffix: str) -> None:
    """Bytes turned over and cut files give samples or errors, never anything else, in bounded memory."""
    whole = write_table(
        tmp_path / f"x{suffix}", {str(n): {"a": n, "b": f"text {n}", "c": np.arange(n % 7)} for n in range(200)}
    ).read_bytes()
    rng = np.random.default_rng(20_260_701)
    names = []
    for number in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.integers(1, 20)):
            damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        path = tmp_path / f"{number}{suffix}"
        path.write_bytes(bytes(damaged[: rng.integers(1, len(whole))] if number % 5 == 0 else damaged))
        assert len(scan_table(path, "t").samples) <= 1_000_000
        names.append(str(path))
    script = (
        "import sys\nfrom pathlib import Path\nfrom stoker.format.table import open_table\n"
        "from stoker.errors import StokerError\n"
        "# LIMIT HERE\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        file = open_table(Path(name))\n"
        "        for field in file._names: file.read(range(int(file._starts[-1])), field)\n"
        "    except StokerError: pass\n"
    )
    done = run_limited(script, *names, memory_bytes=4 << 30, seconds=60)
    assert done.returncode == 0, done.stderr[-2000:]
