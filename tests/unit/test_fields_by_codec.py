"""What a field holds is known by how the format codes it, and found by its whole name, blanks and all."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import stoker
from stoker.check import inspect, verify
from stoker.convert import convert
from stoker.decode import Image, default_for
from stoker.errors import MissingFieldError
from support_dataset import jpeg, write_shards
from support_rows import write_table
from support_typed import write_mds


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MDS columns whose names say something else than their encodings."""
    samples = [{"photo": jpeg(i), "txt": jpeg(i), "jpg": pickle.dumps(i), "png": f"text {i}"} for i in range(8)]
    encodings = {"photo": "jpeg", "txt": "jpeg", "jpg": "pkl", "png": "str"}
    return write_mds(tmp_path_factory.mktemp("mds") / "data", samples, columns=encodings)


def test_the_encoding_of_a_column_chooses_its_decoder(columns: Path) -> None:
    """jpeg is a picture whatever the column is called, a pickle stays bytes, text stays text."""
    with stoker.Loader(stoker.open(columns), 4, shuffle="none", output="numpy") as loader:
        batch = next(iter(loader))
    assert batch["photo"].shape == batch["txt"].shape == (4, 32, 40, 3) and batch["photo"].dtype == np.uint8
    assert batch["jpg"] == [pickle.dumps(i) for i in range(4)]
    assert batch["png"] == [f"text {i}" for i in range(4)]


def test_names_count_where_the_codec_says_nothing() -> None:
    """Numbers and bare bytes: as before."""
    assert default_for("jpg", "mds:bytes") == default_for("jpg", "") == Image()
    assert default_for("photo", "mds:jpeg") == default_for("cls", "mds:png") == Image()
    assert default_for("jpg", "mds:pkl") == default_for("")


def test_checks_and_conversions_go_by_the_encoding_too(columns: Path, tmp_path: Path) -> None:
    """A deep verify decodes the picture called txt as one, and has no complaint about the pickle called jpg."""
    assert [one.code for one in verify(columns, deep=True).findings] == []
    assert {one.name: one.kind for one in inspect(columns).fields}["photo"] == "mds:jpeg"
    convert(columns, tmp_path / "out", format="arrays", fields=["photo"], decode=["photo"])
    assert stoker.open(tmp_path / "out")[0]["photo"].shape == (32, 40, 3)


def test_names_with_blanks_and_semicolons_are_found(tmp_path: Path) -> None:
    """A column's whole name comes first, then what stands between semicolons, with and without its blanks."""
    values = {" padded ": 1, "a;b": 2, "a": 3, "two words": 4}
    (tmp_path / "table").mkdir()
    write_table(tmp_path / "table/0.parquet", {f"{i}": {k: np.int64(v) for k, v in values.items()} for i in range(4)})
    write_mds(tmp_path / "mds", [values] * 4)
    for folder in ("table", "mds"):
        fields = dict.fromkeys((*values, "c; padded ;a", "none;two words"), int)
        with stoker.Loader(stoker.open(tmp_path / folder), 2, fields=fields, output="numpy") as loader:
            batch = next(iter(loader))
        assert {name: batch[name].tolist() for name in values} == {name: [v, v] for name, v in values.items()}
        assert batch["c; padded ;a"].tolist() == [1, 1] and batch["none;two words"].tolist() == [4, 4]


def test_blanks_around_alternatives_do_not_count(tmp_path: Path) -> None:
    """ "png; jpg" is "png;jpg", in a dataset that has only the latter."""
    dataset = stoker.open(write_shards(tmp_path / "data", 8, shards=1))
    with stoker.Loader(dataset, 4, fields={"png; jpg": Image()}, output="numpy") as loader:
        assert next(iter(loader))["png; jpg"].shape == (4, 32, 40, 3)


def test_an_empty_cell_is_a_field_that_the_row_lacks(tmp_path: Path) -> None:
    """The error names the fields that the row has, and not the one that it has not."""
    (tmp_path / "data").mkdir()
    rows = {f"{i}": {"v": np.int64(i), **({"w": np.int64(i)} if i != 2 else {})} for i in range(4)}
    write_table(tmp_path / "data/0.parquet", rows)
    with (
        stoker.Loader(stoker.open(tmp_path / "data"), 4, fields={"v": int, "w": int}, shuffle="none") as loader,
        pytest.raises(MissingFieldError, match=r"the sample has no field 'w', but v(,|\n|$)") as caught,
    ):
        next(iter(loader))
    assert "v, w" not in caught.value.message


def test_shards_of_the_working_folder_open_by_their_bare_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One name, a pattern, names in folders below, and names that have nothing in common are refused."""
    write_shards(tmp_path, 9, shards=3)
    (tmp_path / "below").mkdir()
    (tmp_path / "shard_00002.tar").rename(tmp_path / "below/two.tar")
    monkeypatch.chdir(tmp_path)
    assert len(stoker.open("shard_00000.tar")) == 3
    assert len(stoker.open("shard_{00000..00001}.tar")) == 6
    assert len(stoker.open(["shard_00001.tar", "below/two.tar"])) == 6
    assert [one.code for one in verify("shard_00000.tar").findings] == []
    with pytest.raises(stoker.UsageError, match="no folder in common"):
        stoker.open(["shard_00001.tar", str(tmp_path / "below/two.tar")])
