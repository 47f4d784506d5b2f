"""`stoker checkpoint …` as people call it: text, JSON, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.cli.main import main
from stoker.cli.servers import Server, moto_server
from stoker.errors import MissingExtraError, StoreError
from support_checkpoint import complete, same, saved, seen

STATE: dict[str, Any] = {"w": torch.arange(12.0).view(3, 4), "half": torch.ones(5, dtype=torch.bfloat16), "n": {"e": 4}}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Steps 1, 2 and 3."""
    with stoker.Checkpointer(tmp_path / "ck", keep=9) as ck:
        for step in (1, 2, 3):
            saved(ck, step, STATE, metrics={"loss": 0.5})
    return tmp_path / "ck"


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    code = main(["checkpoint", *map(str, words)])
    told = capsys.readouterr()
    return code, told.out, told.err


def run_json(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> Any:
    """What `--json` printed."""
    found, out, err = run(capsys, *words, "--json")
    assert found == code, err
    return json.loads(out)


def damage(folder: Path) -> None:
    """One byte of the weights."""
    path = folder / "data/__0_0.distcp"
    raw = bytearray(path.read_bytes())
    raw[1000] ^= 1
    path.write_bytes(raw)


def test_ls_tells_states(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Newest first, whole or not, pinned or not, on every tier."""
    names = [one.name for one in seen(place)]
    (place / names[0] / "COMMITTED").unlink()
    (place / names[1] / "data/__0_0.distcp").unlink()
    run(capsys, "pin", place, 3)
    code, out, err = run(capsys, "ls", place)
    assert code == 0 and "3 on 1 tiers" in err
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        [names[2], "verified"], [names[1], "incomplete"], [names[0], "partial"],
    ]  # fmt: skip
    assert "pinned" in lines[0] and str(place) in lines[0]
    told = run_json(capsys, "ls", place)["checkpoints"]
    assert [row["state"] for row in told] == ["verified", "incomplete", "partial"]
    assert "there is no such file" in told[1]["fault"] and told[0]["step"] == 3


def test_verify_finds_damage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 and 1; by default the newest, by step or name any other."""
    names = [one.name for one in seen(place)]
    code, out, _ = run(capsys, "verify", place)
    assert (code, out) == (0, f"{names[2]}: every byte is what was saved\n")
    damage(place / names[1])
    assert run(capsys, "verify", place, 1)[0] == 0
    code, out, _ = run(capsys, "verify", place, names[1])
    assert code == 1 and "CRC32C" in out and "1 findings" in out
    assert len(run_json(capsys, "verify", place, 2, code=1)["findings"]) == 1


def test_scrub_marks_what_is_damaged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From then on it is no candidate any more; the next scrub has nothing to tell."""
    names = [one.name for one in seen(place)]
    damage(place / names[2])
    told = run_json(capsys, "scrub", place, code=1)
    assert told["damaged"] == 1 and [bool(one["findings"]) for one in told["checkpoints"]] == [False, False, True]
    assert complete(place) == [1, 2]
    assert run(capsys, "scrub", place)[0] == 0
    code, out, _ = run(capsys, "verify", place, 3)
    assert code == 1 and "marked as damaged" in out
    assert run_json(capsys, "ls", place)["checkpoints"][0]["state"] == "damaged"


@pytest.mark.parametrize("name", ["data/__0_0.distcp", "MANIFEST.json"])
def test_scrub_tells_of_files_that_are_gone(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """What was committed and lacks a file is damaged, though there is nothing to read back."""
    names = [one.name for one in seen(place)]
    (place / names[1] / name).unlink()
    told = run_json(capsys, "scrub", place, code=1)
    assert told["damaged"] == 1 and [bool(one["findings"]) for one in told["checkpoints"]] == [False, True, False]


def test_a_run_log_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing or full of other things, it is wrong usage."""
    code, _, err = run(capsys, "interval", "--mtbf", "8h", "--run-log", tmp_path / "none")
    assert code == 2 and "cannot be read" in err
    (tmp_path / "log").write_bytes(b'\xff\n[1]\n3\n{"event": "checkpoint_committed"}\n')
    code, _, err = run(capsys, "interval", "--mtbf", "8h", "--run-log", tmp_path / "log")
    assert code == 2 and "tells of no checkpoint" in err


def test_push_and_pull(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To a folder and back into another: complete, verified, resumable; again there is nothing to do."""
    code, out, _ = run(capsys, "push", place, tmp_path / "far")
    assert code == 0 and out.endswith("sent, verified\n") and complete(tmp_path / "far") == [3]
    assert run(capsys, "push", place, tmp_path / "far")[2] == "nothing to push\n"
    assert len(run_json(capsys, "push", place, tmp_path / "far", 1)["pushed"]) == 1
    assert complete(tmp_path / "far") == [1, 3]
    folder = run_json(capsys, "pull", tmp_path / "far", tmp_path / "near")["folder"]
    assert Path(folder).parent == tmp_path / "near" and complete(tmp_path / "near") == [3]
    fresh = {"w": torch.zeros(3, 4), "half": torch.zeros(5, dtype=torch.bfloat16), "n": {}}
    with stoker.Checkpointer(tmp_path / "near") as ck:
        found = ck.resume(fresh)
    assert found is not None and same(fresh, STATE)


def test_a_pinned_checkpoint_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And may go when it is unpinned."""
    assert run(capsys, "pin", place, 1) [1].endswith(": pinned\n")  # fmt: skip
    with stoker.Checkpointer(place, keep=1) as ck:
        saved(ck, 4, STATE)
    assert complete(place) == [1, 4] or complete(place) == [1, 3, 4]
    assert run_json(capsys, "pin", place, 1, "--off")["pinned"] is False
    with stoker.Checkpointer(place, keep=1) as ck:
        ck.resume()
        saved(ck, 5, STATE)
    assert 1 not in complete(place) or seen(place)[0].manifest.lineage != seen(place)[-1].manifest.lineage


def test_what_is_not_complete_cannot_be_pinned(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be kept for nothing, or swept all the same: told, and nothing is marked. Unpinning always works."""
    name = seen(place)[0].name
    (place / name / "data/__0_0.distcp").unlink()
    code, _, err = run(capsys, "pin", place, name)
    assert code == 1 and "there is no such file" in err and not (place / name / "PINNED").exists()
    (place / name / "PINNED").touch()
    assert run(capsys, "pin", place, name, "--off")[0] == 0 and not (place / name / "PINNED").exists()


@pytest.mark.parametrize("ending", [".pt", ".safetensors"])
def test_export_overwrites_nothing(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    """A file that is there already stays as it is, and that is wrong usage."""
    out = tmp_path / f"mine{ending}"
    out.write_text("years of work")
    code, _, err = run(capsys, "export", place, out)
    assert code == 2 and "such a file already" in err and out.read_text() == "years of work"


def test_export_to_one_file(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As torch.save writes it, and as safetensors, whose bytes are read here by hand."""
    assert run(capsys, "export", place, tmp_path / "all.pt")[0] == 0
    assert same(torch.load(tmp_path / "all.pt", weights_only=True), STATE)
    told = run_json(capsys, "export", place, tmp_path / "w.safetensors", 2)
    assert told["left_out"] == ["n"] and "step-00000002" in told["name"]
    raw = (tmp_path / "w.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    assert header["__metadata__"] == {"format": "pt", "step": "2"} and header["half"]["dtype"] == "BF16"
    start, stop = header["w"]["data_offsets"]
    values = np.frombuffer(raw[8 + length :][start:stop], dtype="<f4").reshape(header["w"]["shape"])
    assert np.array_equal(values, STATE["w"].numpy())
    assert len(raw) == 8 + length + max(one["data_offsets"][1] for name, one in header.items() if name[0] != "_")


def test_export_refuses_damage(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written of a damaged checkpoint, nor under another ending."""
    damage(place / seen(place)[-1].name)
    code, _, err = run(capsys, "export", place, tmp_path / "all.pt")
    assert code == 1 and "CRC32C" in err and not (tmp_path / "all.pt").exists()
    code, _, err = run(capsys, "export", place, tmp_path / "all.bin")
    assert code == 2 and ".safetensors" in err


def test_interval_from_a_run_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured or given; without either it is wrong usage."""
    monkeypatch.setenv("STOKER_RUN_LOG", str(tmp_path / "run.jsonl"))
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        for step in range(3):
            saved(ck, step, STATE)
    found = run_json(capsys, "interval", "--run-log", tmp_path / "run.jsonl", "--mtbf", "8h")
    assert 0 < found["cost_s"] < found["write_s"] and found["interval_s"] >= found["daly_s"] > 0
    code, out, _ = run(capsys, "interval", "--cost", "2s", "--write", "40s", "--mtbf", "8h", "--restart", "5min")
    assert code == 0 and out.startswith("save every 5 min 3") and "failures lose" in out
    assert run(capsys, "interval", "--mtbf", "8h")[0] == 2
    assert run(capsys, "interval", "--mtbf", "soon", "--cost", "1", "--write", "1")[0] == 2
    (tmp_path / "empty.jsonl").write_text('{"event": "batch"}\n{"event": "checkpoint_comm')
    assert run(capsys, "interval", "--mtbf", "8h", "--run-log", tmp_path / "empty.jsonl")[0] == 2


def test_gc_removes_what_the_dead_left(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half-written checkpoints of dead writers, not those of living ones; --dry-run only tells."""
    names = [one.name for one in seen(place)]
    for name in names[:2]:
        (place / name / "COMMITTED").unlink()
    (place / names[0] / "OWNER.0").write_text("another boot/1/1")  # the other one is this process's own
    told = run_json(capsys, "gc", place, "--dry-run")
    assert told["partial"] == [names[0]] and (place / names[0]).exists()
    assert "removed 1 half-written" in run(capsys, "gc", place)[1]
    assert [one.name for one in seen(place)] == names[1:]
    assert complete(place) == [3]


@pytest.mark.parametrize(
    "words", [("ls", "nowhere"), ("verify", "nowhere"), ("pull", "nowhere", "x"), ("pin", "nowhere", "1"), ("ls", "ftp://x")]
)  # fmt: skip
def test_wrong_usage_is_2(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is not there, an unknown kind of store."""
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *words)[0] == 2


def test_nothing_complete_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty folder has nothing to verify; a step that is not there is wrong usage, with what there is."""
    code, _, err = run(capsys, "verify", tmp_path)
    assert code == 1 and "there is no complete checkpoint" in err
    assert run(capsys, "verify", tmp_path, 7)[0] == 2


@pytest.fixture(scope="module")
def server() -> Any:
    """An S3 server."""
    with moto_server() as running:
        yield running


@pytest.fixture
def in_s3(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """URL of an empty place there, reachable by the environment."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    server.make_bucket("cli")
    return f"s3://cli/{tmp_path.name}"


def test_the_same_against_s3(place: Path, tmp_path: Path, in_s3: str, capsys: pytest.CaptureFixture[str]) -> None:
    """push, ls, verify, pin, pull, scrub: a bucket is a tier like a folder."""
    assert run(capsys, "push", place, in_s3)[0] == 0
    assert run(capsys, "pin", in_s3, 3)[0] == 0
    (row,) = run_json(capsys, "ls", in_s3)["checkpoints"]
    assert (row["state"], row["pinned"], row["step"]) == ("verified", True, 3)
    assert run(capsys, "verify", in_s3)[0] == 0
    assert run(capsys, "pull", in_s3, tmp_path / "near")[0] == 0 and complete(tmp_path / "near") == [3]
    assert run(capsys, "scrub", in_s3)[0] == 0
    assert run(capsys, "export", in_s3, tmp_path / "x.pt")[0] == 2


def test_gc_aborts_unfinished_uploads(in_s3: str, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Those below the prefix, when they are old enough, and no others."""
    boto3 = pytest.importorskip("boto3")
    client = boto3.client(
        "s3", endpoint_url=server.endpoint, region_name="us-east-1", aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )  # fmt: skip
    prefix = in_s3.removeprefix("s3://cli/")
    for key in (f"{prefix}/step-x/data", f"{prefix}-other/data"):
        client.create_multipart_upload(Bucket="cli", Key=key)
    assert run_json(capsys, "gc", in_s3, "--older-than", "9999999h")["pieces"] == []
    assert len(run_json(capsys, "gc", in_s3, "--older-than", "0s", "--dry-run")["pieces"]) == 1
    assert "1 unfinished uploads" in run(capsys, "gc", in_s3, "--older-than", "0s")[1]
    assert server.open_uploads("cli") == [f"{prefix}-other/data"]


def test_gc_without_boto3_says_what_it_needs(
    in_s3: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is done all the same."""

    def missing(name: str) -> object:
        raise MissingExtraError("looking for unfinished uploads needs boto3", "pip install 'stoker[aws]'")

    monkeypatch.setattr("stoker.checkpoint.pieces._boto", missing)
    code, out, err = run(capsys, "gc", in_s3)
    assert code == 0 and "needs boto3" in err and "removed 0" in out


def test_an_unreachable_server_is_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the address, after seconds."""
    monkeypatch.setattr("stoker.checkpoint.keeper.REMOTE_DEADLINE_S", 0.5)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    code, _, err = run(capsys, "ls", "s3://bucket/x")
    assert code == 1 and "s3://bucket/x" in err
    assert StoreError.__name__ not in err


def test_export_leaves_no_temporary(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file appears whole; nothing else does."""
    (tmp_path / "out").mkdir()
    run(capsys, "export", place, tmp_path / "out" / "a.pt")
    assert os.listdir(tmp_path / "out") == ["a.pt"]
    shutil.rmtree(tmp_path / "out")
