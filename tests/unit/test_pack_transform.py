"""What a user's transform can do wrong: one error of the house that names sample, transform and cause; never more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import SampleError, StokerError, UsageError, reason_of
from stoker.pack import pack
from support_pack import make_photos, packed

SOURCE = """
import sys


def loop(sample):
    nested = []
    nested.append(nested)
    return {**sample, "json": nested}


FAULTS = {
    "zero": lambda sample: 1 / 0,
    "system": lambda sample: open("/nowhere/file"),
    "value": lambda sample: int("x"),
    "stop": lambda sample: next(iter(())),
    "address": lambda sample: (_ for _ in ()).throw(ValueError(repr(object()))),
    "number": lambda sample: 5,
    "text": lambda sample: "text",
    "list": lambda sample: [3],
    "empty": lambda sample: {},
    "names": lambda sample: {1: b"x"},
    "strange": lambda sample: {"jpg": object()},
    "surrogate_key": lambda sample: {**sample, "__key__": 3.5},
    "surrogate_name": lambda sample: {**sample, "\\ud800": b"x"},
    "surrogate_text": lambda sample: {**sample, "txt": "\\ud800"},
    "surrogate_json": lambda sample: {**sample, "json": ["\\ud800"]},
    "upper": lambda sample: {**sample, "TXT": "x"},
    "dotted": lambda sample: {**sample, "a/b": "x"},
    "huge": lambda sample: {**sample, "n": 10**5000},
    "loop": loop,
    "no_picture": lambda sample: {**sample, "jpg": b"<html>"},
}


def last_only(sample):
    print("busy with", sample["__key__"])
    return FAULTS["zero"](sample) if sample["__key__"].endswith("2") else sample


def leave(sample):
    sys.exit(4)


def surrogate(sample):
    return {**sample, "__key__": "a\\ud800b"}


for name, fault in FAULTS.items():
    globals()[name] = fault
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photos in three classes, and a module of transforms beside them."""
    place = tmp_path_factory.mktemp("transforms")
    make_photos(place / "in", count=3)
    (place / "faulty.py").write_text(SOURCE)
    (place / "broken.py").write_text("1 / 0\n")
    (place / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    return place


@pytest.fixture
def faulty(photos: Path) -> dict[str, Callable[[Any], Any]]:
    """The faulty transforms by name."""
    scope: dict[str, Any] = {"__name__": "faulty"}
    exec(SOURCE, scope)
    return scope


NAMES = [line.split('"')[1] for line in SOURCE.splitlines() if line.startswith('    "')]


@pytest.mark.parametrize("name", NAMES)
def test_every_fault_is_one_error_that_names_all(
    photos: Path, tmp_path: Path, name: str, faulty: dict[str, Callable[[Any], Any]]
) -> None:
    """Exceptions of any kind, and results that cannot be stored, say which sample, which transform and what; skipping
    leaves the samples out, with the same words."""
    transform = faulty["FAULTS"][name]
    with pytest.raises(SampleError) as caught:
        pack(photos / "in", tmp_path / "fail", shards=1, transform=transform)
    told = str(caught.value)
    assert "photo_00" in told and "0x" not in told
    assert "transform faulty:" in told or name == "no_picture"  # a picture's fault is told like any picture's

    def two_of_three(sample: dict[str, Any]) -> Any:
        return transform(sample) if sample["cls"] else sample

    report = pack(photos / "in", tmp_path / "skip", shards=1, transform=two_of_three, on_bad="skip")
    assert (report.samples, report.skipped) == (1, 2)
    assert {f.code for f in report.findings} <= {"transform", "undecodable"} and len(report.findings) == 2


def test_the_cause_is_named(photos: Path, tmp_path: Path, faulty: dict[str, Callable[[Any], Any]]) -> None:
    """Type and text of the exception stand in the message, addresses of objects do not."""
    for name, words in (
        ("zero", "ZeroDivisionError: division by zero"),
        ("system", "FileNotFoundError: .*No such file"),
        ("stop", "with sample 'class_./photo_00.': StopIteration"),
        ("address", "ValueError: <object object>"),
        ("number", "gave int, expected a dict, a list of dicts or None"),
        ("names", "field names are text, found 1"),
        ("surrogate_text", "field 'txt': UnicodeEncodeError"),
        ("surrogate_key", "its __key__ is a float, expected text"),
    ):
        with pytest.raises(SampleError, match=words):
            pack(photos / "in", tmp_path / name, shards=1, transform=faulty["FAULTS"][name])


def test_a_key_that_is_no_text_becomes_one(photos: Path, tmp_path: Path, faulty: dict[str, Any]) -> None:
    """A lone surrogate in a key is replaced like every other byte that cannot be in one."""
    pack(photos / "in", tmp_path / "out", shards=1, transform=faulty["surrogate"])
    assert [sample.key for sample in packed(tmp_path / "out")] == ["a_b", "a_b_1", "a_b_2"]


def test_leaving_ends_the_pack_even_when_bad_samples_are_skipped(
    photos: Path, tmp_path: Path, faulty: dict[str, Any]
) -> None:
    """`sys.exit` in a transform is an error of its own, Ctrl-C passes as it is."""
    with pytest.raises(StokerError, match=r"transform faulty:leave .*sys\.exit\(4\)") as caught:
        pack(photos / "in", tmp_path / "a", shards=1, transform=faulty["leave"], on_bad="skip")
    assert not isinstance(caught.value, SampleError)

    def interrupted(sample: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(photos / "in", tmp_path / "b", shards=1, transform=interrupted, on_bad="skip")


def command(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The real command, beside the module of transforms."""
    return subprocess.run(
        [sys.executable, "-m", "stoker.cli.main", "pack", *arguments], capture_output=True, text=True, cwd=place
    )


def test_the_command_tells_in_one_line(photos: Path, tmp_path: Path) -> None:
    """No traceback, exit code 1; what a transform prints goes to stderr, so that --json stays one object."""
    for name in ("zero", "leave"):
        done = command(photos, "in", str(tmp_path / name), "--transform", f"faulty:{name}")
        assert done.returncode == 1 and "Traceback" not in done.stderr and f"faulty:{name}" in done.stderr
    done = command(photos, "in", str(tmp_path / "o"), "--transform", "faulty:last_only", "--on-bad", "skip", "--json")
    assert done.returncode == 0 and "busy with" in done.stderr
    report = json.loads(done.stdout)
    assert report["skipped"] == 1 and report["findings"][0]["code"] == "transform"
    for module in ("broken:f", "leaves:f"):
        done = command(photos, "in", str(tmp_path / "n"), "--transform", module)
        assert done.returncode in (1, 2) and "Traceback" not in done.stderr and module in done.stderr


def test_arrays_that_are_no_picture(photos: Path, tmp_path: Path) -> None:
    """A picture field of a shape that no encoder takes is told with its field."""

    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "png": np.zeros((2, 2, 7))}

    with pytest.raises(SampleError, match="field 'png': TypeError"):
        pack(photos / "in", tmp_path / "out", shards=1, transform=odd)


def test_messages_are_the_same_on_every_run(tmp_path: Path) -> None:
    """Pillow's words hold an address: neither the findings nor the manifest do, so that packs can be compared."""
    source = make_photos(tmp_path / "in", count=3)
    (source / "class_0/bad.jpg").write_bytes(b"no picture")
    report = pack(source, tmp_path / "out", shards=1, on_bad="skip")
    assert "UnidentifiedImageError: cannot identify image file <_io.BytesIO object>" in report.findings[0].message
    assert "0x" not in (tmp_path / "out/_stoker/manifest.json").read_text()
    assert (
        reason_of(ValueError("a\n <x at 0xdeadBEEF>  b")) == "ValueError: a <x> b" and reason_of(OSError()) == "OSError"
    )


def test_a_module_that_cannot_be_imported(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception while the module runs is wrong usage that names it."""
    monkeypatch.syspath_prepend(photos)
    with pytest.raises(UsageError, match=r"broken:f.*ZeroDivisionError"):
        pack(photos / "in", tmp_path / "out", transform="broken:f")
