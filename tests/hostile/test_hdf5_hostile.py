"""HDF5 files made by others, damaged and hostile: each gives what the key says, refused by name or read exactly."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np
import pytest

from stoker.errors import SampleError, ShardError
from stoker.format import guard, hdf5_guard
from stoker.format.hdf5 import Hdf5File, scan_hdf5
from stoker.format.hdf5_guard import Run
from support_format import expected, run_limited

CANARY = Path("/tmp/STOKER_VDS_SECRET.h5")
REFUSED = {"external-link", "external-storage", "virtual-source", "declared-size", "unknown-filter"}
REST = {"second-link", "other-rows", "no-rows", "reference", "unsupported-type"}
MEMORY_BYTES_MAX = 4 << 30


def readable(shared_data: Path) -> list[tuple[str, Path, dict[str, Any]]]:
    """The files of the key whose structure can be listed."""
    found = expected(shared_data, "hdf5").items()
    return [(n, shared_data / n, one["expect"]) for n, one in found if "datasets" in one["expect"]]


def places(name: str, path: Path) -> tuple[dict[str, str], set[str]]:
    """Paths inside the file → codes of their findings; and the datasets that hold rows of samples."""
    found = guard.look("hdf5", path, name)
    taken = {dataset for _, _, fields in found["runs"] for dataset in fields.values()}
    return {f"/{place}": code for code, _, place, _ in found["findings"]}, {f"/{dataset}" for dataset in taken}


def digest(file: Hdf5File, rows: int, dtype: np.dtype[Any]) -> str:
    """SHA-256 of a dataset, put together from its rows as samples have them."""
    values = file.read(range(rows), "x")
    if dtype.kind != "V":
        values = [np.asarray(one, dtype.base) for one in values]  # in the file's byte order
    return hashlib.sha256(b"".join(one if isinstance(one, bytes) else one.tobytes() for one in values)).hexdigest()


def test_every_dataset_of_the_key_is_accounted_for(shared_data: Path) -> None:
    """What can be read is a field of samples, or a finding says why not; what leads outside is named."""
    for name, path, key in readable(shared_data):
        codes, taken = places(name, path)
        for dataset, known in key["datasets"].items():
            ways = {dataset, *(str(above) for above in PurePosixPath(dataset).parents)}
            assert ways & (taken | set(codes)) or not known.get("shape"), f"{name}: {dataset} is lost"
            if "virtual_sources" in known or "external" in known or str(known.get("read", "")).startswith("skipped"):
                assert codes[dataset] in REFUSED, f"{name}: {dataset}"
        for link in key.get("external_links", {}):
            assert codes[link] == "external-link", f"{name}: {link}"
    assert not CANARY.exists()


def test_rows_are_those_of_the_key(shared_data: Path) -> None:
    """Every dataset of numbers of every file, read row by row, has the digest that the key gives it."""
    compared = 0
    for name, path, key in readable(shared_data):
        codes, taken = places(name, path)
        with h5py.File(path, "r") as opened:
            for dataset, known in key["datasets"].items():
                usable = dataset in taken or codes.get(dataset) == "other-rows"
                if "sha256" not in known or not usable or known["shape"][0] > 5_000:
                    continue
                dtype = opened[dataset].dtype
                padded = dtype.kind == "f" and dtype.itemsize > 8  # long doubles: 6 of their 16 bytes say nothing
                if dtype.kind in "OS" or dtype.hasobject or padded:
                    continue
                file = Hdf5File(path, [Run("", known["shape"][0], {"x": dataset.lstrip("/")})])
                assert digest(file, known["shape"][0], dtype) == known["sha256"], f"{name}: {dataset}"
                file.close()
                compared += 1
    assert compared > 600


def test_strings_and_lists_are_those_of_the_key(shared_data: Path) -> None:
    """Variable-length values come, as many as there are, the first as the key shows it."""
    seen = 0
    for name, path, key in readable(shared_data):
        _, taken = places(name, path)
        for dataset, known in key["datasets"].items():
            if dataset in taken and known.get("read") == "ok" and "first" in known:
                file = Hdf5File(path, [Run("", known["shape"][0], {"x": dataset.lstrip("/")})])
                values = file.read(range(known["shape"][0]), "x")
                assert len(values) == known["shape"][0]
                first = values[0]
                while isinstance(first, list) and known["first"].startswith("b'"):
                    first = first[0]
                if known["first"].startswith("b'") and isinstance(first, str):
                    assert repr(first.encode())[:40] == known["first"][:40], f"{name}: {dataset}"
                file.close()
                seen += 1
    assert seen > 20


def test_what_the_key_cannot_read_is_an_error(shared_data: Path) -> None:
    """A damaged chunk is a bad sample with its rows named; the rows beside it stay readable."""
    for name, path, key in readable(shared_data):
        codes, taken = places(name, path)
        for dataset, known in key["datasets"].items():
            if known.get("read") == "error" and dataset in taken:
                file = Hdf5File(path, [Run("", known["shape"][0], {"x": dataset.lstrip("/")})])
                with pytest.raises(SampleError, match=r"rows 0 to \d+: cannot be read"):
                    file.read(range(known["shape"][0]), "x")
                file.close()
            elif known.get("read") == "error":
                assert codes[dataset] in REFUSED | REST, f"{name}: {dataset}"
    damaged = Hdf5File(shared_data / "hdf5/crafted/bitflip-fletcher.h5", [Run("", 1000, {"x": "fletcher32"})])
    assert len(damaged.read(range(200), "x")) == 200
    damaged.close()


def test_files_that_cannot_be_opened(shared_data: Path) -> None:
    """Cut, foreign, empty and many-part files are one error each, with the library's reason."""
    count = 0
    for name, one in expected(shared_data, "hdf5").items():
        if "open_error" in one["expect"]:
            scan = scan_hdf5(shared_data / name, name)
            assert [finding.code for finding in scan.errors] == ["damaged-shard"], name
            assert not len(scan.samples)
            count += 1
    assert count > 30


def test_a_file_that_kills_the_library(shared_data: Path) -> None:
    """The file that aborts h5py kills the process that looks, not this one, and the next file is read as ever."""
    name = "hdf5/hdf5-pickles/h5policy/tests/cve/vds_nentries_mult_overflow.h5"
    scan = scan_hdf5(shared_data / name, name)
    assert "killed the reader (SIG" in scan.errors[0].message
    assert len(scan_hdf5(shared_data / "hdf5/crafted/vlen-jpeg.h5", "v").samples) == 8


def test_rows_of_the_reproducers_in_bounded_memory(shared_data: Path) -> None:
    """Whatever of the CVE reproducers can be listed is read to the end or refused, in 3 GiB and 60 s."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom stoker.format.hdf5 import open_hdf5\n"
        "# LIMIT HERE\n"
        "from stoker.errors import ShardError, SampleError\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        file = open_hdf5(Path(name))\n"
        "        for field in file._names: file.read(range(int(file._starts[-1])), field)\n"
        "    except (ShardError, SampleError): pass\n"
        "print('done')\n"
    )
    files = [str(path) for path in (shared_data / "hdf5/hdf5-pickles").rglob("*.h5")]
    done = run_limited(script, *files, memory_bytes=3 << 30, seconds=60)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("done\n")


def test_a_small_file_that_claims_much(tmp_path: Path) -> None:
    """2^60 elements, a row of 2 GiB, a chunk of 1 GiB, a billion rows, in a few kB: refused at once, by name."""
    path = tmp_path / "much.h5"
    with h5py.File(path, "w") as file:
        file["ok"] = np.arange(3)
        file.create_dataset("elements", (1 << 30, 1 << 30), "u1", chunks=(1024, 1024))
        file.create_dataset("row", (2, 1 << 29), "i4", chunks=(1, 1 << 20))
        file.create_dataset("chunk", (2, 1 << 28), "i2", chunks=(1, 1 << 28))
        file.create_dataset("rows", (1 << 30,), "i1", chunks=(1 << 20,))
    assert path.stat().st_size < 16_384
    scan = scan_hdf5(path, "much.h5")
    assert {finding.where for finding in scan.errors} == {f"much.h5:{n}" for n in ("elements", "row", "chunk", "rows")}
    assert {finding.code for finding in scan.errors} == {"declared-size"}
    assert len(scan.samples) == 3


def test_everything_that_leads_outside(tmp_path: Path) -> None:
    """External link, external storage and a virtual source are each refused with where they lead; nothing is opened."""
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.arange(4)
    (tmp_path / "secret.raw").write_bytes(b"secret!!")
    path = tmp_path / "evil.h5"
    layout = h5py.VirtualLayout((4,), "i8")
    layout[:] = h5py.VirtualSource(str(secret), "x", (4,))
    with h5py.File(path, "w") as file:
        file["ok"] = np.arange(4)
        file["link"] = h5py.ExternalLink(str(secret), "/x")
        file.create_dataset("raw", (4,), "i2", external=[(str(tmp_path / "secret.raw"), 0, 8)])
        file.create_virtual_dataset("view", layout)
        file["soft"] = h5py.SoftLink("/link")
        file["self"] = file["/"]
    before = {one.name: one.stat().st_atime_ns for one in (secret, tmp_path / "secret.raw")}
    scan = scan_hdf5(path, "evil.h5")
    found = {finding.where.partition(":")[2]: finding for finding in scan.findings}
    assert {name: found[name].code for name in ("link", "raw", "view")} == {
        "link": "external-link", "raw": "external-storage", "view": "virtual-source",
    }  # fmt: skip
    assert all("secret" in found[name].message for name in ("link", "raw", "view"))
    assert [place.name for place in scan.samples[0].fields] == ["ok"]
    assert before == {one.name: one.stat().st_atime_ns for one in (secret, tmp_path / "secret.raw")}


def test_depth_and_number_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups without end and objects without number are an error of the file."""
    deep, wide = tmp_path / "deep.h5", tmp_path / "wide.h5"
    with h5py.File(deep, "w") as file:
        group = file
        for _ in range(hdf5_guard.HDF5_DEPTH_MAX + 5):
            group = group.create_group("g")
    with h5py.File(wide, "w") as file:
        for number in range(40):
            file.create_group(str(number))
    with pytest.raises(ShardError, match="deeper than 64"):
        hdf5_guard.look(deep)
    monkeypatch.setattr(hdf5_guard, "HDF5_OBJECTS_MAX", 30)
    with pytest.raises(ShardError, match="more than 30 objects"):
        hdf5_guard.look(wide)


def test_turned_bytes(tmp_path: Path) -> None:
    """A file with bytes turned over gives samples, findings or errors, never anything else."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=np.arange(4000).reshape(100, 40), chunks=(10, 40), compression="gzip")
        file["b"] = [f"text {n}" for n in range(100)]
    whole = path.read_bytes()
    rng = np.random.default_rng(20_260_701)
    script = (
        "import sys\nfrom pathlib import Path\nfrom stoker.format.hdf5 import open_hdf5\n"
        "# LIMIT HERE\n"
        "from stoker.errors import StokerError\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n"
        "        file = open_hdf5(Path(name))\n"
        "        for field in file._names: file.read(range(int(file._starts[-1])), field)\n"
        "    except StokerError: pass\n"
    )
    names = []
    for number in range(60):
        damaged = bytearray(whole)
        for _ in range(rng.integers(1, 20)):
            damaged[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        turned = tmp_path / f"{number}.h5"
        turned.write_bytes(bytes(damaged[: rng.integers(1, len(whole))] if number % 5 == 0 else damaged))
        scan = scan_hdf5(turned, "t")
        assert len(scan.samples) <= 1_000_000
        names.append(str(turned))
    done = run_limited(script, *names, memory_bytes=MEMORY_BYTES_MAX, seconds=60)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_helper_dies_and_comes_back(tmp_path: Path) -> None:
    """A helper that was killed is replaced; one that was stopped leaves no process behind."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(3)
    guard.look("hdf5", path, "x")
    helper = guard._helpers[os.getpid()].process
    os.kill(helper.pid, signal.SIGKILL)
    assert guard.look("hdf5", path, "x")["runs"] == [["", 3, {"a": "a"}]]
    again = guard._helpers[os.getpid()].process
    assert again.pid != helper.pid
    guard.stop()
    assert not Path(f"/proc/{again.pid}").exists()


def test_a_helper_that_ended_is_no_zombie(tmp_path: Path) -> None:
    """It is gone from the process table although nobody looks again."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(3)
    guard.look("hdf5", path, "x")
    helper = guard._helpers[os.getpid()].process
    os.kill(helper.pid, signal.SIGKILL)
    end_s = time.monotonic() + 30
    while Path(f"/proc/{helper.pid}").exists():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_an_idle_helper_ends(tmp_path: Path) -> None:
    """A helper that nobody asks ends by itself, and one whose parent is gone ends with it."""
    script = (
        "import json, subprocess, sys\n"
        "code = 'from stoker.format import guard; guard.IDLE_S = float(%r); guard.serve()'\n"
        "def helper(idle): return subprocess.Popen([sys.executable, '-c', code % idle], stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE)\n"
        "idle, left = helper('0.2'), helper('1000')\n"
        "print(idle.wait(30))\nleft.stdin.close()\nprint(left.wait(30))\nidle.stdin.close()\n"
        "idle.stdout.close(); left.stdout.close()\n"
    )
    done = run_limited(script, memory_bytes=MEMORY_BYTES_MAX, seconds=60)
    assert (done.stdout, done.stderr) == ("0\n0\n", "")


def test_a_look_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that sleeps, loops or takes all memory is ended at its limit and says so."""
    fake = tmp_path / "fake_guard.py"
    fake.write_text(
        "import time\nFAILURES = (MemoryError,)\ndef prepare(): pass\n"
        "def look(path):\n"
        "    if path.name == 'sleep': time.sleep(1000)\n"
        "    if path.name == 'loop':\n        while True: pass\n"
        "    if path.name == 'eat': return {'n': len(bytearray(1 << 33))}\n"
        "    if path.name == 'much': return 'x' * (1 << 22)\n"
        "    return {}\n"
    )
    script = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom pathlib import Path\nfrom stoker.format import guard\n"
        "import fake_guard\nguard.LOOK_CPU_S_MAX, guard.LOOK_ANSWER_BYTES_MAX = 1, 1 << 20\n"
        "for name in ('sleep', 'loop', 'eat', 'much', 'fine'):\n"
        "    guard.LOOK_S_MAX = 2.0 if name == 'sleep' else 50.0  # busy machines are slow\n"
        "    print(name, guard._look_in_child(fake_guard, name.encode()))\n"
    )
    done = run_limited(script, str(tmp_path), memory_bytes=16 << 30, seconds=60)
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert "longer than 2 s" in lines["sleep"] and "said too much" in lines["much"]
    assert "SIGXCPU" in lines["loop"] or "SIGKILL" in lines["loop"]
    assert "error" in lines["eat"] and lines["fine"] == "{'found': {}}"


def test_nothing_of_python_is_believed(tmp_path: Path) -> None:
    """A pickle in an opaque or string dataset is bytes and stays bytes."""
    path = tmp_path / "p.h5"
    payload = b"cos\nsystem\n(S'touch /tmp/STOKER_PICKLE_EXECUTED'\ntR."
    with h5py.File(path, "w") as file:
        file["p"] = np.array([np.void(payload)])
    file = Hdf5File(path, [Run("", 1, {"p": "p"})])
    assert file.read([0], "p") == [payload]
    file.close()
    assert not Path("/tmp/STOKER_PICKLE_EXECUTED").exists()
