"""The cut: orders, shards and keys, decided from names and sizes alone."""

from __future__ import annotations

import io
import tarfile
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import UsageError
from stoker.pack.cut import clean_key, cut_by_count, cut_by_size, shuffled, tar_bytes, unique_key

LAW = settings(deadline=None, derandomize=True)
SIZES = st.lists(st.integers(1, 1000), min_size=1, max_size=200)


@LAW
@given(sizes=SIZES, limit=st.integers(1, 3000))
def test_shards_hold_what_fits(sizes: list[int], limit: int) -> None:
    """No shard is empty or over the limit, except a single large sample, and none could have taken the next sample."""
    bounds = cut_by_size(sizes, shard_bytes=limit)
    assert bounds[0] == 0 and bounds[-1] == len(sizes)
    for start, stop in pairwise(bounds):
        assert stop > start
        assert sum(sizes[start:stop]) <= limit or stop - start == 1
        assert stop == len(sizes) or sum(sizes[start : stop + 1]) > limit


@LAW
@given(sizes=SIZES, shards=st.integers(1, 200))
def test_a_number_of_shards_is_kept(sizes: list[int], shards: int) -> None:
    """Exactly so many shards, none empty, none more than an even share and one sample; too many are a usage error."""
    if shards > len(sizes):
        with pytest.raises(UsageError):
            cut_by_count(sizes, shards=shards)
        return
    bounds = cut_by_count(sizes, shards=shards)
    assert len(bounds) == shards + 1 and bounds[0] == 0 and bounds[-1] == len(sizes)
    for start, stop in pairwise(bounds):
        assert stop > start
        assert stop - start == 1 or sum(sizes[start:stop]) <= sum(sizes) / shards + 2 * max(sizes)


@LAW
@given(names=st.sets(st.text(max_size=5), max_size=60), seed=st.integers(0, 2**64 - 1))
def test_an_order_takes_every_sample_and_depends_on_names_only(names: set[str], seed: int) -> None:
    """The order is a permutation, and however the names are listed, they come in the same order."""
    keys = sorted(names)
    order = shuffled(keys, seed)
    assert sorted(order) == list(range(len(keys)))
    backwards = keys[::-1]
    assert [backwards[number] for number in shuffled(backwards, seed)] == [keys[number] for number in order]


def test_the_order_is_frozen() -> None:
    """Another release must cut alike, or a killed pack could not go on after an update."""
    assert shuffled([f"a/{n}" for n in range(12)], 42) == [7, 4, 8, 9, 5, 2, 11, 6, 10, 1, 0, 3]
    assert shuffled([f"a/{n}" for n in range(12)], 43) != shuffled([f"a/{n}" for n in range(12)], 42)


@LAW
@given(sizes=st.lists(st.integers(0, 3000), max_size=20))
def test_tar_bytes_are_those_of_a_tar(sizes: list[int]) -> None:
    """The size counted is the size that a tar takes, but for its end mark."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number, size in enumerate(sizes):
            info = tarfile.TarInfo(str(number))
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
        assert tar.offset == tar_bytes(sizes)


@pytest.mark.parametrize(
    ("key", "clean"),
    [
        ("a/b.c", "a/b_c"), ("x.y/z", "x_y/z"), ("a\udcffb", "a_b"), ("/abs", "abs"), ("..", "__"), ("", "_"),
        ("a\0b", "a_b"), ("zu spät", "zu spät"),
    ],
)  # fmt: skip
def test_keys_are_cleaned(key: str, clean: str) -> None:
    """Dots, undecodable bytes and NULs become "_", slashes at the ends go."""
    assert clean_key(key) == clean


@LAW
@given(keys=st.lists(st.sampled_from(["a", "a_1", "a_2", "b"]), max_size=30))
def test_collisions_are_numbered(keys: list[str]) -> None:
    """Every key comes out once; the first of its name keeps it when nobody has taken it."""
    taken: set[str] = set()
    given_out = [unique_key(key, taken) for key in keys]
    assert len(set(given_out)) == len(keys)
    assert not keys or given_out[0] == keys[0]
