"""Planted delays prove that a wait is charged to the stage that caused it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.dataset import Dataset
from stoker.loader import LoaderReport
from support_dataset import write_shards
from support_transforms import SlowDecoder, SlowMemory, slow, slow_batch

SAMPLES = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 samples."""
    return write_shards(tmp_path_factory.mktemp("data"), SAMPLES)


def run(dataset: Dataset, **options: Any) -> LoaderReport:
    """One epoch in batches of 4 with one thread, and what the report says."""
    fields = options.pop("fields", {"cls": int})
    with stoker.Loader(dataset, 4, fields=fields, budget=stoker.Budget(cpus=1, adapt=False), **options) as loader:
        for _ in loader:
            pass
        return loader.report()


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        ("decode", {"fields": {"cls": SlowDecoder()}}),
        ("transform", {"transform": slow}),
        ("collate", {"batch_transform": slow_batch}),
    ],
)
def test_a_planted_delay_is_charged_to_its_stage(folder: Path, stage: str, options: dict[str, Any]) -> None:
    """At least 90 % of the added wait, and at most 2 % of all wait goes to `other`."""
    plain, slowed = run(stoker.open(folder)), run(stoker.open(folder), **options)
    added = slowed.wait_s - plain.wait_s
    assert added > 0.5
    assert slowed.wait_by_stage_s[stage] - plain.wait_by_stage_s.get(stage, 0) >= 0.9 * added
    assert slowed.wait_by_stage_s.get("other", 0) <= 0.02 * slowed.wait_s
    assert sum(slowed.wait_by_stage_s.values()) == pytest.approx(slowed.wait_s, rel=1e-6)


def test_a_slow_store_is_charged_to_store_read(tmp_path: Path) -> None:
    """A store that answers 30 ms later: the added wait is reading, and nothing else."""
    folder = write_shards(tmp_path / "many", 3000, member=lambda i: {"cls": str(i).encode()})
    index = stoker.open(folder).index
    objects = {path.name: path.read_bytes() for path in folder.iterdir()}
    reports = [run(Dataset(SlowMemory(objects, delay_s), index)) for delay_s in (0.0, 0.03)]
    added = reports[1].wait_s - reports[0].wait_s
    assert added > 0.5
    reading = [report.wait_by_stage_s.get("store_read", 0.0) for report in reports]
    assert reading[1] - reading[0] >= 0.9 * added
    assert reports[1].wait_by_stage_s.get("other", 0) <= 0.02 * reports[1].wait_s


def test_the_report_reads_well(folder: Path) -> None:
    """Text for people, a dict for programs."""
    report = run(stoker.open(folder), transform=slow)
    assert "transform" in str(report)
    assert report.as_dict()["batches"] == 30
    json.dumps(report.as_dict())


def test_the_run_log_holds_every_batch(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """STOKER_RUN_LOG names a file of JSON lines whose waits add up to the report's."""
    monkeypatch.setenv("STOKER_RUN_LOG", str(tmp_path / "logs" / "run.jsonl"))
    report = run(stoker.open(folder))
    lines = [json.loads(line) for line in (tmp_path / "logs" / "run.jsonl").read_text().splitlines()]
    batches = [line for line in lines if line["event"] == "batch"]
    assert [line["step"] for line in batches] == list(range(30))
    assert sum(line["wait_s"] for line in batches[1:]) == pytest.approx(report.wait_s)
    for line in batches:
        assert sum(line["stages"].values()) == pytest.approx(line["wait_s"], abs=1e-4)
