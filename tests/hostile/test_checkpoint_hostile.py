"""Damage of every kind to a checkpoint: all of it is found before a live tensor changes, and no foreign code runs."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker
from stoker.checkpoint import Keep, disk
from stoker.checkpoint.keeper import Keeper, KeeperJob
from stoker.checkpoint.load import read_metadata
from stoker.checkpoint.manifest import FileEntry, Manifest, Marker
from stoker.errors import CheckpointError
from support_checkpoint import complete, saved, seen
from support_store import until

FLIPS = int(os.environ.get("STOKER_CRASH_POINTS", "5")) * 4
"""Damages of each random kind."""


def state(value: float) -> dict[str, Any]:
    """Tensors and values."""
    return {"w": torch.full((3000,), value), "deep": {"b": torch.full((7, 5), value), "n": [value]}, "step": value}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the checkpoints of steps 1 and 2, and a copy of it beside."""
    with stoker.Checkpointer(tmp_path / "ck", keep=5) as ck:
        saved(ck, 1, state(1.0))
        saved(ck, 2, state(2.0), metrics={"loss": 1.0})
    shutil.copytree(tmp_path / "ck", tmp_path / "whole")
    return tmp_path / "ck"


def newest(place: Path) -> Path:
    """The folder of step 2."""
    return max(place.glob("step-*"), key=lambda path: path.name)


def resumed_step(place: Path) -> tuple[int | None, dict[str, Any]]:
    """What a fresh process resumes from, with its state; None and untouched state when nothing can be used."""
    live = state(-5.0)
    with stoker.Checkpointer(place, keep=5) as ck:
        try:
            found = ck.resume(live)
        except CheckpointError:
            return None, live
    assert found is not None
    return found.step, live


def data_files(folder: Path) -> list[Path]:
    """All files that the manifest lists."""
    manifest = Manifest.from_json((folder / "MANIFEST.json").read_bytes(), "x")
    return [folder / entry.name for entry in manifest.files]


def flip(path: Path, rng: random.Random) -> None:
    """One bit."""
    raw = bytearray(path.read_bytes())
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)


def zero(path: Path, rng: random.Random) -> None:
    """A stretch of zeros where there was something else."""
    raw = bytearray(path.read_bytes())
    spots = [at for at, byte in enumerate(raw) if byte]
    at = rng.choice(spots)
    raw[at : at + 4096] = bytes(len(raw[at : at + 4096]))
    path.write_bytes(raw)


def cut(path: Path, rng: random.Random) -> None:
    """Shorter."""
    os.truncate(path, rng.randrange(path.stat().st_size))


def longer(path: Path, rng: random.Random) -> None:
    """Bytes behind the end."""
    with path.open("ab") as file:
        file.write(rng.randbytes(1 + rng.randrange(100)))


def gone(path: Path, rng: random.Random) -> None:
    """No file."""
    path.unlink()


@pytest.mark.parametrize("damage", [flip, zero, cut, longer, gone])
def test_every_damage_to_a_file_is_found(place: Path, damage: Callable[[Path, random.Random], None]) -> None:
    """Whatever file, wherever in it: the damaged checkpoint is passed over for the one before, live tensors never hold
    a byte of it."""
    rng = random.Random(damage.__name__)
    for _ in range(FLIPS):
        shutil.rmtree(place)
        shutil.copytree(place.parent / "whole", place)
        damage(rng.choice(data_files(newest(place))), rng)
        step, live = resumed_step(place)
        assert step == 1 and torch.equal(live["w"], torch.ones(3000)) and live["deep"]["n"] == [1.0]


def test_damage_everywhere_changes_nothing(place: Path) -> None:
    """When every checkpoint is damaged, resuming is an error that says why for each, and the state is as it was."""
    rng = random.Random(5)
    for folder in place.glob("step-*"):
        flip(folder / "data/__0_0.distcp", rng)
    live = state(-5.0)
    before = {"w": live["w"].clone(), "b": live["deep"]["b"].clone()}
    with stoker.Checkpointer(place) as ck:
        with pytest.raises(CheckpointError, match="no checkpoint can be used") as told:
            ck.resume(live)
    assert str(told.value).count("CRC32C") == 2 and "nothing was changed" in str(told.value)
    assert torch.equal(live["w"], before["w"]) and torch.equal(live["deep"]["b"], before["b"])
    assert live["step"] == -5.0


@pytest.mark.parametrize("mark", ["COMMITTED", "MANIFEST.json"])
def test_a_damaged_marker_or_manifest(place: Path, mark: str) -> None:
    """Flipped, cut, emptied, replaced by that of the other step: not a checkpoint any more."""
    rng = random.Random(mark)
    other = min(place.glob("step-*"), key=lambda path: path.name) / mark
    damages: list[Callable[[Path], object]] = [
        lambda path: flip(path, rng), lambda path: cut(path, rng), lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(other.read_bytes()), lambda path: path.write_bytes(b"{" * 5000),
        lambda path: path.unlink(),
    ]  # fmt: skip
    for damage in damages * (FLIPS // 10):
        shutil.rmtree(place)
        shutil.copytree(place.parent / "whole", place)
        damage(newest(place) / mark)
        assert complete(place) == [1]
        assert resumed_step(place)[0] == 1


def test_files_of_two_steps_swapped(place: Path) -> None:
    """The same name and length, another step's bytes: found."""
    old, new = sorted(place.glob("step-*"))
    for name in ("data/__0_0.distcp", "data/__0_objects.distcp"):
        shutil.rmtree(place)
        shutil.copytree(place.parent / "whole", place)
        assert (old / name).stat().st_size == (new / name).stat().st_size
        (old / name).rename(place / "x")
        (new / name).rename(old / name)
        (place / "x").rename(new / name)
        assert resumed_step(place)[0] is None


def test_a_whole_folder_renamed(place: Path) -> None:
    """A checkpoint under another's name, step or number is none."""
    folder = newest(place)
    folder.rename(place / folder.name.replace("step-00000002", "step-00000009"))
    assert complete(place) == [1]
    assert resumed_step(place)[0] == 1


class Bomb:
    """Runs when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = str(proof)

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (self.proof,)


def recommitted(folder: Path) -> None:
    """Make manifest and marker fit what lies there now: what somebody with write access can do."""
    manifest = Manifest.from_json((folder / "MANIFEST.json").read_bytes(), "x")
    entries = []
    for entry in manifest.files:
        raw = (folder / entry.name).read_bytes()
        entries.append(FileEntry(entry.name, len(raw), disk.crc32c(raw), entry.rank))
    forged = replace(manifest, files=tuple(entries)).to_json()
    (folder / "MANIFEST.json").write_bytes(forged)
    (folder / "COMMITTED").write_bytes(Marker.of(manifest.attempt, forged).to_json())


def test_a_stale_manifest_with_its_marker(place: Path) -> None:
    """Both of the older step, which fit each other: they belong to another folder, which is told."""
    old, new = sorted(place.glob("step-*"))
    for name in ("MANIFEST.json", "COMMITTED"):
        shutil.copy(old / name, new / name)
    assert complete(place) == [1] and "belongs to" in str(seen(place)[-1].fault)
    assert resumed_step(place)[0] == 1


@pytest.mark.parametrize("lie", ["sum", "length", "left out", "other rank", "another file's", "nothing"])
def test_a_forged_manifest_with_its_marker(place: Path, lie: str) -> None:
    """A marker that fits a manifest that lies of one file, whichever: what is loaded is either what was saved, or the
    older step."""
    whole = Manifest.from_json((newest(place) / "MANIFEST.json").read_bytes(), "x")
    for number, entry in enumerate(whole.files):
        other = whole.files[number - 1]
        told = {
            "sum": [replace(entry, crc32c=entry.crc32c ^ 1)],
            "length": [replace(entry, size=entry.size + 1)],
            "left out": [],
            "other rank": [replace(entry, rank=5)],
            "another file's": [replace(other, name=entry.name)],
            "nothing": [replace(entry, size=0, crc32c=0)],
        }[lie]
        files = (*whole.files[:number], *told, *whole.files[number + 1 :])
        shutil.rmtree(place)
        shutil.copytree(place.parent / "whole", place)
        forged = replace(whole, files=files).to_json()
        (newest(place) / "MANIFEST.json").write_bytes(forged)
        (newest(place) / "COMMITTED").write_bytes(Marker.of(whole.attempt, forged).to_json())
        step, live = resumed_step(place)
        assert step == 1 or (step == 2 and lie == "other rank"), entry.name
        assert torch.equal(live["w"], torch.full((3000,), float(step))) and live["deep"]["n"] == [float(step)]


@pytest.mark.parametrize("forged", [False, True])
@pytest.mark.parametrize("file", [".metadata", "data/__0_objects.distcp", "data/__0_0.distcp"])
def test_a_malicious_pickle_never_runs(place: Path, file: str, forged: bool) -> None:
    """In the description, in a value, in a tensor's archive; also when all sums were forged to fit."""
    folder, proof = newest(place), place.parent / "proof"
    payload = pickle.dumps(Bomb(proof), protocol=2)
    raw = (folder / file).read_bytes()
    if file == ".metadata":
        (folder / file).write_bytes(payload)
    else:
        at = raw.index(b"\x80\x02")  # a pickle of protocol 2 begins: in the first archive's data.pkl
        (folder / file).write_bytes(raw[:at] + payload[: len(raw) - at] + raw[at + len(payload) :])
    if forged:
        recommitted(folder)
    live = state(-5.0)
    with stoker.Checkpointer(place, keep=5) as ck:
        try:
            found = ck.resume(live)
            assert found is not None and found.step == 1
        except CheckpointError as error:
            assert forged and file != ".metadata", error
    assert not proof.exists()


def test_the_bomb_is_live(tmp_path: Path) -> None:
    """A plain unpickler runs it: the test above can fail."""
    pickle.loads(pickle.dumps(Bomb(tmp_path / "proof")))
    assert (tmp_path / "proof").exists()


@pytest.mark.parametrize(
    "value",
    [{"a": 1}, [os.getcwd], torch.float32, complex(1, 2), b"", torch.nn.Linear, "text"],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_description_is_refused(value: object) -> None:
    """By a CheckpointError that names the file."""
    with pytest.raises(CheckpointError, match=r"x/.metadata"):
        read_metadata(pickle.dumps(value), "x/.metadata")


def test_random_bytes_as_a_description() -> None:
    """Cut, flipped and random descriptions end in a CheckpointError or in a description, never otherwise."""
    rng = random.Random(3)
    for _ in range(2000):
        raw = rng.randbytes(rng.randrange(60))
        with pytest.raises(CheckpointError):
            read_metadata(raw, "x")


def test_a_description_that_points_outside_its_files(place: Path) -> None:
    """Even forged throughout, offsets beyond a file's end are found before loading."""
    folder = newest(place)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for index, one in metadata.storage_data.items():
        metadata.storage_data[index] = replace(one, offset=one.offset + (1 << 40))
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    recommitted(folder)
    assert resumed_step(place)[0] == 1


def test_a_description_that_names_other_files(place: Path) -> None:
    """A path that leads out of the folder has no entry in the manifest: refused."""
    folder = newest(place)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for index, one in metadata.storage_data.items():
        metadata.storage_data[index] = replace(one, relative_path="../../../etc/passwd")
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    recommitted(folder)
    assert resumed_step(place)[0] == 1


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"w": torch.zeros(2999), "deep": {"b": torch.zeros(7, 5), "n": []}, "step": 0}, "wanted with"),
        ({"w": torch.zeros(3000), "deep": {"b": torch.zeros(5, 7), "n": []}, "step": 0}, "wanted with"),
        ({"w": torch.zeros(3000), "deep": {"b": torch.zeros(7, 5), "c": torch.ones(2)}}, "not in the checkpoint"),
        ({"w": 5, "deep": {"b": torch.zeros(7, 5)}, "step": torch.zeros(1)}, "wanted as a tensor"),
        ({"w": torch.zeros(3000), "new": torch.zeros(3)}, "not in the checkpoint"),
    ],
)  # fmt: skip
def test_a_state_that_does_not_fit(place: Path, other: dict[str, Any], words: str) -> None:
    """Is told what does not fit; nothing of it is changed."""
    with stoker.Checkpointer(place) as ck:
        with pytest.raises(CheckpointError, match=words):
            ck.resume(other)
    assert all(float(one.sum()) in (0, 2) for one in other.values() if isinstance(one, torch.Tensor))


def test_uncovered_elements_are_found(place: Path) -> None:
    """A description in which a piece of a tensor is missing is refused: torch's loader leaves it as it was."""
    folder = newest(place)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    (chunk,) = metadata.state_dict_metadata["w"].chunks
    metadata.state_dict_metadata["w"].chunks = [replace(chunk, sizes=torch.Size([2000]))]
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    recommitted(folder)
    shutil.rmtree(min(place.glob("step-*"), key=lambda path: path.name))
    with stoker.Checkpointer(place) as ck:
        with pytest.raises(CheckpointError, match="w: 1000 of 3000 elements are in no file"):
            ck.resume(state(-5.0))


def test_a_damaged_checkpoint_is_marked_and_protects_nothing(place: Path) -> None:
    """The keeper reads back what it has not verified; what is wrong is marked, told of, and the older one is kept."""
    folder = newest(place)
    (folder / "VERIFIED").unlink()
    flip(folder / "data/__0_0.distcp", random.Random(1))
    with stoker.Checkpointer(place, keep=1) as ck:
        found = ck.resume(state(0.0))
        assert found is not None and found.step == 1
        assert complete(place) == [1]
        until(lambda: ck._household is not None and ck._household.report is not None)
    assert complete(place) == [1]
    assert "CRC32C" in (folder / "DAMAGED").read_text()
    assert seen(place)[-1].fault is not None


def test_the_keeper_finds_damage_by_itself(place: Path, tmp_path: Path) -> None:
    """Before anything older is deleted, the newest is read back; what is wrong is marked, reported and not uploaded."""
    folder = newest(place)
    (folder / "VERIFIED").unlink()
    flip(folder / "data/__0_0.distcp", random.Random(1))
    report = Keeper(KeeperJob(place, (str(tmp_path / "far"),), Keep(1, 1))).cycle()
    assert len(report.damaged) == 1 and "CRC32C" in report.damaged[0]
    assert complete(place) == complete(tmp_path / "far") == [1] and report.deleted == ()


def test_json_bombs_in_the_loaders_position(place: Path) -> None:
    """A position that is no JSON object is an error, not a crash."""
    with stoker.Checkpointer(place) as ck:
        saved(ck, 3, state(3.0), loader=_Loader())
    folder = newest(place)
    (folder / "loader.json").write_bytes(b"[" * 10)
    recommitted(folder)
    with stoker.Checkpointer(place) as ck:
        with pytest.raises(CheckpointError, match=r"loader.json: cannot be read"):
            ck.resume(state(0.0))
    (folder / "loader.json").write_bytes(json.dumps([1]).encode())
    recommitted(folder)
    with stoker.Checkpointer(place) as ck:
        found = ck.resume(state(0.0))
        assert found is not None and found.loader is None


class _Loader:
    """A position of one number."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to set."""
