"""`stoker plan`: the design's formulas with numbers, the narrowest stage, the changes, the command."""

from __future__ import annotations

import json

import pytest

from stoker.cli.main import main
from stoker.errors import UsageError
from stoker.plan import Demand, Supply, plan
from stoker.units import parse_duration, parse_rate

IMAGES = Demand(batch=256, sample_bytes=110_000, step_s=0.18, gpus=8, tensor_bytes=150_528)


def test_the_designs_formula() -> None:
    """consumption = batch × sample bytes × 2 / step time, over the node's GPUs; every stage carries 1.2 × that."""
    found = plan(IMAGES, Supply(cores=96))
    assert IMAGES.consumption_bytes_per_s == pytest.approx(8 * 256 * 110_000 * 2 / 0.18)
    assert found.needed_bytes_per_s == pytest.approx(1.2 * IMAGES.consumption_bytes_per_s)
    assert found.needed_samples_per_s == pytest.approx(1.2 * 2 * 8 * 256 / 0.18)
    assert [stage.name for stage in found.stages] == ["store", "network", "decode", "pcie"]
    assert (found.verdict, found.narrowest.name, found.idle_share) == ("fed", "store", 0)


def test_too_few_cores_starve_and_the_plan_says_how_many_would_do() -> None:
    """4 cores decode 3,333 samples/s of 1.2 ms, the GPUs take 11,378: idle 71 %; 33 cores would do."""
    found = plan(IMAGES, Supply(source="nvme", cores=4, decode_s=1.2e-3))
    assert (found.verdict, found.narrowest.name) == ("starved", "decode")
    assert found.idle_share == pytest.approx(1 - 4 / 1.2e-3 / (8 * 256 / 0.18))
    (change,) = found.changes
    assert (change.stage, change.argument, change.value) == ("decode", "cores", 33)
    assert plan(IMAGES, Supply(source="nvme", cores=33, decode_s=1.2e-3)).verdict == "fed"
    assert plan(IMAGES, Supply(source="nvme", cores=32, decode_s=1.2e-3)).verdict == "tight"


def test_a_shared_store_is_divided_among_the_nodes_and_a_cache_relieves_it() -> None:
    """Ten nodes on 20 GB/s are tight; with half of the dataset cached the store gives half; all cached, nothing."""
    demand = Demand(256, 110_000, 0.18, gpus=8, nodes=10)
    bare = plan(demand, Supply(cores=96, store_bytes_per_s=20e9))
    assert (bare.verdict, bare.narrowest.name) == ("tight", "store")
    half = Supply(cores=96, store_bytes_per_s=20e9, cache_bytes=5e11, dataset_bytes=1e12)
    relieved = plan(demand, half)
    assert relieved.stages[0].supply_samples_per_s == pytest.approx(2 * bare.stages[0].supply_samples_per_s)
    whole = plan(demand, Supply(cores=96, store_bytes_per_s=1e6, cache_bytes=2e12, dataset_bytes=1e12))
    assert (whole.verdict, whole.narrowest.name) == ("fed", "nvme")


def test_the_cache_that_would_do_is_told_in_bytes() -> None:
    """Where the store is too narrow and the dataset's size is known."""
    supply = Supply(cores=96, store_bytes_per_s=1.5e9, dataset_bytes=1e12)
    (change,) = plan(IMAGES, supply).changes
    share = 1 - 1.5e9 / (1.2 * IMAGES.consumption_bytes_per_s)
    assert f"{share:.0%} of the dataset, {share * 1000:,.0f} GB a node" in change.text
    cached = Supply(cores=96, store_bytes_per_s=1.5e9, dataset_bytes=1e12, cache_bytes=share * 1.001e12)
    assert plan(IMAGES, cached).verdict == "fed"


def test_given_and_typical_rates_are_told_apart() -> None:
    """Each stage says which it used."""
    found = plan(IMAGES, Supply(source="lustre", cores=96, lustre_bytes_per_s=80e9, decode_s=0))
    assert [(s.name, s.given) for s in found.stages] == [("lustre", True), ("network", False), ("pcie", False)]
    assert [s.name for s in plan(IMAGES, Supply(source="memory", cores=1)).stages] == ["decode", "pcie"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Demand(0, 1, 1), "batch"),
        (lambda: Demand(1, 1, float("inf")), "step_s"),
        (lambda: Demand(1, -5, 1), "sample_bytes"),
        (lambda: Supply(source="tape"), "source"),
        (lambda: Supply(cache_bytes=5), "dataset_bytes"),
        (lambda: Supply(decode_s=-1), "decode_s"),
        (lambda: Supply(nvme_bytes_per_s=True), "nvme_bytes_per_s"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(make: object, words: str) -> None:
    """Named, with what was found."""
    with pytest.raises(UsageError, match=words):
        make()


COMMAND = ["plan", "--batch", "256", "--sample-bytes", "110KB", "--step-time", "180ms", "--gpus", "8"]


def test_the_command_prints_formula_stages_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 although it starves; the numbers are those of the Python function."""
    assert main([*COMMAND, "--cores", "4", "--decode-time", "1.2ms", "--from", "nvme"]) == 0
    said = capsys.readouterr().out
    assert "8 GPU(s) × 256 samples × 110 kB × 2 / 180.0 ms" in said
    assert "the 2: a byte goes into host memory and out again" in said
    assert "verdict: starved" in said
    assert "the GPUs would idle 71% of the time" in said
    assert "needs 33 cores" in said
    assert "← narrowest" in said


def test_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """One object, finite numbers or null."""
    assert main([*COMMAND, "--cores", "96", "--tensor-bytes", "150528", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = plan(IMAGES, Supply(cores=96))
    assert found == json.loads(json.dumps(expected.to_dict()))
    assert found["verdict"] == "fed"
    assert main([*COMMAND, "--cache", "2TB", "--dataset", "1TB", "--cores", "96", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stages"][0]["supply_samples_per_s"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--from", "tape"], "tape"),
        (["--store-rate", "fast"], "not a rate"),
        (["--step-time", "soon"], "not a duration"),
        (["--nodes", "0"], "nodes"),
        (["--cache", "1TB"], "--dataset"),
    ],
)
def test_wrong_options_are_usage_errors(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, the option's value named."""
    assert main([*COMMAND, *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("180ms", 0.18), ("1.5s", 1.5), ("0.25", 0.25), ("2min", 120), ("1h", 3600), ("7us", 7e-6)]
)
def test_durations(text: str, seconds: float) -> None:
    """With and without a unit."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("20GB/s", 20e9), ("100Gb/s", 12.5e9), ("100 Gbit/s", 12.5e9), ("7G", 7e9), ("1GiB/s", 2**30), ("800Mbps", 1e8)],
)
def test_rates(text: str, rate: float) -> None:
    """Capital B is bytes, small b is bits."""
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "s", "ms", "-5ms", "1 day", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    """Is an error with a hint."""
    with pytest.raises(UsageError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "GB/s", "-5GB/s", "5 parsecs", "5GB/min"])
def test_what_is_no_rate(text: str) -> None:
    """Is an error with a hint."""
    with pytest.raises(UsageError, match="not a rate"):
        parse_rate(text)
