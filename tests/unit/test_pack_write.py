"""How a shard's bytes get to its file: large pieces uncopied, small ones joined, all of them or an error."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.format.webdataset import _PLAIN_FIELDS, _PLAIN_KEY, check_name
from stoker.pack.shard import SMALL_BYTES, WRITE_BYTES, _Tee
from stoker.store import digest_of
from support_pack import make_photos


@given(
    st.lists(st.sampled_from([0, 1, 511, SMALL_BYTES, SMALL_BYTES + 1, 100_000, WRITE_BYTES, 3_000_000]), max_size=30)
)
@settings(max_examples=40)
def test_every_byte_goes_to_the_file_in_order(sizes: list[int]) -> None:
    """Whatever the sizes are; the digest is that of the whole."""
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    with tempfile.TemporaryFile(buffering=0) as file:
        with _Tee(file, "x") as tee:
            assert [tee.write(piece) for piece in pieces] == sizes
            tee.finish()
        file.seek(0)
        whole = b"".join(pieces)
        assert file.read() == whole
        assert tee.digest.hexdigest() == digest_of(whole)


def test_a_file_that_takes_no_more_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit in the middle of a write: the error names the shard, no half of one is left, and the next run ends it."""
    source = make_photos(tmp_path / "in", count=60, side=200)
    command = [sys.executable, "-m", "stoker.cli.main", "pack", str(source), str(tmp_path / "out"), "--shards", "1"]
    limit = (100_000, 100_000)
    failed = subprocess.run(
        command, capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),  # no threads here
    )  # fmt: skip
    assert failed.returncode == 1 and "shard_00000.tar: File too large" in failed.stderr
    assert not [path for path in (tmp_path / "out").rglob("*") if "shard" in path.name or "tmp" in path.name]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("field", sorted(_PLAIN_FIELDS))
@given(st.from_regex(_PLAIN_KEY, fullmatch=True).filter(lambda key: len(key) <= 255))
@settings(max_examples=40)
def test_plain_names_are_always_good(field: str, key: str) -> None:
    """What the writer lets pass at a glance, the long look has nothing against."""
    check_name(key, field)
