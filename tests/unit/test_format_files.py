"""Raw files: which are samples, what joins them, where labels come from."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from stoker.errors import ShardError, UsageError
from stoker.format.files import FileDataset, ManifestRow, gather, label_rule
from stoker.format.names import is_confined, is_hidden, split_file, split_member


@dataclass(frozen=True)
class File:
    """One line of a listing."""

    key: str
    size: int = 10


def dataset(*keys: str, label: str | None = None, manifest: dict[str, ManifestRow] | None = None) -> FileDataset:
    return gather([File(key) for key in keys], label=label, manifest=manifest)


def found(files: FileDataset) -> dict[str, dict[str, str]]:
    """Key → field → object."""
    return {
        one.key: {place.name: place.object for place in one.fields}
        for folder in files.folders
        for one in files.samples(folder)
    }


def labels(files: FileDataset) -> dict[str, object]:
    return {one.key: one.columns.get("label") for folder in files.folders for one in files.samples(folder)}


def codes(files: FileDataset) -> list[tuple[str, str]]:
    return [(one.code, one.where) for one in files.findings]


@pytest.mark.parametrize(
    ("name", "member", "file"),
    [
        ("a/b.jpg", ("a/b", "jpg"), ("a/b", "jpg")),
        ("v1.0/b.SEG.png", ("v1.0/b", "seg.png"), ("v1.0/b.SEG", "png")),
        ("b.JPEG", ("b", "jpeg"), ("b", "jpg")),
        ("b", ("b", ""), ("b", "")),
        ("b.", ("b", ""), ("b", "")),
        (".jpg", ("", "jpg"), (".jpg", "")),
    ],
)
def test_the_two_rules_of_names(name: str, member: tuple[str, str], file: tuple[str, str]) -> None:
    """In shards the key ends at the first dot of the base name, raw files at the last."""
    assert split_member(name) == member
    assert split_file(name)[1] == file[1]
    assert split_file(name)[0] in (file[0], name)


def test_every_image_is_a_sample_and_others_join_it() -> None:
    """Files of an image's stem in its folder are fields of its sample; the same stem elsewhere is not."""
    files = dataset("a/1.jpg", "a/1.cls", "a/1.TXT", "a/2.PNG", "b/1.json", "b/3.webp")
    assert found(files) == {
        "a/1": {"jpg": "a/1.jpg", "cls": "a/1.cls", "txt": "a/1.TXT"},
        "a/2": {"png": "a/2.PNG"},
        "b/3": {"webp": "b/3.webp"},
    }
    assert files.folders == ("a", "b")
    assert codes(files) == [("own-class", "a/1.jpg"), ("not-an-image", "b/1.json")]


def test_two_images_of_one_stem_keep_their_extensions_in_the_key() -> None:
    """Keys stay unique, both samples get what joins their stem."""
    assert found(dataset("x.jpg", "x.png", "x.cls", "y.jpg")) == {
        "x.jpg": {"jpg": "x.jpg", "cls": "x.cls"},
        "x.png": {"png": "x.png", "cls": "x.cls"},
        "y": {"jpg": "y.jpg"},
    }


def test_what_is_nobodys_data_is_counted() -> None:
    """Dot files, what macOS and Windows leave, stoker's own folder, empty files and strangers are listed and why."""
    files = gather(
        [File(".git/a.jpg"), File("._a.jpg"), File("__MACOSX/a.jpg"), File("Thumbs.db"), File("_stoker/a.jpg"),
         File("empty.jpg", 0), File("README"), File("notes.txt"), File("a.jpg")]
    )  # fmt: skip
    assert list(found(files)) == ["a"]
    assert codes(files) == [
        ("hidden-file", ".git/a.jpg"),
        ("hidden-file", "._a.jpg"),
        ("hidden-file", "__MACOSX/a.jpg"),
        ("hidden-file", "Thumbs.db"),
        ("hidden-file", "_stoker/a.jpg"),
        ("empty-file", "empty.jpg"),
        ("no-extension", "README"),
        ("not-an-image", "notes.txt"),
    ]


def test_the_same_field_twice_is_a_warning() -> None:
    """Of two files that would be one field the first counts."""
    files = dataset("a.jpg", "a.TXT", "a.txt")
    assert found(files) == {"a": {"jpg": "a.jpg", "txt": "a.TXT"}}
    assert codes(files) == [("duplicate-field", "a.txt")]


def test_order_is_that_of_bytes() -> None:
    """Folders and files come in the order of their names' bytes, whatever the listing's order was."""
    keys = ["b/ä.jpg", "b/a.jpg", "b/Z.jpg", "a/b/c.jpg", "a/x.jpg", "é/1.jpg"]
    assert list(found(dataset(*keys))) == ["a/x", "a/b/c", "b/Z", "b/a", "b/ä", "é/1"]
    assert list(found(dataset(*reversed(keys)))) == list(found(dataset(*keys)))


@pytest.mark.parametrize(
    ("rule", "path", "label"),
    [
        ("parent", "a/cat/1.jpg", "cat"),
        ("parent", "1.jpg", None),
        ("prefix:_", "x/n01_dog.jpg", "n01"),
        ("prefix:_", "x/_dog.jpg", None),
        ("prefix:_", "a_b/dog.jpg", None),
        ("prefix:--", "a--b--c.jpg", "a"),
        (r"regex:/(\d+)-", "set/12-a.jpg", "12"),
        (r"regex:(x)?dog", "dog.jpg", None),
        ("regex:(nothing)", "dog.jpg", None),
        ("none", "a/b.jpg", None),
    ],
)
def test_label_rules(rule: str, path: str, label: str | None) -> None:
    """Each rule finds the label that it describes, or none."""
    assert label_rule(rule)(path) == label


@pytest.mark.parametrize("rule", ["", "folder", "prefix:", "regex:", "regex:(", "regex:no-group", "parent:x"])
def test_refuses_unknown_label_rules(rule: str) -> None:
    """A rule that does not exist, or cannot work, is wrong usage."""
    with pytest.raises(UsageError, match="label rule"):
        label_rule(rule)


def test_default_labels() -> None:
    """By default folders give labels; at the root a prefix does, if every name has one; else there are none."""
    assert labels(dataset("cat/1.jpg", "x/dog/2.jpg")) == {"cat/1": "cat", "x/dog/2": "dog"}
    assert labels(dataset("cat_1.jpg", "dog_2.jpg")) == {"cat_1": "cat", "dog_2": "dog"}
    assert labels(dataset("cat_1.jpg", "dog.jpg")) == {"cat_1": None, "dog": None}
    assert labels(dataset("cat_1.jpg", "bird/2.jpg")) == {"cat_1": "cat", "bird/2": "bird"}
    assert dataset("cat.jpg").classes is None
    assert dataset("cat.jpg").columns == {}


def test_cls_counts_in_the_sorted_labels() -> None:
    """`cls` is the label's place in the sorted list, None where there is no label; missing ones are warned about."""
    files = dataset("dog/1.jpg", "cat/2.jpg", "3.jpg", label="parent")
    assert files.classes == ("cat", "dog")
    assert files.columns == {"label": str, "cls": int}
    assert {one.key: one.columns["cls"] for folder in files.folders for one in files.samples(folder)} == {
        "3": None,
        "cat/2": 0,
        "dog/1": 1,
    }
    assert codes(files) == [("no-label", "3.jpg")]


def rows(**columns: list[object]) -> dict[str, ManifestRow]:
    names = [name for name in columns if name != "path"]
    return {
        str(path): ManifestRow(at + 1, {name: columns[name][at] for name in names})
        for at, path in enumerate(columns["path"])
    }


def test_a_manifest_chooses_the_samples() -> None:
    """With a manifest its paths are the samples, images or not, and its columns their metadata."""
    files = dataset(
        "a.jpg", "b.jpg", "c.wav", "c.txt",
        manifest=rows(path=["c.wav", "a.jpg"], label=["tone", "cat"], score=[1, 0.5]),
    )  # fmt: skip
    assert found(files) == {"a": {"jpg": "a.jpg"}, "c": {"wav": "c.wav", "txt": "c.txt"}}
    assert files.columns == {"label": str, "score": float, "cls": int}
    assert files.classes == ("cat", "tone")
    assert labels(files) == {"a": "cat", "c": "tone"}


def test_numeric_labels_are_sorted_as_numbers() -> None:
    """Labels 9 and 10 stand in that order, and a `cls` column of the manifest's own is left alone."""
    files = dataset("a.jpg", "b.jpg", manifest=rows(path=["a.jpg", "b.jpg"], label=[10, 9]))
    assert files.classes == ("9", "10")
    none = dataset("a.jpg", "b.jpg", manifest=rows(path=["a.jpg", "b.jpg"], label=["x", ""]))
    assert none.classes == ("x",)
    own = dataset("a.jpg", "b.jpg", manifest=rows(path=["a.jpg", "b.jpg"], label=["x", "y"], cls=[7, 3]))
    assert [one.columns["cls"] for one in own.samples("")] == [7, 3]


@pytest.mark.parametrize("path", ["missing.jpg", "../out.jpg", "/etc/passwd"])
def test_a_manifest_row_without_file_is_an_error(path: str) -> None:
    """The error names the row and the path."""
    with pytest.raises(ShardError, match=r"row 2: .*(no such file|leaves the dataset)"):
        dataset("a.jpg", manifest=rows(path=["a.jpg", path]))


def test_a_manifest_column_has_one_type() -> None:
    """Numbers mixed with texts in one column are an error that names it."""
    with pytest.raises(ShardError, match=r"'x' mixes int, str"):
        dataset("a.jpg", "b.jpg", manifest=rows(path=["a.jpg", "b.jpg"], x=[1, "one"]))


@pytest.mark.parametrize(
    ("key", "hidden"),
    [
        ("a.jpg", False), ("..jpg", True), ("./a.jpg", False), ("a/.b/c.jpg", True), ("x/thumbs.DB", True),
        ("_stoker/index.arrow", True), ("a/_stoker/x", False), ("__MACOSX/a", True),
        ("..", False), ("a/.", False), ("...", True), ("..a", True), ("a\n/.b", True), ("a.b", False),
        ("desktop.ini", True),
    ],
)  # fmt: skip
def test_hidden(key: str, hidden: bool) -> None:
    """What counts as nobody's data."""
    assert is_hidden(key) is hidden


@pytest.mark.parametrize(
    ("path", "confined"), [("a/b", True), ("../a", False), ("/a", False), ("a/../b", False), ("a..b", True)]
)
def test_confined(path: str, confined: bool) -> None:
    """Only relative paths without ".." stay inside."""
    assert is_confined(path) is confined
