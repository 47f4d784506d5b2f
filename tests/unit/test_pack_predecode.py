"""`pack(predecode=…)`: pictures decoded once and for good, so that no loader decodes them again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import stoker
from stoker.decode import CenterCrop
from stoker.errors import SampleError, UsageError
from stoker.pack import pack
from support_decode import encode, photo
from support_pack import make_photos, tree
from support_rows import npy, write_hdf5

SIDE = 16


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 photos in three classes; no captions."""
    folder = make_photos(tmp_path_factory.mktemp("source"))
    for path in folder.rglob("*.txt"):
        path.unlink()
    return folder


@pytest.fixture(scope="module")
def squares(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, packed as squares in three shards."""
    folder = tmp_path_factory.mktemp("squares") / "out"
    pack(photos, folder, predecode=SIDE, shards=3)
    return folder


def square(path: Path) -> np.ndarray:
    """What is stored of a file: the middle square, resized by Pillow's antialiasing filter."""
    with Pillow.open(path) as image:
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        middle = image.convert("RGB").crop((left, top, left + side, top + side))
        return np.asarray(middle.resize((SIDE, SIDE), Pillow.Resampling.BILINEAR))


def test_the_middle_square_of_every_picture_is_stored(photos: Path, squares: Path) -> None:
    """uint8 [side, side, 3] under `image`, the class beside it as int64, the columns as in any pack."""
    dataset = stoker.open(squares)
    assert dataset.index.format == "arrays" and len(dataset) == 24 and dataset.classes is not None
    assert sorted(path.name for path in squares.glob("shard*")) == [f"shard_0000{n}.arrays.bin" for n in range(3)]
    for number in range(24):
        sample = dataset[number]
        expected = square(photos / sample["source"])
        assert sample["image"].dtype == np.uint8 and sample["image"].shape == (SIDE, SIDE, 3)
        assert np.abs(sample["image"].astype(int) - expected).max() <= 1
        assert dataset.classes[sample["cls"]] == sample["label"]
        assert (sample["width"], sample["height"]) == (SIDE, SIDE)


def test_a_loader_copies_bytes_and_decodes_nothing(squares: Path) -> None:
    """By default and by name, the batch is the stored bytes."""
    dataset = stoker.open(squares)
    for fields in (None, {"image": stoker.image.Image(), "cls": int}):
        with stoker.Loader(dataset, 8, fields=fields, shuffle="none", output="numpy") as loader:
            for batch in loader:
                assert (batch["image"].shape, batch["image"].dtype) == ((8, SIDE, SIDE, 3), np.uint8)
                assert (batch["cls"].shape, batch["cls"].dtype) == ((8,), np.int64)
                for row, number in enumerate(batch["__index__"].tolist()):
                    np.testing.assert_array_equal(batch["image"][row], dataset[number]["image"])


def test_crops_go_on_from_the_stored_pixels(squares: Path) -> None:
    """`fields={"image": RandomResizedCrop}` augments them, differently in every epoch, as it does files."""
    dataset = stoker.open(squares)
    crop = stoker.image.RandomResizedCrop(8, flip=True)
    with stoker.Loader(dataset, 24, fields={"image": crop}, seed=3, shuffle="none", output="numpy") as loader:
        first, second = (next(iter(loader))["image"] for _ in range(2))
    assert first.shape == (24, 8, 8, 3) and first.dtype == np.uint8
    assert not np.array_equal(first, second)
    with stoker.Loader(dataset, 24, fields={"image": CenterCrop(SIDE)}, shuffle="none", output="numpy") as loader:
        whole = next(iter(loader))["image"]
    np.testing.assert_array_equal(whole[5], dataset[5]["image"])


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (np.full((6, 9), 7, np.uint8), 7), (np.full((6, 9, 1), 7, np.uint8), 7), (np.full((6, 9, 4), 7, np.uint8), 7),
        (np.full((6, 9, 3), 7 << 8, np.uint16), 7),
    ],
    ids=lambda value: f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else "",
)  # fmt: skip
def test_pixels_of_any_usual_kind_become_rgb(pixels: np.ndarray, expected: int) -> None:
    """Grey is repeated, alpha dropped, of 16 bits the upper 8 are taken."""
    assert np.array_equal(stoker.image.Image().decode(pixels, None, 0), np.full((6, 9, 3), expected, np.uint8))
    assert np.array_equal(CenterCrop(4).decode(pixels, None, 0), np.full((4, 4, 3), expected, np.uint8))


def test_what_is_no_picture_is_a_bad_sample(tmp_path: Path) -> None:
    """Planes and floats under `image`: named by their shape when a crop is asked for, as they are when nothing is."""
    (tmp_path / "data").mkdir()
    planes = {f"{i:03d}": {"image": np.full((3, 6, 6), i, np.float32)} for i in range(4)}
    write_hdf5(tmp_path / "data/a.h5", planes)
    dataset = stoker.open(tmp_path / "data")
    with stoker.Loader(dataset, 4, shuffle="none", output="numpy") as loader:
        assert next(iter(loader))["image"].shape == (4, 3, 6, 6)
    with (
        stoker.Loader(dataset, 4, fields={"image": CenterCrop(4)}, output="numpy") as cropping,
        pytest.raises(SampleError, match=r"expected pixels uint8 \[height, width, 3\], found float32 \(3, 6, 6\)"),
    ):
        next(iter(cropping))


def test_arrays_beside_the_picture_come_along(photos: Path, tmp_path: Path) -> None:
    """`.npy` files as arrays of one shape; a sample of another shape is a bad one."""
    source = tmp_path / "source"
    for number in range(6):
        for path, data in (("jpg", encode(photo(20, 30, number), "JPEG")), ("npy", npy(np.full(3, number, "f4")))):
            (source / "a").mkdir(parents=True, exist_ok=True)
            (source / f"a/{number}.{path}").write_bytes(data)
    pack(source, tmp_path / "out", predecode=8)
    dataset = stoker.open(tmp_path / "out")
    assert {(sample["source"], *sample["npy"].tolist()) for sample in map(dataset.__getitem__, range(6))} == {
        (f"a/{n}.jpg", n, n, n) for n in range(6)
    }
    (source / "a/3.npy").write_bytes(npy(np.zeros(4, "f4")))
    with pytest.raises(SampleError, match=r"a/3.jpg: field 'npy': float32 \(4,\); the pack holds float32 \(3,\)"):
        pack(source, tmp_path / "other", predecode=8, seed=1)
    report = pack(source, tmp_path / "skipped", predecode=8, seed=1, on_bad="skip")
    assert (report.samples, report.skipped) == (5, 1)


def test_a_sample_that_lacks_a_field_is_a_bad_one(photos: Path, tmp_path: Path) -> None:
    """All samples of a shard of arrays have the same fields, whichever comes first."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(6):
        (source / f"{number}.jpg").write_bytes(encode(photo(20, 30, number), "JPEG"))
        if number != 2:
            (source / f"{number}.cls").write_text(str(number))
    for seed in range(4):
        report = pack(source, tmp_path / f"out{seed}", predecode=8, on_bad="skip", seed=seed)
        assert (report.samples, report.skipped) == (5, 1)
        assert "has the fields image; the pack holds image, cls" in report.findings[-1].message
    for number in range(6):
        (source / f"{number}.cls").unlink(missing_ok=True)
        (source / f"{number}.{'cls' if number % 2 else 'id'}").write_text("1")
    with pytest.raises(UsageError, match="no sample has all of cls, id, image"):
        pack(source, tmp_path / "none", predecode=8)
    assert not list((tmp_path / "none").rglob("shard*"))


def test_what_is_no_array_is_refused_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    """Captions: the field is named, and how to leave it out."""
    source = make_photos(tmp_path / "source")
    with pytest.raises(UsageError, match="'txt'") as caught:
        pack(source, tmp_path / "out", predecode=8)
    assert caught.value.hint == "--exclude '*.txt'"
    assert not (tmp_path / "out").exists() or not tree(tmp_path / "out")
    assert pack(source, tmp_path / "out", predecode=8, exclude=["*.txt"]).samples == 24


def test_a_transform_gets_pixels(photos: Path, tmp_path: Path) -> None:
    """And gives numbers and arrays; text makes a bad sample."""

    def mean(sample: dict[str, Any]) -> dict[str, Any]:
        """The mean beside the picture."""
        assert sample["image"].shape == (8, 8, 3)
        return {**sample, "mean": float(sample["image"].mean()), "txt": None}

    pack(photos, tmp_path / "out", predecode=8, transform=mean)
    dataset = stoker.open(tmp_path / "out")
    assert all(dataset[i]["mean"] == dataset[i]["image"].mean() for i in range(24))
    with pytest.raises(SampleError, match="field 'txt'"):
        pack(photos, tmp_path / "text", predecode=8, transform=lambda sample: {**sample, "txt": "a"})


def test_the_same_bytes_whatever_the_workers_and_once(photos: Path, tmp_path: Path) -> None:
    """Any number of workers writes the same; a second run finds it done."""
    for workers in (1, 3):
        pack(photos, tmp_path / str(workers), predecode=8, shards=4, workers=workers)
    assert tree(tmp_path / "1") == tree(tmp_path / "3")
    assert pack(photos, tmp_path / "1", predecode=8, shards=4).shards_made == 0
    with pytest.raises(UsageError, match="predecode: there 8, here 9"):
        pack(photos, tmp_path / "1", predecode=9, shards=4)


@pytest.mark.parametrize(
    "options",
    [
        {"predecode": 8, "format": "webdataset"}, {"format": "arrays"}, {"predecode": 8, "resize_short": 9},
        {"predecode": 8, "transcode": "png"}, {"predecode": 8, "compress": "zstd"}, {"predecode": 5_000},
        {"predecode": 0}, {"format": "mds"},
    ],
    ids=str,
)  # fmt: skip
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], photos: Path, tmp_path: Path) -> None:
    """Before anything is read or written."""
    with pytest.raises(UsageError):
        pack(photos, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_on_the_command_line(photos: Path, tmp_path: Path) -> None:
    """`--predecode 16 --json`, and verify has nothing to say about the result."""
    command = [sys.executable, "-m", "stoker.cli.main"]
    done = subprocess.run(
        [*command, "pack", photos, tmp_path / "out", "--predecode", "16", "--json"], capture_output=True, check=True
    )
    assert json.loads(done.stdout)["samples"] == 24
    assert subprocess.run([*command, "verify", tmp_path / "out", "--deep"], check=False).returncode == 0
