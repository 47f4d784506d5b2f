"""The tar parser and writer, against the standard library where that defines the behaviour, and at every limit."""

from __future__ import annotations

import io
import tarfile

import pytest

from stoker.errors import ShardError, UsageError
from stoker.format import WebDataset, WebDatasetWriter, compression_of, tar, webdataset
from stoker.format.base import Findings
from stoker.format.limits import FIELD_NAME_BYTES_MAX, NAME_BYTES_MAX, TAR_EXTENSION_BYTES_MAX
from stoker.format.tar import BLOCK, RECORD, Member, TarScan, header, padding
from stoker.testing.format_suite import BytesReader

END = bytes(RECORD)


def members(data: bytes) -> list[Member]:
    return list(TarScan(BytesReader(data), Findings(), skip_bytes_min=65_536))


def codes(data: bytes) -> list[str]:
    return [finding.code for finding in WebDataset().scan(BytesReader(data), skip_bytes_min=65_536).findings]


def member(name: str, data: bytes = b"data") -> bytes:
    return header(name, len(data)) + data + padding(len(data))


def raw_header(
    name: bytes = b"a.bin", size: bytes = b"00000000004\0", kind: bytes = b"0", magic: bytes = b"ustar\x0000"
) -> bytes:
    """A header with a right checksum and whatever else."""
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[124:136] = size
    block[156:157] = kind
    block[257 : 257 + len(magic)] = magic
    block[148:156] = b"%06o\x00 " % (sum(block) + 256)
    return bytes(block)


def extension(kind: bytes, data: bytes) -> bytes:
    return raw_header(b"ext", b"%011o\x00" % len(data), kind) + data + padding(len(data))


def pax(*records: tuple[str, bytes]) -> bytes:
    lines = b""
    for name, value in records:
        rest = b" " + name.encode() + b"=" + value + b"\n"
        length = len(rest) + len(str(len(rest)))
        length = len(rest) + len(str(length))
        lines += str(length).encode() + rest
    return lines


def by_tarfile(dialect: int, names: list[str], sizes: list[int]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=dialect) as file:
        for name, size in zip(names, sizes, strict=True):
            info = tarfile.TarInfo(name)
            info.size = size
            file.addfile(info, io.BytesIO(b"x" * size))
    return out.getvalue()


@pytest.mark.parametrize("dialect", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_agrees_with_tarfile(dialect: int) -> None:
    """Names, offsets and sizes are those of the standard library for its three dialects."""
    long = "directory/" * (14 if dialect == tarfile.USTAR_FORMAT else 40)
    names = ["a.bin", f"{long}name.bin", "x" * 95 + ".bin", "ünï/çødé.bin", "trailing space .bin"]
    data = by_tarfile(dialect, names, [0, 1, 511, 512, 70_000])
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        expected = [Member(info.name, info.offset_data, info.size) for info in file]
    assert members(data) == expected


@pytest.mark.parametrize("name", ["a.b", "x" * 96 + ".jpg", "folder/" * 13 + "a.bin", "y" * 200 + ".cls", "é.jpg"])
@pytest.mark.parametrize("size", [0, 1, 8**11 - 1, 8**11, 1 << 45])
def test_writes_the_headers_of_tarfile(name: str, size: int) -> None:
    """A header is the one that the standard library writes: ustar, and pax only where a name or size needs it."""
    info = tarfile.TarInfo(name)
    info.size = size
    if name.isascii() and len(name) <= 100 and size < 8**11:
        assert header(name, size) == info.tobuf(tarfile.USTAR_FORMAT)
    else:
        assert header(name, size) == info.tobuf(tarfile.PAX_FORMAT, "utf-8")


def test_written_shards_are_read_by_tarfile() -> None:
    """Mode, owner and times are the same everywhere: 0644, 0, 0."""
    out = io.BytesIO()
    writer = WebDatasetWriter(out)
    writer.add("folder/key", {"jpg": b"picture", "cls": b"7"})
    writer.close()
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as file:
        assert [(i.name, i.size, i.mode, i.uid, i.gid, i.mtime) for i in file] == [
            ("folder/key.jpg", 7, 0o644, 0, 0, 0),
            ("folder/key.cls", 1, 0o644, 0, 0, 0),
        ]
    assert len(out.getvalue()) % RECORD == 0


@pytest.mark.parametrize(
    ("size", "what"),
    [
        (b"\xff" * 12, "negative"),
        (b"\xc0" + b"\0" * 11, "negative"),
        (b"-0000000004\0", "octal"),
        (b"0000000009\0\0", "octal"),
        (b"00_00000004\0", "octal"),
        (b"+0000000004\0", "octal"),
        (b"\x80" + b"\xff" * 11, "is cut"),
        (b"77777777777\0", "is cut"),
    ],
)
def test_refuses_impossible_sizes(size: bytes, what: str) -> None:
    """A size that is negative, no number or larger than the shard is an error, and nothing is allocated for it."""
    with pytest.raises(ShardError, match=what):
        members(raw_header(size=size) + b"data" + END)


def test_reads_sizes_in_base_256() -> None:
    """The form for large sizes is understood for small ones too."""
    data = raw_header(size=b"\x80" + (600).to_bytes(11, "big")) + bytes(1024) + END
    assert members(data) == [Member("a.bin", BLOCK, 600)]


def test_reads_an_empty_size_and_signed_checksums() -> None:
    """Old writers leave a size blank for 0, and sum bytes with their sign."""
    assert members(raw_header(size=bytes(12)) + END) == [Member("a.bin", BLOCK, 0)]
    block = bytearray(raw_header(name="é.bin".encode()))
    block[148:156] = b"%06o\x00 " % (256 + sum(byte - 256 * (byte > 127) for byte in block[:148] + block[156:]))
    assert members(bytes(block) + b"data" + padding(4) + END) == [Member("é.bin", BLOCK, 4)]


def test_a_name_that_is_no_utf_8_is_readable() -> None:
    """Bytes that are no text are shown escaped: the name is a label."""
    assert members(raw_header(name=b"caf\xe9.jpg") + b"data" + padding(4) + END)[0].name == "caf\\xe9.jpg"


def test_pax_wins_over_the_header_and_global_pax_is_weaker() -> None:
    """path and size of a pax header count for one member, those of a global one for the rest."""
    data = (
        extension(b"g", pax(("path", b"world.bin")))
        + extension(b"x", pax(("path", b"mine.bin"), ("size", b"4"), ("comment", b"a=b\nc")))
        + raw_header(size=b"00000000000\0")
        + b"data"
        + padding(4)
        + raw_header()
        + b"data"
        + padding(4)
        + END
    )
    assert [(one.name, one.size) for one in members(data)] == [("mine.bin", 4), ("world.bin", 4)]


@pytest.mark.parametrize(
    "record",
    [
        b"12 path=a.b",
        b"5 path=a.bin\n",
        b"999 path=a\n",
        b"path=a.bin\n",
        b"0 path=\n",
        b"\xff\xff",
        b"10 =abcde\n",
        b"-3 a=b\n",
    ],
)
def test_refuses_damaged_pax(record: bytes) -> None:
    """A record whose length does not fit its line is an error."""
    with pytest.raises(ShardError, match="corrupt pax header"):
        members(extension(b"x", record) + member("a.bin") + END)


@pytest.mark.parametrize("size", [b"-1", b"4.0", b"0x10", b"", b"9" * 30])
def test_refuses_a_pax_size_that_is_none(size: bytes) -> None:
    """A pax size is decimal digits, and not too many."""
    with pytest.raises(ShardError, match="expected a size"):
        members(extension(b"x", pax(("size", size))) + member("a.bin") + END)


def test_refuses_sparse_members() -> None:
    """The bytes of a sparse member do not lie in one piece: an error, not a wrong sample."""
    for data in (raw_header(kind=b"S"), extension(b"x", pax(("GNU.sparse.major", b"1"))) + raw_header()):
        with pytest.raises(ShardError, match="sparse"):
            members(data + b"data" + padding(4) + END)


def test_limits_the_extension_headers() -> None:
    """A pax header is read into memory, so that its size is limited, and so is their number before one member."""
    with pytest.raises(ShardError, match=r"extension header of .* bytes, at most"):
        members(extension(b"x", bytes(TAR_EXTENSION_BYTES_MAX + 1)) + member("a.bin") + END)
    with pytest.raises(ShardError, match="extension headers for one member"):
        members(extension(b"K", b"link") * 17 + member("a.bin") + END)
    with pytest.raises(ShardError, match="is cut"):
        members(raw_header(size=b"00000100000\0", kind=b"L") + b"short")


def test_limits_names() -> None:
    """A name longer than any file system allows is an error."""
    data = extension(b"L", b"n" * (NAME_BYTES_MAX + 1) + b"\0") + member("a.bin") + END
    with pytest.raises(ShardError, match="a name of 16385 bytes"):
        members(data)
    assert codes(member(f"key.{'e' * 60}") + END) == []
    long = extension(b"x", pax(("path", b"key." + b"e" * (FIELD_NAME_BYTES_MAX + 1)))) + member("a.bin") + END
    assert codes(long) == ["damaged-shard"]


def test_limits_the_number_of_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are counted, because all of them are held while a shard is indexed."""
    monkeypatch.setattr(tar, "TAR_MEMBERS_MAX", 3)
    assert len(members(member("a.bin", b"") * 3 + END)) == 3
    with pytest.raises(ShardError, match="more than 3 members"):
        members(member("a.bin", b"") * 4 + END)


@pytest.mark.parametrize(
    ("kind", "code"), [(b"1", "link-member"), (b"2", "link-member"), (b"6", "special-member"), (b"3", "special-member")]
)
def test_only_regular_members_are_samples(kind: bytes, code: str) -> None:
    """Links, pipes and devices are passed over with a word, whatever size they claim."""
    data = raw_header(kind=kind, size=b"00000001000\0") + member("b.jpg") + END
    assert [one.name for one in members(data)] == ["b.jpg"]
    assert codes(data) == [code]


def test_directories_and_contiguous_members() -> None:
    """Directories need no word; types NUL and 7 are regular files; a NUL type with a slash is an old directory."""
    data = b"".join(
        [
            raw_header(b"folder/", bytes(12), b"5"),
            raw_header(b"old/", b"00000000000\0", b"\0", b""),
            raw_header(b"a.bin", kind=b"\0", magic=b"") + b"data" + padding(4),
            raw_header(b"b.bin", kind=b"7") + b"data" + padding(4),
            END,
        ]
    )
    assert [one.name for one in members(data)] == ["a.bin", "b.bin"]
    assert codes(data) == []


def test_an_unknown_type_is_passed_over_with_its_data() -> None:
    """A vendor's member takes its place, is no sample, and is counted."""
    data = raw_header(b"label", kind=b"V") + b"data" + padding(4) + member("a.jpg") + END
    assert [one.name for one in members(data)] == ["a.jpg"]
    assert codes(data) == ["special-member"]


def test_a_damaged_header_is_an_error_where_it_stands() -> None:
    """The error names shard and offset, and what came before is kept."""
    data = bytearray(member("a.jpg") + member("b.jpg") + END)
    data[2 * BLOCK + 3] ^= 1
    scan = WebDataset().scan(BytesReader(bytes(data), "s.tar"), skip_bytes_min=65_536)
    assert [one.key for one in scan.samples] == ["a"]
    assert [(one.code, one.where) for one in scan.errors] == [("damaged-shard", "s.tar@1024")]


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        (bytes(BLOCK), []),
        (bytes(2 * BLOCK), []),
        (bytes(5 * RECORD), []),
        (b"", ["damaged-shard"]),
        (bytes(100), ["damaged-shard"]),
        (bytes(2 * BLOCK) + b"junk", ["trailing-junk"]),
        (bytes(2 * BLOCK) + bytes(9 * RECORD) + b"junk" * 1000, ["trailing-junk"]),
        (bytes(2 * BLOCK) + member("b.jpg") + END, ["second-archive"]),
        (bytes(9 * BLOCK) + member("b.jpg") + END, ["damaged-shard"]),
        (bytes(BLOCK) + member("b.jpg") + END, ["damaged-shard"]),
        (bytes(4 * BLOCK) + b"cut off data".ljust(BLOCK) + member("b.jpg") + END, ["damaged-shard"]),
    ],
)
def test_what_follows_the_end_is_looked_at(rest: bytes, found: list[str]) -> None:
    """Padding is fine, junk and a second archive are warnings, a hole or a missing end mark is an error."""
    assert codes(member("a.jpg") + rest) == found


def test_limits_how_far_behind_the_end_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless NULs or junk behind the end mark cost bounded reading, and have a finding."""
    monkeypatch.setattr(tar, "TAR_BEHIND_BYTES_MAX", 20 * RECORD)
    for rest, code in ((bytes(400 * RECORD), "damaged-shard"), (bytes(1024) + b"junk" * 100_000, "trailing-junk")):
        reader = BytesReader(member("a.jpg") + rest)
        scan = WebDataset().scan(reader, skip_bytes_min=512)
        assert [one.code for one in scan.findings] == [code]
        assert reader.bytes_read < 30 * RECORD


def test_all_zero_is_a_lost_write() -> None:
    """A tar of one record of NULs is empty; more NULs than that are an error."""
    assert codes(bytes(RECORD)) == ["empty-shard"]
    assert codes(bytes(RECORD + BLOCK)) == ["damaged-shard"]


def test_a_git_lfs_pointer_is_called_by_its_name() -> None:
    """The hint says what to do about the commonest fake shard."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    scan = WebDataset().scan(BytesReader(pointer), skip_bytes_min=65_536)
    assert "git lfs pull" in scan.errors[0].message


def test_joins_fields_over_the_whole_shard() -> None:
    """Fields of one key need not be neighbours; of a field that comes twice the first counts."""
    data = member("a.jpg") + member("b.jpg") + member("a.CLS", b"1") + member("a.jpg", b"second") + END
    scan = WebDataset().scan(BytesReader(data), skip_bytes_min=65_536)
    assert [(one.key, [place.name for place in one.fields]) for one in scan.samples] == [
        ("a", ["jpg", "cls"]),
        ("b", ["jpg"]),
    ]
    assert scan.samples[0].fields[0].offset == BLOCK
    assert [one.code for one in scan.findings] == ["duplicate-field"]


def test_findings_are_kept_in_bounded_number() -> None:
    """A shard of a million faults is described by a few findings and counts."""
    data = b"".join(member(f"folder/file{n}", b"") for n in range(200)) + END
    findings = WebDataset().scan(BytesReader(data), skip_bytes_min=65_536).findings
    assert len(findings) == 20
    assert sum(one.count for one in findings) == 200


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("", "jpg"), ("a", ""), ("a.b", "jpg"), ("a", "JPG"), ("../a", "jpg"), ("/a", "jpg"),
        (".hidden", "jpg"), ("__MACOSX/a", "jpg"), ("folder/", "jpg"), ("a\0b", "jpg"), ("k" * NAME_BYTES_MAX, "jpg"),
    ],
)  # fmt: skip
def test_refuses_names_that_would_be_read_as_others(key: str, field: str) -> None:
    """What a writer takes, every reader gives back: other names are wrong usage."""
    with pytest.raises(UsageError, match="cannot be a member"):
        WebDatasetWriter(io.BytesIO()).add(key, {"cls": b"", field: b""})


def test_a_refused_sample_leaves_the_shard_whole() -> None:
    """Wrong usage is found before the first byte is written, and the shard can go on."""
    out = io.BytesIO()
    writer = WebDatasetWriter(out)
    with pytest.raises(UsageError):
        writer.add("a.b", {"jpg": b"x"})
    writer.add("a", {"jpg": b"x"})
    writer.close()
    assert [one.name for one in members(out.getvalue())] == ["a.jpg"]
    with pytest.raises(UsageError, match="closed"):
        writer.add("b", {"jpg": b"x"})


def test_a_shards_name_says_how_to_write_it() -> None:
    """The suffix chooses the compression; an unknown one is refused."""
    assert [compression_of(f"s_00001{suffix}") for suffix in (".tar", ".tar.gz", ".tgz", ".tar.zst")] == [
        "",
        "gzip",
        "gzip",
        "zstd",
    ]
    with pytest.raises(UsageError, match="cannot write"):
        compression_of("shard.tar.lz4")
    assert webdataset.WebDataset().owns("a/B.TAR.BZ2")
