"""Token documents in every format that tests read windows from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from stoker.format.mds import MDSWriter
from support_rows import npy, write_hdf5, write_table, write_tar

COUNTS = [5, 300, 1, 0, 70_000, 64, 17, 129]
Writer = Callable[[Path, Sequence[np.ndarray]], dict[str, object]]
"""Writes two shards of documents; gives what `tokens` must be told."""


def halves(found: Sequence[np.ndarray]) -> list[tuple[int, list[tuple[str, np.ndarray]]]]:
    """Two shards: (number, [(key, document)])."""
    named = [(f"doc{number}", document) for number, document in enumerate(found)]
    return [(0, named[:3]), (1, named[3:])]


def as_table(folder: Path, found: Sequence[np.ndarray]) -> dict[str, object]:
    for number, part in halves(found):
        write_table(folder / f"{number}.parquet", {key: {"tokens": document} for key, document in part})
    return {}


def as_table_of_bytes(folder: Path, found: Sequence[np.ndarray]) -> dict[str, object]:
    for number, part in halves(found):
        write_table(folder / f"{number}.parquet", {key: {"tokens": document.tobytes()} for key, document in part})
    return {"dtype": found[0].dtype}


def as_hdf5(folder: Path, found: Sequence[np.ndarray]) -> dict[str, object]:
    for number, part in halves(found):
        rows = {key: {"tokens": document} for key, document in part}
        write_hdf5(folder / f"{number}.h5", rows, ragged=frozenset({"tokens"}))
    return {}


def as_npy(folder: Path, found: Sequence[np.ndarray]) -> dict[str, object]:
    for number, part in halves(found):
        write_tar(folder / f"{number}.tar", {key: {"npy": npy(document)} for key, document in part})
    return {"column": "npy"}


def as_bytes(folder: Path, found: Sequence[np.ndarray]) -> dict[str, object]:
    for number, part in halves(found):
        write_tar(folder / f"{number}.tar", {key: {"tokens": document.tobytes()} for key, document in part})
    return {"dtype": found[0].dtype.name}


def as_mds(encoding: str) -> Writer:
    def write(folder: Path, found: Sequence[np.ndarray]) -> dict[str, object]:
        infos = []
        for number, part in halves(found):
            name = f"shard.{number:05d}.mds"
            with (folder / name).open("wb") as out:
                writer = MDSWriter(out, columns={"tokens": encoding})
                for key, document in part:
                    if len(document):  # MDS has no empty arrays
                        writer.add(key, {"tokens": document.tobytes() if encoding == "bytes" else document})
                size = writer.close()
            about = {
                "column_names": ["__key__", "tokens"], "column_encodings": ["str", encoding],
                "column_sizes": [None, None], "compression": None, "format": "mds", "hashes": [], "size_limit": None,
                "raw_data": {"basename": name, "bytes": size, "hashes": {}}, "zip_data": None, "version": 2,
                "samples": sum(len(document) > 0 for _, document in part),
            }  # fmt: skip
            infos.append(about)
        (folder / "index.json").write_text(json.dumps({"version": 2, "shards": infos}))
        return {"dtype": found[0].dtype} if encoding == "bytes" else {}

    return write


WRITERS: dict[str, Writer] = {
    "table": as_table, "table of bytes": as_table_of_bytes, "hdf5": as_hdf5, "npy": as_npy, "bytes": as_bytes,
    "mds ndarray": as_mds("ndarray"), "mds ndarray:int32": as_mds("ndarray:int32"), "mds bytes": as_mds("bytes"),
}  # fmt: skip
