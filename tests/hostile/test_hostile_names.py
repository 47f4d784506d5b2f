"""Folders of files with hostile names: every image is found under its own name, nothing escapes, nothing hangs."""

from __future__ import annotations

import hashlib
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from stoker.format.files import gather
from stoker.format.names import printable
from stoker.index import open_index
from stoker.store import Local
from support_format import expected

PASSED_OVER = {  # name in the key → why
    "names/cls_0/.hidden.jpg": "hidden-file",
    "names/cls_1/..double.jpg": "hidden-file",
    "names/cls_2/._appledouble.jpg": "hidden-file",
    "names/cls_3/.DS_Store": "hidden-file",
    "names/cls_0/nul": "no-extension",
    "names/cls_1/x.jpg.": "no-extension",
    "names/cls_2/no_extension": "no-extension",
    "names/cls_0/index.json": "not-an-image",
    "names/cls_2/trailing-space.jpg ": "not-an-image",
}


@pytest.fixture
def unpacked(shared_data: Path, tmp_path: Path) -> Path:
    """Both trees, unpacked by the system's tar."""
    for name in ("names_a.tar", "links.tar"):
        archive = shared_data / "hostile_names" / name
        subprocess.run(["tar", "xf", str(archive), "-C", str(tmp_path)], check=True, timeout=60)
    return tmp_path


def test_every_name_of_the_key(shared_data: Path, unpacked: Path, tmp_path: Path) -> None:
    """Each image is a sample with its label and its bytes; what is passed over is listed with the reason."""
    key = {
        entry["name"]: entry for entry in expected(shared_data, "hostile_names")["hostile_names/names_a.tar"]["expect"]
    }
    store = Local(unpacked)
    index = open_index(Local(unpacked / "names"), place=tmp_path / "place", label="parent")
    found = {}
    for sample in range(len(index)):
        place = index.place(sample, "image")
        assert place is not None
        data = store.get(f"names/{place.object.key}")
        found[f"names/{place.object.key}"] = (hashlib.sha256(data).hexdigest(), index.value(sample, "label"))
    wanted = {name: (entry["sha256"], entry["label"]) for name, entry in key.items() if name not in PASSED_OVER}
    assert found == wanted
    assert index.classes == ("cls_0", "cls_1", "cls_2", "cls_3")
    passed = {f"names/{one['where']}": one["code"] for one in index.manifest.extra["findings"]}
    assert passed == PASSED_OVER
    assert PASSED_OVER.keys() | found.keys() == key.keys()


def test_links_are_followed_inside_the_root_only(shared_data: Path, unpacked: Path) -> None:
    """Loops, escapes, dangling links and a pipe are no samples and stop nothing."""
    key = expected(shared_data, "hostile_names")["hostile_names/links.tar"]["expect"]
    dataset = gather(Local(unpacked / "links").list())
    found = Counter(
        place.object for folder in dataset.folders for one in dataset.samples(folder) for place in one.fields
    )
    deep = "/".join(f"d{n}" for n in range(40))
    regular = {name.removeprefix("links/").replace("...", deep) for name in key["regular_unique"]}
    linked = {name.removeprefix("links/") for name in (*key["hardlink"], *key["safe_symlink_file"])}
    assert set(found) == regular | linked
    assert set(found.values()) == {1}


def test_a_name_that_is_no_utf_8_can_be_read(tmp_path: Path) -> None:
    """Its key is shown escaped, and its object is still found under its true bytes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    raw = bytes(folder) + b"/caf\xe9_1.jpg"
    Path(raw.decode("utf-8", "surrogateescape")).write_bytes(b"photo")
    index = open_index(Local(folder), place=tmp_path / "place")
    place = index.place(0, "jpg")
    assert place is not None
    assert index.key(0) == "caf\\xe9_1"
    assert Local(folder).get(place.object.key, version=place.object.version) == b"photo"
    assert printable(place.object.key) == "caf\\xe9_1.jpg"


def test_messages_cannot_move_the_cursor() -> None:
    """Escape sequences, newlines and direction marks of a name are shown, not obeyed."""
    assert printable("a\x1b[31mb\nc\u202ed\x01") == "a\\x1b[31mb\\nc\\u202ed\\x01"
    assert printable("café 漢字 🦊") == "café 漢字 🦊"
