"""One suite over every format: whatever made the dataset, order, resume, ranks and bad samples are the same."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.errors import MissingFieldError
from support_dataset import jpeg, write_shards
from support_rows import arrays_bytes, npy, write_hdf5, write_table
from support_typed import tfrecord, write_mds

SAMPLES, SHARDS = 48, 3
Values = dict[str, Any]


def vector(number: int) -> np.ndarray:
    """What sample *number* holds beside its number."""
    return np.arange(number, number + 3, dtype=np.float32)


def split(last: int = SAMPLES) -> list[dict[str, Values]]:
    """The samples of each shard by key."""
    made = [(f"{i:08d}", {"x": vector(i), "n": i}) for i in range(last)]
    return [dict(made[last * s // SHARDS : last * (s + 1) // SHARDS]) for s in range(SHARDS)]


def webdataset(folder: Path) -> dict[str, object]:
    """Tars with .npy and .cls."""
    write_shards(folder, SAMPLES, shards=SHARDS, member=lambda i: {"npy": npy(vector(i)), "cls": str(i).encode()})
    return {"npy": stoker.npy, "cls": int}


def compressed(folder: Path) -> dict[str, object]:
    """The same, compressed as a whole."""
    fields = webdataset(folder)
    for path in list(folder.iterdir()):
        (folder / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()
    return fields


def files(folder: Path) -> dict[str, object]:
    """Raw files in three folders."""
    for shard, samples in enumerate(split()):
        for key, values in samples.items():
            (folder / str(shard)).mkdir(parents=True, exist_ok=True)
            (folder / str(shard) / f"{key}.jpg").write_bytes(jpeg(values["n"]))
            (folder / str(shard) / f"{key}.npy").write_bytes(npy(values["x"]))
            (folder / str(shard) / f"{key}.cls").write_text(str(values["n"]))
    return {"npy": stoker.npy, "cls": int}


def mds(folder: Path) -> dict[str, object]:
    """MDS, zstd, with hashes."""
    every = [values for shard in split() for values in shard.values()]
    write_mds(folder, every, shards=SHARDS, compression="zstd", hashes=["sha1"])
    return {"x": stoker.npy, "n": int}


def tfrecords(folder: Path) -> dict[str, object]:
    """Three files of Examples."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, samples in enumerate(split()):
        (folder / f"part-{number}.tfrecord").write_bytes(tfrecord(samples))
    return {"x": stoker.npy, "n": int}


def hdf5(folder: Path) -> dict[str, object]:
    """Three files of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, samples in enumerate(split()):
        write_hdf5(folder / f"part{number}.h5", samples)
    return {"x": stoker.npy, "n": int}


def table(folder: Path) -> dict[str, object]:
    """Three Parquet files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, samples in enumerate(split()):
        write_table(folder / f"part{number}.parquet", samples)
    return {"x": stoker.npy, "n": int}


def arrays(folder: Path) -> dict[str, object]:
    """Three shards of bare arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, samples in enumerate(split()):
        whole = {k: {"x": v["x"], "n": np.int64(v["n"])} for k, v in samples.items()}
        (folder / f"part{number}.{ARRAYS_SUFFIX}").write_bytes(arrays_bytes(whole))
    return {"x": stoker.npy, "n": int}


ARRAYS_SUFFIX = "arrays.bin"
MAKERS: list[Callable[[Path], dict[str, object]]] = [webdataset, compressed, files, mds, tfrecords, hdf5, table, arrays]
Made = tuple[stoker.Dataset, dict[str, object]]


@pytest.fixture(scope="module", params=MAKERS, ids=lambda maker: maker.__name__)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A dataset of one format, and how its vector and its number are read."""
    folder = tmp_path_factory.mktemp(request.param.__name__) / "data"
    folder.mkdir()
    fields = request.param(folder)
    return stoker.open(folder), fields


def loader(made: Made, size: int = 4, **options: Any) -> stoker.Loader:
    """A seeded, shuffled loader."""
    return stoker.Loader(made[0], size, fields=made[1], seed=5, output="numpy", **options)


def drawn(batches: Any) -> list[int]:
    """The numbers of the samples, after every value was compared with what that sample holds."""
    seen = []
    for batch in batches:
        x, n = (next(batch[name] for name in names if name in batch) for names in (("npy", "x"), ("cls", "n")))
        for row, number in enumerate(np.asarray(n).tolist()):
            np.testing.assert_array_equal(np.asarray(x[row]), vector(number))
            seen.append(number)
    return seen


def test_every_sample_once_with_its_own_values(made: Made) -> None:
    """A shuffled epoch visits all; values belong together."""
    with loader(made) as whole:
        seen = drawn(whole)
    assert sorted(seen) == list(range(SAMPLES))
    assert seen != sorted(seen)


def test_fixed_shapes_lie_in_one_array(made: Made) -> None:
    """float32 [4, 3] and int64 [4]."""
    with loader(made) as whole:
        batch = next(iter(whole))
    x, n = (next(batch[name] for name in names if name in batch) for names in (("npy", "x"), ("cls", "n")))
    assert (x.shape, x.dtype) == ((4, 3), np.float32)
    assert (n.shape, n.dtype) == ((4,), np.int64)


def test_resume_on_two_ranks(made: Made) -> None:
    """Half an epoch alone, the rest on two ranks: the uninterrupted sequence."""
    with loader(made, 1) as reference:
        whole = drawn(reference)
    with loader(made) as first:
        iterator = iter(first)
        seen = [i for _ in range(6) for i in drawn([next(iterator)])]
        state = first.state_dict()
    ranks = [loader(made, 4, rank=rank, world_size=2) for rank in range(2)]
    for one in ranks:
        one.load_state_dict(state)
    for pair in zip(*ranks, strict=True):
        seen += drawn(pair)
    for one in ranks:
        one.close()
    assert seen == whole


def test_a_missing_field_is_a_bad_sample(made: Made) -> None:
    """Asked for by a map, so that the dataset cannot know before."""
    mapped = made[0].map(lambda s: {k: v for k, v in s.items() if s["__index__"] != 7 or k.startswith("__")})
    with (
        stoker.Loader(mapped, 4, fields=made[1], shuffle="none", output="numpy") as strict,
        pytest.raises(MissingFieldError, match="sample 7"),
    ):
        drawn(strict)
    with stoker.Loader(
        mapped, 4, fields=made[1], shuffle="none", output="numpy", on_bad="skip", on_bad_max=0.1
    ) as skipping:
        assert len(drawn(skipping)) == SAMPLES - 1


def test_a_dataset_gives_the_same_by_number(made: Made) -> None:
    """`dataset[i]`, from the end too, and after pickling in the feeder."""
    dataset = made[0]
    assert len(dataset) == SAMPLES
    assert dataset[-1]["__index__"] == SAMPLES - 1
    with pytest.raises(IndexError):
        dataset[SAMPLES]
