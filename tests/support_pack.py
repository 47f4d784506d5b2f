"""Small sources to pack, and what a pack holds, read by its index."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import support_decode
from stoker.format.codec import expanded
from stoker.index import Index
from stoker.store import Local


def make_photos(folder: Path, *, count: int = 24, classes: int = 3, side: int = 24) -> Path:
    """A folder of small JPEGs in class folders, with a caption beside every third."""
    for number in range(count):
        path = folder / f"class_{number % classes}" / f"photo_{number:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(support_decode.encode(support_decode.photo(side, side + number, number), "JPEG"))
        if number % 3 == 0:
            path.with_suffix(".txt").write_text(f"caption {number}")
    return folder


@dataclass(frozen=True)
class Packed:
    """One sample of a pack."""

    key: str
    shard: str
    fields: dict[str, bytes]
    columns: dict[str, Any]


def packed(folder: Path) -> list[Packed]:
    """Every sample of a local pack, by its index alone."""
    index = Index.load(Local(folder))
    contents: dict[str, bytes] = {}
    found = []
    for number in range(len(index)):
        fields = {}
        for name in index.field_names(number):
            place = index.place(number, name)
            assert place is not None
            if place.object.key not in contents:
                raw = (folder / place.object.key).read_bytes()
                kind = place.object.compression
                contents[place.object.key] = b"".join(expanded([raw], kind)) if kind else raw
            fields[name] = contents[place.object.key][place.start : place.stop]
            assert len(contents[place.object.key]) == place.object.expanded_size
        columns = {name: index.value(number, name) for name in index.columns}
        found.append(Packed(index.key(number), place.object.key, fields, columns))
    return found


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below *folder* by its relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def by_source(samples: list[Packed]) -> dict[str, Packed]:
    """Samples by the path they come from."""
    return {sample.columns["source"]: sample for sample in samples}


def tar_of(folder: Path, **options: Any) -> bytes:
    """The folder as a tar."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **options) as archive:
        for path in walk(folder):
            archive.add(path, path.relative_to(folder), recursive=False)
    return file.getvalue()


def walk(folder: Path) -> Iterator[Path]:
    """All paths below a folder, in order."""
    return iter(sorted(folder.rglob("*")))
