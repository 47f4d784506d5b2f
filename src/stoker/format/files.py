"""Raw files: from a listing of paths to samples, and from paths to labels. Pure: the listing comes from outside.

Every image file (or every file that a manifest names) is a sample of its own; other files of the same stem in the same
folder join it. One folder is one shard. A sample's key is its path without the extension, unless two samples of the
folder would share it: then both keep theirs. A file that nobody needs is passed over and counted, never silently.

What is stored wins: a metadata column is empty for a sample that has a file of that field, and a `.cls` beside an image
is its class, whatever the folder is called.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stoker.errors import ShardError, UsageError
from stoker.format.base import ColumnValue, FieldPlace, Finding, Findings, SampleEntry
from stoker.format.limits import FIELD_NAME_BYTES_MAX, NAME_BYTES_MAX
from stoker.format.names import is_confined, is_hidden, is_image, printable, split_file

LABEL_RULES = "parent, prefix:_, regex:…, none"


class Listed(Protocol):
    """What a listing tells about one file."""

    @property
    def key(self) -> str: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One row of a manifest, beside its path."""

    number: int
    """Counted from 1, as a reader of the manifest counts its records."""
    columns: Mapping[str, ColumnValue]


@dataclass(slots=True)
class _Folder:
    samples: list[Listed] = field(default_factory=list)
    others: dict[str, list[Listed]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileDataset:
    """The samples of a listing, folder by folder."""

    classes: tuple[str, ...] | None
    """The sorted labels; `cls` counts in them. None when no sample has a label."""
    findings: tuple[Finding, ...]
    columns: Mapping[str, type]
    """Metadata columns and their types."""
    folders: tuple[str, ...]
    _by_folder: Mapping[str, _Folder]
    _columns_of: Callable[[str], Mapping[str, ColumnValue]]

    def samples(self, folder: str) -> Iterator[SampleEntry]:
        """The samples of one folder, in the order of their paths' bytes."""
        content = self._by_folder[folder]
        ordered = sorted(content.samples, key=lambda item: _bytes(item.key))
        stems = [split_file(item.key)[0] for item in ordered]
        twice = {stem for stem, count in Counter(stems).items() if count > 1}
        for item, stem in zip(ordered, stems, strict=True):
            fields: dict[str, FieldPlace] = {}
            for part in (item, *content.others.get(stem, ())):
                name = split_file(part.key)[1]
                fields.setdefault(name, FieldPlace(name, 0, part.size, object=part.key))
            key = item.key if stem in twice else stem
            columns = self._columns_of(item.key)
            if not fields.keys().isdisjoint(columns):
                columns = {name: None if name in fields else value for name, value in columns.items()}
            yield SampleEntry(key, tuple(fields.values()), columns)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _parent(path: str) -> str | None:
    folder = path.rpartition("/")[0]
    return folder.rpartition("/")[2] or None


def _prefix(path: str, separator: str) -> str | None:
    before, found, _ = path.rpartition("/")[2].partition(separator)
    return before if found and before else None


def label_rule(rule: str) -> Callable[[str], str | None]:
    """From a path to its label (None = it has none). UsageError for a rule that does not exist."""
    kind, _, argument = rule.partition(":")
    if rule == "parent":
        return _parent
    if rule == "none":
        return lambda path: None
    if kind == "prefix" and argument:
        return lambda path: _prefix(path, argument)
    if kind == "regex" and argument:
        try:
            pattern = re.compile(argument)
        except re.error as error:
            raise UsageError(f"label rule {rule!r}: not a regular expression: {error}") from error
        if pattern.groups < 1:
            raise UsageError(f"label rule {rule!r} has no group", "put the label in parentheses: regex:^(\\w+)-")
        return lambda path: match[1] if (match := pattern.search(path)) else None
    raise UsageError(f"unknown label rule {rule!r}", f"known are {LABEL_RULES}")


def _default_rule(paths: Iterable[str]) -> Callable[[str], str | None]:
    """`parent`; at the root itself `prefix:_` if every name has one, else `none`."""
    prefixed = all(_prefix(path, "_") for path in paths if "/" not in path)
    return lambda path: _parent(path) if "/" in path else _prefix(path, "_") if prefixed else None


def gather(
    listing: Iterable[Listed], *, label: str | None = None, manifest: Mapping[str, ManifestRow] | None = None
) -> FileDataset:
    """Samples of a listing. With a *manifest* (path → row) its paths are the samples and its columns their metadata."""
    findings = Findings()
    folders: dict[str, _Folder] = {}
    paths: list[str] = []
    for item in listing:
        if not _usable(item, findings):
            continue
        stem, name = split_file(item.key)
        folder = folders.setdefault(item.key.rpartition("/")[0], _Folder())
        if item.key in manifest if manifest is not None else is_image(name):
            folder.samples.append(item)
            paths.append(item.key)
        elif name:
            folder.others.setdefault(stem, []).append(item)
        else:
            findings.add("no-extension", "notice", item.key, "passed over: no extension")
    _count_strangers(folders, findings, listed=manifest is not None)
    if manifest is not None:
        _check_manifest(manifest, set(paths))
    columns_of, columns, classes = _metadata(paths, _classed(folders), label, manifest, findings)
    used = tuple(sorted((name for name, folder in folders.items() if folder.samples), key=_bytes))
    return FileDataset(classes, findings.all(), columns, used, folders, columns_of)


def _usable(item: Listed, findings: Findings) -> bool:
    if is_hidden(item.key):
        findings.add("hidden-file", "notice", item.key, "passed over: a hidden file")
    elif item.size == 0:
        findings.add("empty-file", "notice", item.key, "passed over: 0 bytes")
    elif len(_bytes(item.key)) > NAME_BYTES_MAX or len(split_file(item.key)[1].encode()) > FIELD_NAME_BYTES_MAX:
        findings.add("long-name", "warning", item.key[:200], f"passed over: a name of {len(item.key)} characters")
    else:
        return True
    return False


def _classed(folders: Mapping[str, _Folder]) -> frozenset[str]:
    """The samples that have a class of their own, in a file beside them."""
    found = set()
    for folder in folders.values():
        stems = {stem for stem, items in folder.others.items() if any(split_file(one.key)[1] == "cls" for one in items)}
        if stems:
            found |= {item.key for item in folder.samples if split_file(item.key)[0] in stems}
    return frozenset(found)


def _count_strangers(folders: Mapping[str, _Folder], findings: Findings, *, listed: bool) -> None:
    """Files that belong to no sample, and files of one stem that would be the same field. *listed*: by a manifest."""
    for folder in folders.values():
        stems = {split_file(item.key)[0] for item in folder.samples}
        for stem, items in folder.others.items():
            if stem not in stems:
                for item in items:
                    if listed:
                        message = "passed over: neither in the manifest nor beside a file that is"
                        findings.add("not-in-manifest", "notice", item.key, message)
                    else:
                        findings.add("not-an-image", "notice", item.key, "passed over: neither an image nor beside one")
            elif len({split_file(item.key)[1] for item in items}) < len(items):
                findings.add("duplicate-field", "warning", items[-1].key, "its field comes twice: the first one counts")


def _check_manifest(manifest: Mapping[str, ManifestRow], found: set[str]) -> None:
    for path, row in manifest.items():
        if path not in found:
            reason = "the dataset has no such file, or an empty or hidden one"
            if not is_confined(path):
                reason = "the path leaves the dataset"
            raise ShardError(f"manifest row {row.number}: {printable(path)!r}: {reason}")


Columns = Callable[[str], Mapping[str, ColumnValue]]


def _metadata(
    paths: list[str],
    classed: frozenset[str],
    label: str | None,
    manifest: Mapping[str, ManifestRow] | None,
    findings: Findings,
) -> tuple[Columns, dict[str, type], tuple[str, ...] | None]:
    """Columns of each path, their types, and the classes. A rule gives no label to those that are *classed* already."""
    rows = manifest or {}
    names = tuple(dict.fromkeys(name for row in rows.values() for name in row.columns))
    if label is None and "label" in names:
        labels = {path: None if (value := rows[path].columns["label"]) == "" else value for path in paths}
    else:
        rule = label_rule(label) if label is not None else _default_rule(paths)
        labels = {path: None if path in classed else rule(path) for path in paths}
        if label not in (None, "none"):
            for path in (path for path in paths if labels[path] is None and path not in classed):
                findings.add("no-label", "warning", path, f"label rule {label!r} finds no label")
    types = {name: _type_of(name, rows) for name in names}
    values = {value for path, value in labels.items() if value is not None and path not in classed}
    if classed and (values or "cls" in names or label not in (None, "none")):
        findings.add(
            "own-class", "warning", min(classed, key=_bytes),
            f"the class of {len(classed)} of {len(paths)} samples is in a .cls file, not by label rule or manifest: "
            "the numbers may not mean the same",
        )  # fmt: skip
    if not values:
        return lambda path: rows[path].columns if path in rows else {}, types, None
    numeric = all(isinstance(value, int) for value in values)
    ordered = sorted(values) if numeric else sorted(values, key=lambda value: _bytes(str(value)))
    number = {value: at for at, value in enumerate(ordered)}
    given = "cls" in names

    def columns_of(path: str) -> Mapping[str, ColumnValue]:
        columns = dict(rows[path].columns) if path in rows else {}
        value = labels[path]
        columns["label"] = None if value is None else str(value)
        if not given:
            columns["cls"] = None if value is None else number.get(value)
        return columns

    return columns_of, types | {"label": str} | ({} if given else {"cls": int}), tuple(str(value) for value in ordered)


def _type_of(name: str, rows: Mapping[str, ManifestRow]) -> type:
    kinds = {type(row.columns.get(name)) for row in rows.values()} - {type(None)}
    if kinds == {int, float}:
        return float
    if len(kinds) > 1:
        raise ShardError(f"manifest column {name!r} mixes {', '.join(sorted(kind.__name__ for kind in kinds))}")
    return kinds.pop() if kinds else str
