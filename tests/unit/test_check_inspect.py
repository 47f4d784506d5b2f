"""What `inspect` says about a dataset, and what `formats` says about all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.check import inspect
from stoker.check.shuffle import shuffle_quality
from stoker.format import OWNS
from stoker.format.compare import COMPARISON, markdown
from support_dataset import own_index_folder, write_shards
from support_rows import write_table

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def run(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The command line."""
    return subprocess.run(
        [sys.executable, "-m", "stoker.cli.main", *arguments],
        env=own_index_folder(home), capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_comparison_is_that_of_the_documentation() -> None:
    """Every format that is read has its row, and docs/formats.md holds the same table."""
    assert {one.name for one in COMPARISON} == {*OWNS, "files"}
    assert f"\n{markdown()}\n" in (ROOT / "docs" / "formats.md").read_text()


def test_the_comparison_is_printed(tmp_path: Path) -> None:
    """Text and JSON tell of the same formats."""
    text = run("formats", home=tmp_path)
    told = json.loads(run("formats", "--json", home=tmp_path).stdout)
    assert [one["name"] for one in told["formats"]] == [one.name for one in COMPARISON]
    assert all(f"\n{one.name}\n" in f"\n{text.stdout}" for one in COMPARISON)


def test_fields_kinds_and_sizes(tmp_path: Path) -> None:
    """Stored bytes are exact; kinds come from what the fields hold; the missing one is told."""
    write_shards(
        tmp_path / "tar", 40,
        member=lambda at: {"cls": b"%d" % (at * 7 % 3), "bin": bytes(at + 1), **({"txt": b"x"} if at % 4 else {})},
    )  # fmt: skip
    found = inspect(tmp_path / "tar")
    fields = {one.name: one for one in found.fields}
    assert (fields["bin"].bytes_min, fields["bin"].bytes_median, fields["bin"].bytes_max) == (1, 20, 40)
    assert {name: (one.kind, one.samples) for name, one in fields.items()} == {
        "cls": ("int", 40), "bin": ("bytes", 40), "txt": ("str", 30),
    }  # fmt: skip
    assert (found.format, found.samples, found.shards) == ("webdataset", 40, 3)
    assert sum(count for _, _, count in found.shard_sizes) == 3
    assert {one.code for one in found.warnings} == {"small-shards", "few-shards", "missing-field"}
    assert "10 of 40 samples have no field 'txt'" in [w.message for w in found.warnings if w.code == "missing-field"]


def test_rows_tell_their_types(tmp_path: Path) -> None:
    """Values of a table are named by their types; their sizes are those of the samples looked at."""
    (tmp_path / "table").mkdir()
    rows = {f"k{at}": {"tokens": np.arange(at + 1, dtype=np.int16), "text": "ab"} for at in range(10)}
    write_table(tmp_path / "table" / "rows.parquet", rows)
    fields = {one.name: one for one in inspect(tmp_path / "table").fields}
    assert fields["tokens"].kind == "int16 of 1 dimension"
    assert (fields["tokens"].bytes_min, fields["tokens"].bytes_max) == (2, 20)
    assert fields["text"].kind == "str"


@pytest.mark.parametrize(
    ("order", "verdict"), [("sorted", "ordered by label"), ("random", "shuffled"), ("one", "one label")]
)
def test_the_order_of_labels_is_told(tmp_path: Path, order: str, verdict: str) -> None:
    """Labels that lie side by side are found, by reading some of them where no index holds them."""
    labels = np.random.default_rng(3).integers(0, 10, 400)
    chosen = {"sorted": np.sort(labels), "random": labels, "one": labels * 0}[order]
    write_shards(tmp_path / "tar", 400, member=lambda at: {"cls": b"%d" % chosen[at]})
    found = inspect(tmp_path / "tar")
    assert found.shuffle is not None and found.shuffle.verdict == verdict
    assert ("ordered-by-label" in {one.code for one in found.warnings}) == (order == "sorted")
    assert sum(count for _, count in found.labels) == 400


@given(st.integers(2, 20), st.integers(0, 2**32 - 1), st.integers(300, 2_000))
def test_a_shuffled_dataset_is_never_called_ordered(classes: int, seed: int, samples: int) -> None:
    """Whatever the classes' shares are; sorted, the same labels are found out."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, samples, p=rng.dirichlet(np.ones(classes))).tolist()
    quality = shuffle_quality([labels])
    assert quality is not None and quality.verdict in ("shuffled", "one label")
    if quality.expected_share < 0.9:
        ordered = shuffle_quality([sorted(labels)])
        assert ordered is not None and ordered.verdict == "ordered by label"


def test_nothing_to_compare_gives_no_quality() -> None:
    """One sample has no neighbour."""
    assert shuffle_quality([["a"], ["b"]]) is None
    assert shuffle_quality([]) is None


def test_the_command_prints_both_ways(tmp_path: Path) -> None:
    """The text has a line for each part, the JSON the same numbers."""
    write_shards(tmp_path / "tar", 12)
    text = run("inspect", str(tmp_path / "tar"), home=tmp_path)
    assert text.returncode == 0, text.stderr
    assert "webdataset: 12 samples, 3 shards" in text.stdout
    assert "jpg  image, in 12 samples" in text.stdout
    told = json.loads(run("inspect", str(tmp_path / "tar"), "--json", home=tmp_path).stdout)
    assert told["samples"] == 12 and {one["name"] for one in told["fields"]} == {"jpg", "cls", "txt"}
    assert run("inspect", str(tmp_path / "nothing"), home=tmp_path).returncode == 1
