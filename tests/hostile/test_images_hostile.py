"""Every picture of the real data gives the outcome of its key, and damage of any kind is a SampleError, never more."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import support_decode as support

GIB = 1 << 30
GROWN_BYTES_MAX = 150_000_000
"""An image of 12 Mpx is the largest that the key says decodes; Pillow holds it three times for a moment."""
SECONDS_MAX = 5


def keyed(data: Path) -> dict[str, dict[str, Any]]:
    """Images with what the key expects of each."""
    sets = json.loads((data / "expected.json").read_text())["sets"]
    files = {**sets["images"]["files"], **sets["hostile_images"]["files"]}
    return {name: entry["expect"] for name, entry in files.items() if entry.get("expect")}


def may_decode(expect: dict[str, Any]) -> bool:
    """Whether the key allows a decode."""
    return expect["verdict"].startswith(("decode", "readers disagree"))


def must_decode(expect: dict[str, Any]) -> bool:
    """Whether the key demands a decode."""
    return expect["verdict"] == "decode" or expect["verdict"].startswith("decodes, but")


@pytest.fixture(scope="module")
def outcomes(shared_data: Path) -> dict[str, dict[str, Any]]:
    """What the whole-image decoder gives for every image, in 2 GiB of address space."""
    return support.run(list(keyed(shared_data)), shared_data, "Image", 2 * GIB, timeout_s=150)


def test_every_image_decodes_or_is_refused_as_its_key_says(shared_data: Path, outcomes: dict[str, Any]) -> None:
    """Sizes are exact, means within 1.0 (16 bits: of value >> 8), and what is to be refused is refused."""
    faults = []
    for name, expect in keyed(shared_data).items():
        found = outcomes[name]
        if "error" in found:
            if must_decode(expect):
                faults.append((name, "expected a picture", found["error"]))
            continue
        if not may_decode(expect):
            faults.append((name, "expected a refusal", expect["verdict"]))
        if "rgb_mean" in expect:
            width, height = expect.get("size_after_exif_transpose") or (expect["width"], expect["height"])
            mean = [expect["raw_mean"] / 256] * 3 if "raw_mean" in expect else expect["rgb_mean"]
            if (
                found["size"] != [height, width, 3]
                or max(abs(a - b) for a, b in zip(found["mean"], mean, strict=True)) > 1
            ):
                faults.append((name, (height, width, mean), (found["size"], found["mean"])))
    assert faults == []
    assert len(outcomes) > 900 and sum("error" in found for found in outcomes.values()) > 50


def test_no_image_takes_much_memory_or_time(shared_data: Path, outcomes: dict[str, Any]) -> None:
    """Bombs are refused without growing the process, everything else stays within bounds."""
    for name, expect in keyed(shared_data).items():
        limit = 2_000_000 if expect["verdict"].startswith("bomb") else GROWN_BYTES_MAX
        assert outcomes[name]["grown_bytes"] <= limit, name
        assert outcomes[name]["seconds"] <= SECONDS_MAX, name


def test_cropping_decoders_refuse_the_same_images(shared_data: Path, outcomes: dict[str, Any]) -> None:
    """RandomResizedCrop decodes exactly those images that the whole-image decoder does, to its own size."""
    found = support.run(list(keyed(shared_data)), shared_data, "RandomResizedCrop", 6 * GIB, timeout_s=150)
    assert {name for name in found if "error" in found[name]} == {
        name for name in outcomes if "error" in outcomes[name]
    }
    assert all(entry["size"] == [24, 24, 3] for entry in found.values() if "size" in entry)


def variants() -> dict[str, bytes]:
    """Small pictures in every format that is opened."""
    picture = support.photo(40, 56, 3)
    kinds = {"JPEG": {}, "PNG": {}, "WEBP": {}, "GIF": {}, "TIFF": {"compression": "tiff_lzw"}, "BMP": {}, "PPM": {}}
    kinds |= {"JPEG2000": {}, "AVIF": {}}
    made = {kind.lower(): support.encode(picture, kind, **options) for kind, options in kinds.items()}
    return {**made, "progressive": support.encode(picture, "JPEG", progressive=True)}


@pytest.mark.parametrize("decoder", ["Image", "CenterCrop"])
def test_random_damage_is_a_sample_error_or_a_picture(tmp_path: Path, decoder: str) -> None:
    """Cut, flipped, doubled and zeroed bytes in every format end in a picture or a SampleError, nothing else."""
    damage = random.Random(7)
    names = []
    for kind, whole in variants().items():
        for number in range(60):
            raw = bytearray(whole)
            at = damage.randrange(len(raw))
            match number % 4:
                case 0:
                    del raw[at:]
                case 1:
                    for _ in range(damage.randrange(1, 6)):
                        raw[damage.randrange(min(len(raw), 200))] = damage.randrange(256)
                case 2:
                    raw[at:at] = raw[at : at + damage.randrange(1, 99)]
                case _:
                    raw[at : at + 50] = bytes(len(raw[at : at + 50]))
            names.append(f"{kind}-{number}")
            (tmp_path / names[-1]).write_bytes(raw)
    found = support.run(names, tmp_path, decoder, 6 * GIB, timeout_s=150)
    refused = sum("error" in entry for entry in found.values())
    assert len(found) == len(names) and len(names) / 4 < refused < len(names)


def test_every_cut_of_a_jpeg_and_a_png_is_refused(tmp_path: Path) -> None:
    """A JPEG or PNG that ends anywhere before its last chunk or marker is not taken for whole."""
    whole = variants()
    for kind, tail in (("jpeg", 2), ("progressive", 2), ("png", 16)):
        for length in range(0, len(whole[kind]) - tail, 37):
            (tmp_path / f"{kind}-{length:06}").write_bytes(whole[kind][:length])
    names = sorted(path.name for path in tmp_path.iterdir())
    found = support.run(names, tmp_path, "Image", 2 * GIB, timeout_s=150)
    assert [name for name in names if "error" not in found[name]] == []
    assert len(names) > 50
