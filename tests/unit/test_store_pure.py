"""Ranges, digests, URLs and options: what stores decide without touching anything."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import MissingExtraError, UsageError
from stoker.store import ByteRange, StoreOptions, TreeDigest, connect, digest_of, expand, innermost, parse
from stoker.store.clients import make_client
from stoker.store.digest import BLOCK_BYTES
from stoker.store.objects import Objects
from stoker.store.ranges import coalesce, covering, split

PIECES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 300)).map(lambda p: ByteRange(p[0], p[0] + p[1])))


@given(wanted=PIECES, gap=st.integers(0, 200), length=st.integers(1, 2000))
def test_coalesced_requests_cover_what_is_wanted(wanted: list[ByteRange], gap: int, length: int) -> None:
    """Each wanted range lies whole in one request; requests begin and end at wanted bytes and read no wide gap."""
    requests = coalesce(wanted, gap_bytes_max=gap, length_bytes_max=length)
    for piece in wanted:
        request = requests[covering(requests, piece)]
        assert request.start <= piece.start and piece.stop <= request.stop
    assert {r.start for r in requests} <= {p.start for p in wanted} and {r.stop for r in requests} <= {
        p.stop for p in wanted
    }
    longest = max((len(piece) for piece in wanted), default=0)
    assert all(len(request) <= max(length, longest) for request in requests)
    covered = {byte for piece in wanted for byte in range(piece.start, piece.stop)}
    for request in requests:
        missing = 0
        for byte in range(request.start, request.stop):
            missing = 0 if byte in covered else missing + 1
            assert missing <= gap


def test_coalesce_examples() -> None:
    """Near ranges merge up to the gap, and not beyond the length."""
    wanted = [ByteRange(10, 20), ByteRange(0, 5), ByteRange(30, 31)]
    assert coalesce(wanted, gap_bytes_max=5, length_bytes_max=100) == [ByteRange(0, 20), ByteRange(30, 31)]
    assert coalesce(wanted, gap_bytes_max=10, length_bytes_max=100) == [ByteRange(0, 31)]
    assert coalesce(wanted, gap_bytes_max=10, length_bytes_max=20) == [ByteRange(0, 20), ByteRange(30, 31)]
    assert coalesce([], gap_bytes_max=10, length_bytes_max=20) == []
    with pytest.raises(ValueError, match="no request covers"):
        covering([ByteRange(0, 5)], ByteRange(3, 6))


@given(start=st.integers(0, 100), size=st.integers(0, 1000), length=st.integers(1, 300))
def test_split_pieces_make_the_whole(start: int, size: int, length: int) -> None:
    """The pieces follow each other without a gap, none empty, none too long."""
    pieces = split(ByteRange(start, start + size), length_bytes_max=length)
    assert b"".join(bytes(len(piece)) for piece in pieces) == bytes(size)
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert all(0 < len(piece) <= length for piece in pieces)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 5])
def test_digest_is_that_of_the_blocks(size: int) -> None:
    """The digest is BLAKE3 over the BLAKE3 digests of the 8 MiB blocks, however the bytes arrive."""
    data = (b"stoker" * (size // 6 + 1))[:size]
    blocks = [blake3(data[at : at + BLOCK_BYTES]).digest() for at in range(0, size, BLOCK_BYTES)]
    expected = blake3(b"".join(blocks)).hexdigest()
    pieces = TreeDigest()
    for at in range(0, size, 1_000_003):
        pieces.update(data[at : at + 1_000_003])
    assert digest_of(data) == pieces.hexdigest() == expected
    assert pieces.blocks() == blocks


def test_digest_may_be_asked_for_on_the_way() -> None:
    """Asking for the digest changes nothing; bytes that follow count."""
    digest = TreeDigest()
    digest.update(b"ab")
    assert digest.hexdigest() == digest_of(b"ab")
    digest.update(memoryview(b"cdefghij").cast("I"))
    assert digest.hexdigest() == digest_of(b"abcdefghij")


def test_digests_of_made_data(shared_data: Path) -> None:
    """Real shards have the digest that hashing them block by block with BLAKE3 gives."""
    paths = sorted(path for path in shared_data.rglob("*.tar") if path.is_file())[:5]
    assert paths
    for path in paths:
        data = path.read_bytes()
        joined = b"".join(blake3(data[at : at + BLOCK_BYTES]).digest() for at in range(0, len(data), BLOCK_BYTES))
        assert digest_of(data) == blake3(joined).hexdigest()


@pytest.mark.parametrize(
    ("url", "count", "first", "last"),
    [
        ("s3://b/x_{000..123}.tar", 124, "s3://b/x_000.tar", "s3://b/x_123.tar"),
        ("{8..11}", 4, "8", "11"),
        ("{08..11}", 4, "08", "11"),
        ("{3..1}", 3, "3", "1"),
        ("{0..10..5}", 3, "0", "10"),
        ("{a,b,}x{0..1}", 6, "ax0", "x1"),
        ("/data/{odd}/x{}", 1, "/data/{odd}/x{}", "/data/{odd}/x{}"),
        ("plain", 1, "plain", "plain"),
    ],
)
def test_brace_patterns(url: str, count: int, first: str, last: str) -> None:
    """Numbers keep their zeros, choices choose, several multiply; other braces stay."""
    found = expand(url)
    assert (len(found), found[0], found[-1]) == (count, first, last)


@pytest.mark.parametrize("url", ["{0..99999999999999}", "{0..999}{0..999}{0..9}"])
def test_brace_patterns_are_bounded(url: str) -> None:
    """A pattern for more URLs than a list can hold is refused before it is made."""
    with pytest.raises(UsageError, match="more than"):
        expand(url)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("s3://bucket/a/b/", ("s3", "bucket", "a/b")),
        ("S3://bucket", ("s3", "bucket", "")),
        ("https://host:81/p", ("https", "host:81", "p")),
        ("file:///mnt/x%20y", ("file", "", "/mnt/x y")),
        ("file://localhost/mnt", ("file", "", "/mnt")),
        ("/a/b%20", ("file", "", "/a/b%20")),
    ],
)
def test_parse(url: str, parts: tuple[str, str, str]) -> None:
    """URLs fall into scheme, host and path; percent signs mean something in file URLs only."""
    place = parse(url)
    assert (place.scheme, place.host, place.path) == parts


def test_bare_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path counts from the working folder, `~` from the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/of/me")
    assert parse("x/y").path == str(tmp_path / "x/y") and parse("~/z").path == "/home/of/me/z"
    assert connect(Path("x")).url == f"file://{tmp_path}/x"


@given(
    name=st.text(st.characters(exclude_characters="/\0", exclude_categories=[]), min_size=1).filter(
        lambda n: n not in (".", "..")
    )
)
def test_local_urls_lead_back(name: str) -> None:
    """The URL of a local store, parsed, is the same folder again."""
    try:
        path = Path("/") / name.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return
    store = innermost(connect(path))
    assert parse(store.url).path == str(path) and parse(store.url).url == store.url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://x/y",
        "s3://",
        "s3://key:SECRET@bucket/x",
        "https://h/x?sig=SECRET",
        "https://h/x#SECRET",
        "file://host/x",
        "file://x",
        "file:///a%00b",
    ],
)
def test_bad_urls_are_refused_without_their_secrets(url: str) -> None:
    """Unknown schemes and credentials in URLs are usage errors that repeat no secret."""
    with pytest.raises(UsageError) as caught:
        parse(url)
    assert "SECRET" not in str(caught.value)


def test_secrets_do_not_print() -> None:
    """Neither URL nor repr nor a pickle's repr shows a secret."""
    options = StoreOptions(endpoint="http://h", access_key="AKIDSECRET", secret_key="SECRETKEY")
    store = connect("s3://bucket/p", options=options)
    for text in (repr(options), repr(store), store.url, str(store), repr(pickle.loads(pickle.dumps(store)))):
        assert "SECRET" not in text


def test_remote_stores_are_wrapped() -> None:
    """A remote store is retried, limited and metered, in this order from outside, and made without a client."""
    store = connect("s3://bucket/p")
    assert repr(store) == "Retrying(Limited(Metered(Objects('s3://bucket/p'))))"
    assert isinstance(innermost(store), Objects) and store.url == "s3://bucket/p"


def test_options_come_from_the_environment() -> None:
    """The usual AWS variables count where the caller said nothing; S3's own endpoint wins."""
    given_by = {
        "AWS_ENDPOINT_URL": "http://a",
        "AWS_ENDPOINT_URL_S3": "http://b",
        "AWS_REGION": "eu-1",
        "AWS_ANONYMOUS": "True",
    }
    found = StoreOptions().completed(given_by)
    assert (found.endpoint, found.region, found.anonymous, found.path_style) == ("http://b", "eu-1", True, True)
    assert found.allow_http
    plain = StoreOptions(anonymous=False, endpoint="https://c", path_style=False).completed(given_by)
    assert (plain.endpoint, plain.anonymous, plain.path_style, plain.allow_http) == ("https://c", False, False, False)
    assert StoreOptions().completed({"AWS_PROFILE": "sso"}).profile == "sso"
    assert StoreOptions(access_key="a").completed({"AWS_PROFILE": "sso"}).profile is None
    assert StoreOptions().completed({"AWS_PROFILE": "sso", "AWS_ACCESS_KEY_ID": "a"}).profile is None
    with pytest.raises(UsageError, match="AWS_SKIP_SIGNATURE"):
        StoreOptions().completed({"AWS_SKIP_SIGNATURE": "maybe"})


@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "http", "https"])
@pytest.mark.parametrize("anonymous", [True, False])
def test_clients_of_every_scheme_are_made(scheme: str, anonymous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every remote scheme has a client, which makes no request before it is used."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    options = StoreOptions(anonymous=anonymous, requester_pays=True).completed({})
    assert type(make_client(scheme, "place", options)).__name__.endswith("Store")


def test_a_profile_without_boto3_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_PROFILE is never silently ignored: without the extra it is an error that says what to install."""
    monkeypatch.setenv("AWS_PROFILE", "research")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match="research") as caught:
        connect("s3://bucket").get("x")
    assert "stoker[aws]" in str(caught.value.hint)


def test_an_unknown_profile_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A profile that ~/.aws does not know is a usage error with its name."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with pytest.raises(UsageError, match="nobody"):
        connect("s3://bucket", options=StoreOptions(profile="nobody")).get("x")


def test_import_is_light() -> None:
    """`import stoker.store` loads neither obstore nor boto3."""
    code = "import sys, json, stoker.store; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"obstore", "boto3", "torch"} & set(json.loads(done.stdout))
