"""What the public functions say of arguments of another kind: in words, at once, and nothing is begun with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import UsageError
from support_dataset import write_shards


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty samples."""
    return write_shards(tmp_path_factory.mktemp("data") / "a", 20, shards=2)


@pytest.mark.parametrize("url", [None, 3, b"folder", [b"folder"], [None], {"a": 1}.values()])
def test_what_is_no_url(url: Any) -> None:
    """Bytes are not a list of numbers to look for."""
    with pytest.raises(UsageError, match="open takes a URL, a path, or a list of shards, found"):
        stoker.open(url)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": 3}, "cache is a stoker.Cache or its folder, found 3"),
        ({"options": {"endpoint": "http://x"}}, "options is a StoreOptions, found {'endpoint'"),
        ({"check": "ALL"}, "check is 'touch' or 'all', found 'ALL'"),
        ({"check": True}, "check is 'touch' or 'all', found True"),
    ],
)
def test_options_of_open(data: Path, options: dict[str, Any], message: str) -> None:
    """A check that is misspelt must not pass for one that was made."""
    with pytest.raises(UsageError, match=message):
        stoker.open(data, **options)


@pytest.mark.parametrize("path", [None, "", 3, b"c", "s3://bucket/cache", "file:///nvme/cache"])
def test_what_is_no_folder_of_a_cache(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the working folder by accident, nor one that is called "s3:"."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="a cache is a folder on a disk of this machine, found"):
        stoker.Cache(path)


@pytest.mark.parametrize("size", [1.5, True, [], "50%"])
def test_what_is_no_size(size: Any) -> None:
    """A limit is text with a unit, or a whole number."""
    for name in ("limit", "free_min"):
        with pytest.raises(UsageError, match="not a size"):
            stoker.Cache("c", **{name: size})
    assert stoker.Cache("c", limit=np.int64(5)).limit == 5  # type: ignore[arg-type]  # that is the question


@pytest.mark.parametrize("make", [lambda one: one, lambda one: stoker.Mixture({"a": (one, 1)})])
def test_samples_by_number_only(data: Path, make: Callable[[stoker.Dataset], stoker.Dataset]) -> None:
    """As in a list: text that looks like a number is none, nor is a slice."""
    dataset = make(stoker.open(data))
    for wrong in ("3", 1.0, slice(1, 3), None):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            dataset[wrong]  # type: ignore[index]  # that is the question
    assert dataset[np.int64(3)]["__index__"] == 3
    with pytest.raises(UsageError, match="map takes a function of a sample's dict, found 3"):
        dataset.map(3)  # type: ignore[arg-type]  # that is the question


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 4}, "budget is a stoker.Budget, found 4"),
        ({"budget": stoker.Budget(feeders=1000)}, "at most 256, found 1000"),
        ({"budget": stoker.Budget(adapt="no")}, "adapt=. is True or False, found 'no'"),  # type: ignore[arg-type]  # asked
        ({"fields": {3: int}}, "fields maps names to decoders, found 3 for a name"),
        ({"transform": "f"}, "transform is a function, found 'f'"),
        ({"batch_transform": 3}, "batch_transform is a function, found 3"),
    ],
)
def test_options_of_a_loader(data: Path, options: dict[str, Any], message: str) -> None:
    """Before a feeder is started, not by its first batch."""
    with pytest.raises(UsageError, match=message):
        stoker.Loader(stoker.open(data), 4, **options)
