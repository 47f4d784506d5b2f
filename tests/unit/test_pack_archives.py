"""Archives as sources: the same pack as from the folder, and nothing dangerous from hostile ones."""

from __future__ import annotations

import io
import os
import random
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import zstandard

from stoker.errors import SampleError, ShardError, UsageError
from stoker.format.limits import FILE_BYTES_MAX
from stoker.format.tar import BLOCK, header
from stoker.pack import pack
from support_decode import encode, photo
from support_pack import by_source, make_photos, packed, tar_of, tree, walk

PICTURE = encode(photo(10, 12, 1), "JPEG")


def zip_of(folder: Path, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """The folder as a zip."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for path in walk(folder):
            archive.write(path, path.relative_to(folder))
    return file.getvalue()


MAKERS = {
    "a.zip": zip_of,
    "b.ZIP": lambda folder: zip_of(folder, zipfile.ZIP_STORED),
    "c.tar": tar_of,
    "d.tar.gz": lambda folder: __import__("gzip").compress(tar_of(folder)),
    "e.tgz": lambda folder: tar_of(folder, format=tarfile.GNU_FORMAT),
    "f.tar.zst": lambda folder: zstandard.compress(tar_of(folder)),
    "g.tar.xz": lambda folder: __import__("lzma").compress(tar_of(folder)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_an_archive_is_packed_like_its_folder(tmp_path: Path, name: str) -> None:
    """Whatever kind of archive, recognised by content: the shards are those of the folder, byte for byte."""
    source = make_photos(tmp_path / "in", count=12)
    (tmp_path / name).write_bytes(MAKERS[name](source))
    pack(source, tmp_path / "folder", shards=3)
    report = pack(tmp_path / name, tmp_path / "out", shards=3)
    from_folder, from_archive = tree(tmp_path / "folder"), tree(tmp_path / "out")
    assert report.samples == 12 and report.findings == ()
    for shard in (
        "shard_00000.tar",
        "shard_00001.tar",
        "shard_00002.tar",
        "_stoker/index.arrow",
        "_stoker/shards.arrow",
    ):
        assert from_archive[shard] == from_folder[shard]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in", name, "folder", "out"])


def test_several_archives_are_folders_of_one_source(tmp_path: Path) -> None:
    """A pattern names several archives; each is a folder of its name."""
    for number in range(2):
        (tmp_path / f"part{number}.zip").write_bytes(zip_of(make_photos(tmp_path / f"in{number}", count=3)))
    pack(f"{tmp_path}/part{{0..1}}.zip", tmp_path / "out", shards=1, label="none")
    assert sorted(by_source(packed(tmp_path / "out"))) == sorted(
        f"part{part}/class_{n}/photo_00{n}.jpg" for part in range(2) for n in range(3)
    )
    with pytest.raises(UsageError, match="must name archives"):
        pack(f"{tmp_path}/in{{0..1}}", tmp_path / "other")


def hostile_tar(*members: tuple[str, bytes, bytes]) -> bytes:
    """A tar of (name, type, content)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size, info.linkname = kind, len(content), "/etc/passwd"
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def test_names_that_leave_the_archive_are_passed_over(tmp_path: Path) -> None:
    """Absolute names, "..", links and devices give findings; what is harmless is packed; nothing is unpacked."""
    (tmp_path / "h.tar").write_bytes(
        hostile_tar(
            ("../../up.jpg", tarfile.REGTYPE, PICTURE),
            ("/abs.jpg", tarfile.REGTYPE, PICTURE),
            ("a/../../b.jpg", tarfile.REGTYPE, PICTURE),
            ("link.jpg", tarfile.SYMTYPE, b""),
            ("dev.jpg", tarfile.CHRTYPE, b""),
            ("./ok/./fine.jpg", tarfile.REGTYPE, PICTURE),
            ("ok/fine.jpg", tarfile.REGTYPE, PICTURE + b"x"),
            ("_stoker/x.jpg", tarfile.REGTYPE, PICTURE),
        )
    )
    report = pack(tmp_path / "h.tar", tmp_path / "out")
    samples = packed(tmp_path / "out")
    assert [(s.columns["source"], s.fields["jpg"]) for s in samples] == [("ok/fine.jpg", PICTURE)]
    codes = sorted((finding.code, finding.count) for finding in report.findings)
    assert [code for code, _ in codes].count("escaping-name") == 3
    assert {"link-member", "special-member", "duplicate-member", "hidden-file"} <= {code for code, _ in codes}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h.tar", "out"]


def test_hostile_zips_are_passed_over_or_refused(tmp_path: Path) -> None:
    """Escaping names and links are passed over; damaged, lying and encrypted members are bad samples."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../up.jpg", PICTURE)
        archive.writestr("good.jpg", PICTURE)
        link = zipfile.ZipInfo("link.jpg")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("damaged.jpg", PICTURE)
        archive.writestr("lying.jpg", PICTURE)
        archive.writestr("secret.jpg", PICTURE)
    raw = bytearray(file.getvalue())
    raw[raw.index(b"damaged.jpg") + 30] ^= 0xFF
    for name, offset, value in ((b"lying.jpg", 24, struct.pack("<I", 1 << 30)), (b"secret.jpg", 8, b"\x01\x00")):
        header = raw.rindex(name) - 46
        raw[header + offset : header + offset + len(value)] = value
    (tmp_path / "h.zip").write_bytes(raw)
    report = pack(tmp_path / "h.zip", tmp_path / "out", on_bad="skip")
    assert [s.columns["source"] for s in packed(tmp_path / "out")] == ["good.jpg"]
    assert sorted(f.where for f in report.findings if f.code == "undecodable") == [
        "damaged.jpg",
        "lying.jpg",
        "secret.jpg",
    ]
    assert {f.code for f in report.findings} == {"undecodable", "escaping-name", "special-member"}
    with pytest.raises(SampleError, match=r"h\.zip"):
        pack(tmp_path / "h.zip", tmp_path / "fail")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("cut.tar", tar_of), ("cut.tar.gz", MAKERS["d.tar.gz"]), ("cut.tar.zst", MAKERS["f.tar.zst"]),
        ("cut.zip", zip_of),
    ],
)  # fmt: skip
def test_a_cut_archive_is_refused(tmp_path: Path, name: str, content: object) -> None:
    """An archive that ends too early is an error that names it, whatever its kind."""
    source = make_photos(tmp_path / "in", count=6)
    whole = content(source)
    (tmp_path / name).write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(ShardError, match=name):
        pack(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "content", [b"", b"<html>", bytes(20_000), b"PK\x05\x06" + bytes(18), b"PK\x03\x04" + bytes(99)]
)
@pytest.mark.parametrize("name", ["x.zip", "x.tar"])
def test_what_is_no_archive_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    """Other bytes under an archive's name are an error, and nothing is written."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ShardError):
        pack(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_hostile_names_are_packed_and_kept(shared_data: Path, tmp_path: Path) -> None:
    """Every picture with a hostile name becomes a sample whose source column is its name, from the tar and unpacked."""
    archive = shared_data / "hostile_names/names_a.tar"
    from_tar = pack(archive, tmp_path / "a")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "in", filter="fully_trusted")
        contents = {m.name: opened.extractfile(m).read() for m in opened.getmembers() if m.isfile()}
    from_folder = pack(tmp_path / "in", tmp_path / "b")
    assert from_tar.samples == from_folder.samples > 20
    for out in ("a", "b"):
        found = by_source(packed(tmp_path / out))
        assert all(
            sample.fields["jpg"] == contents[source] for source, sample in found.items() if "jpg" in sample.fields
        )
        assert len({sample.key for sample in found.values()}) == len(found)
        assert all("." not in sample.key for sample in found.values())


def test_hostile_links_are_followed_inside_only(shared_data: Path, tmp_path: Path) -> None:
    """Links out of the folder, loops and FIFOs are passed over without hanging; a link inside is a file."""
    with tarfile.open(shared_data / "hostile_names/links.tar") as opened:
        opened.extractall(tmp_path / "in", filter="fully_trusted")
    pack(tmp_path / "in", tmp_path / "out")
    found = set(by_source(packed(tmp_path / "out")))
    assert {"links/a/real.jpg", "links/n01 space/x.jpg", "links/a/link.jpg"} <= found
    assert not found & {"links/outside.jpg", "links/loop1.jpg", "links/pipe.jpg", "links/dangling.jpg"}


def promise(raw: bytearray, name: bytes, size: int) -> None:
    """Write another size into a zip's table of contents."""
    header = raw.rindex(name) - 46
    raw[header + 24 : header + 28] = struct.pack("<I", size)


def test_files_beyond_the_limit_are_not_read(tmp_path: Path) -> None:
    """A file, a zip's member and a tar's member of more than 1 GiB are bad samples by their declared sizes alone."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "good.jpg").write_bytes(PICTURE)
    with (folder / "huge.jpg").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with (tmp_path / "h.tar").open("wb") as file:
        file.write(header("huge.jpg", FILE_BYTES_MAX + 1))
        file.seek(-(-(FILE_BYTES_MAX + 1) // BLOCK) * BLOCK, os.SEEK_CUR)
        file.write(header("good.jpg", len(PICTURE)) + PICTURE + bytes(-len(PICTURE) % BLOCK + 2 * BLOCK))
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("good.jpg", PICTURE)
        archive.writestr("huge.jpg", PICTURE)
    raw = bytearray(memory.getvalue())
    promise(raw, b"huge.jpg", FILE_BYTES_MAX + 1)
    (tmp_path / "h.zip").write_bytes(raw)
    for name in ("in", "h.tar", "h.zip"):
        tracemalloc.start()
        report = pack(tmp_path / name, tmp_path / f"{name}.out", shards=1, on_bad="skip")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (report.samples, report.skipped) == (1, 1) and peak < 50 << 20
        assert f"at most {FILE_BYTES_MAX}" in report.findings[0].message
        with pytest.raises(SampleError, match=r"huge\.jpg"):
            pack(tmp_path / name, tmp_path / f"{name}.fail", shards=1)


@pytest.mark.parametrize(
    ("method", "peak_max"),
    [(zipfile.ZIP_DEFLATED, 16 << 20), (zipfile.ZIP_LZMA, 96 << 20), (zipfile.ZIP_BZIP2, 128 << 20)],
)
def test_a_member_that_promises_less_than_it_holds(tmp_path: Path, method: int, peak_max: int) -> None:
    """However well its bytes are compressed, reading stops at the size that it promised, not when memory is full."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", method, compresslevel=1) as archive, archive.open("bomb.jpg", "w") as member:
        for _ in range(192):
            member.write(bytes(1 << 20))
    raw = bytearray(memory.getvalue())
    promise(raw, b"bomb.jpg", 1_000)
    (tmp_path / "b.zip").write_bytes(raw)
    tracemalloc.start()
    with pytest.raises(SampleError, match=r"bomb\.jpg: cannot be read: BadZipFile"):
        pack(tmp_path / "b.zip", tmp_path / "out", shards=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < peak_max


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_every_way_of_compressing_is_read_whole(tmp_path: Path, method: int) -> None:
    """Reading by pieces gives all bytes, of members larger than any piece too."""
    noise = random.Random(1).randbytes(300_000)
    with zipfile.ZipFile(tmp_path / "m.zip", "w", method) as archive:
        archive.writestr("a.jpg", PICTURE)
        archive.writestr("a.txt", noise)
    pack(tmp_path / "m.zip", tmp_path / "out", shards=1)
    (sample,) = packed(tmp_path / "out")
    assert (sample.fields["jpg"], sample.fields["txt"]) == (PICTURE, noise)
