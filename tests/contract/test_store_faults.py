"""Stores over a real server that fails on purpose: nothing wrong is ever given, and what can be cured is."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import boto3
import psutil
import pytest

from stoker.cli.servers import Server, juicefs_gateway, moto_server
from stoker.errors import AccessError, NotFoundError, StokerError, StoreError, UnsupportedError
from stoker.events import Events
from stoker.flow import parallel_map
from stoker.store import ByteRange, Store, connect
from stoker.store import objects as objects_module
from stoker.store.transient import TransientError
from stoker.store.wrap import Wrapper
from stoker.testing.fault_proxy import FaultPlan, FaultProxy
from support_store import fresh_prefix, options_for, random_bytes


@pytest.fixture(scope="module")
def moto() -> Iterator[Server]:
    """moto's S3, for all tests of this file."""
    with moto_server() as server:
        yield server


@pytest.fixture(scope="module")
def juicefs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """JuiceFS's gateway, which checks signatures."""
    with juicefs_gateway(tmp_path_factory.mktemp("juicefs")) as server:
        yield server


def single_attempt(url: str, server: Server, proxy: FaultProxy) -> Store:
    """The store by way of the proxy, without retries."""
    store = connect(url, options=options_for(server, endpoint=proxy.endpoint))
    assert isinstance(store, Wrapper)
    return store.inner


def test_an_epoch_over_a_bad_network_is_right(moto: Server) -> None:
    """With 5 % 503s, 1 % resets and 2 % truncated bodies every byte is right, and the retries are counted."""
    url, events = fresh_prefix(moto), Events()
    direct = connect(url, options=options_for(moto))
    objects = {f"o/{n:03d}": random_bytes(n, 20_000 + 997 * n) for n in range(40)}
    plan = FaultPlan(seed=5, unavailable_rate=0.05, reset_rate=0.01, truncate_rate=0.02)
    with FaultProxy("127.0.0.1", moto.port, plan) as proxy:
        store = connect(url, options=options_for(moto, endpoint=proxy.endpoint), recorder=events)
        list(parallel_map(lambda item: store.put(*item), objects.items(), workers=4))
        assert {key: direct.get(key) for key in objects} == objects
        infos = list(store.list("o/"))
        assert [(info.key, info.size) for info in infos] == [(key, len(data)) for key, data in objects.items()]
        for info in infos * 3:
            pieces = [ByteRange(0, 1000), ByteRange(5000, 5001), ByteRange(info.size - 7, info.size)]
            found = store.get_ranges(info.key, pieces, version=info.version)
            assert found == [objects[info.key][piece.start : piece.stop] for piece in pieces]
            assert store.get(info.key) == objects[info.key]
        faults = proxy.counts["unavailable"] + proxy.counts["reset"] + proxy.counts["truncate"]
    totals = events.totals()
    assert faults > 20 and totals["store.retries"] == faults
    assert totals["store.retries.slow_down"] + totals.get("store.retries.503", 0) == proxy.counts["unavailable"]
    assert totals["store.retries.reset"] == proxy.counts["reset"] + proxy.counts["truncate"]


@pytest.mark.parametrize("fault", ["unavailable_rate", "reset_rate", "truncate_rate"])
def test_what_another_attempt_may_cure(moto: Server, fault: str) -> None:
    """A 503, a reset in mid-body and a truncated body are transient errors that name URL and key."""
    url = fresh_prefix(moto)
    connect(url, options=options_for(moto)).put("big", random_bytes(1, 300_000))
    with FaultProxy("127.0.0.1", moto.port, FaultPlan(**{fault: 1.0})) as proxy:
        store = single_attempt(url, moto, proxy)
        for ask in (lambda: store.get("big"), lambda: store.get_ranges("big", [ByteRange(0, 200_000)])):
            with pytest.raises(TransientError, match="big") as caught:
                ask()
            assert url in str(caught.value)


def test_a_server_that_ignores_ranges_is_named(moto: Server) -> None:
    """A range answered 200 with the whole object is an error, not the whole object and not a retry."""
    url = fresh_prefix(moto)
    connect(url, options=options_for(moto)).put("big", random_bytes(1, 100_000))
    with FaultProxy("127.0.0.1", moto.port, FaultPlan(whole_rate=1.0)) as proxy:
        store = connect(url, options=options_for(moto, endpoint=proxy.endpoint))
        with pytest.raises(StoreError, match="answers a range with the whole object"):
            store.get_ranges("big", [ByteRange(0, 10)])
        assert proxy.counts["whole"] == 1


def test_the_proxy_corrupts_delays_and_caps(moto: Server) -> None:
    """The proxy's other faults do what their names say, seeded, and are counted; bodies are otherwise untouched."""
    url, data = fresh_prefix(moto), random_bytes(3, 200_000)
    connect(url, options=options_for(moto)).put("x", data)
    with FaultProxy("127.0.0.1", moto.port, FaultPlan(corrupt_rate=1.0)) as proxy:
        found = single_attempt(url, moto, proxy).get("x")
        assert len(found) == len(data) and sum(a != b for a, b in zip(found, data, strict=True)) == 1
        assert proxy.counts["corrupt"] == 1 and sum(proxy.sent_bytes.values()) == len(data)
        proxy.plan = FaultPlan(latency_s=0.05, bytes_per_s_max=1_000_000)
        events = Events()
        store = connect(url, options=options_for(moto, endpoint=proxy.endpoint), recorder=events)
        start_s = time.monotonic()
        assert store.get("x") == data
        assert time.monotonic() - start_s >= 0.05 + 0.2


def test_signatures_pass_the_proxy(juicefs: Server) -> None:
    """A server that checks signatures accepts what comes by the proxy, and refuses a wrong secret as an AccessError."""
    url = fresh_prefix(juicefs)
    with FaultProxy("127.0.0.1", juicefs.port) as proxy:
        store = connect(url, options=options_for(juicefs, endpoint=proxy.endpoint))
        store.put("a b/ü", b"signed")
        assert store.get_ranges("a b/ü", [ByteRange(1, 3)]) == [b"ig"]
        wrong = Server(proxy.endpoint, juicefs.access_key, "not the SECRET")
        with pytest.raises(AccessError, match="SignatureDoesNotMatch") as caught:
            connect(url, options=options_for(wrong)).get("a b/ü")
        assert "not the SECRET" not in str(caught.value) and "anonymous" in str(caught.value.hint)


def test_a_large_object_goes_in_parts_and_leaves_none(moto: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit of one PUT the object is uploaded in parts; when one fails, the upload is aborted."""
    monkeypatch.setattr(objects_module, "ONE_PUT_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(objects_module, "_PART_BYTES_MIN", 5 << 20)
    url, data = fresh_prefix(moto), random_bytes(4, 17_000_000)
    store = connect(url, options=options_for(moto))
    info = store.put("parts", memoryview(data))
    assert info.version is not None and info.version.endswith('-4"')
    assert store.get("parts", version=info.version) == data
    failed = 0
    for seed in range(6):
        with FaultProxy("127.0.0.1", moto.port, FaultPlan(seed=seed, unavailable_rate=0.4, methods=("PUT",))) as proxy:
            try:
                single_attempt(url, moto, proxy).put(f"bad{seed}", data)
            except TransientError:
                failed += 1
    assert failed and moto.open_uploads("tests") == []


def test_a_range_past_the_end_is_not_tried_again(moto: Server) -> None:
    """What cannot be cured costs one request and says both lengths."""
    events = Events()
    store = connect(fresh_prefix(moto), options=options_for(moto), recorder=events)
    store.put("ten", b"0123456789")
    with pytest.raises(StoreError, match="'ten' holds 10 bytes, asked for bytes 5 to 11"):
        store.get_ranges("ten", [ByteRange(5, 11)])
    assert events.totals()["store.requests"] == 2 and "store.retries" not in events.totals()


class _Stingy(BaseHTTPRequestHandler):
    """Answers every range, in good order, with less than was asked."""

    def do_GET(self) -> None:
        self.send_response_only(206)
        self.send_header("Content-Range", "bytes 0-4/100")
        self.send_header("Content-Length", "5")
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 08:00:00 GMT")
        self.end_headers()
        self.wfile.write(b"01234")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is http.server's
        """Say nothing."""


def test_a_server_that_gives_less_than_asked() -> None:
    """An answer that is short in good order is found out by its length."""
    with HTTPServer(("127.0.0.1", 0), _Stingy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        store = connect(f"http://127.0.0.1:{server.server_address[1]}/p")
        assert isinstance(store, Wrapper)
        try:
            with pytest.raises(TransientError, match="'x': short answer") as caught:
                store.inner.get_ranges("x", [ByteRange(0, 10)])
        finally:
            server.shutdown()
            thread.join()
    assert caught.value.reason == "short_body"


def test_a_server_that_falls_silent(moto: Server) -> None:
    """An answer that does not come within the read timeout is a transient timeout, not an endless wait."""
    url = fresh_prefix(moto)
    connect(url, options=options_for(moto)).put("x", b"1")
    with FaultProxy("127.0.0.1", moto.port, FaultPlan(latency_s=1.0)) as proxy:
        options = replace(options_for(moto, endpoint=proxy.endpoint), read_timeout_s=0.2)
        store = connect(url, options=options)
        assert isinstance(store, Wrapper)
        with pytest.raises(TransientError, match="'x'") as caught:
            store.inner.get("x")
        assert caught.value.reason == "timeout"


def test_credentials_from_a_profile(juicefs: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of ~/.aws signs requests; anonymous requests are refused by the same server."""
    (tmp_path / "credentials").write_text(
        f"[team]\naws_access_key_id = {juicefs.access_key}\naws_secret_access_key = {juicefs.secret_key}\n"
    )
    (tmp_path / "config").write_text("[profile team]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", juicefs.endpoint)
    monkeypatch.setenv("AWS_PROFILE", "team")
    url = fresh_prefix(juicefs)
    store = connect(url)
    store.put("x", b"by profile")
    assert store.get("x") == b"by profile"
    monkeypatch.setenv("AWS_ANONYMOUS", "true")
    with pytest.raises(AccessError, match="AccessDenied"):
        connect(url).get("x")


def test_credentials_from_the_environment(juicefs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that a server's `environment` names are all that a store needs."""
    for name, value in juicefs.environment().items():
        monkeypatch.setenv(name, value)
    store = connect(fresh_prefix(juicefs))
    store.put("x", b"1")
    assert store.get("x") == b"1"


def test_buckets_that_do_not_exist(moto: Server) -> None:
    """A missing bucket is said to be missing, for reads, writes and lists."""
    store = connect("s3://no-such-bucket/p", options=options_for(moto))
    for ask in (lambda: store.get("x"), lambda: store.put("x", b""), lambda: list(store.list())):
        with pytest.raises(NotFoundError, match="bucket does not exist"):
            ask()


def test_a_server_that_is_away(moto: Server) -> None:
    """Nobody listening: retried until the deadline, then an error that says how often."""
    options = options_for(moto, endpoint="http://127.0.0.1:1", deadline_s=0.5)
    with pytest.raises(StoreError, match=r"gave up after \d+ attempts"):
        connect("s3://tests/p", options=options).get("x")


def test_plain_http(moto: Server) -> None:
    """Over http a store reads objects and ranges, and says that it cannot list."""
    url = fresh_prefix(moto, "public").replace(" ", "-")
    client = boto3.client("s3", endpoint_url=moto.endpoint, aws_access_key_id="a", aws_secret_access_key="b")
    client.put_object(Bucket="public", Key=url.split("/")[3] + "/x/y.bin", Body=b"0123456789", ACL="public-read")
    client.close()
    store = connect(url.replace("s3://", f"{moto.endpoint}/"))
    assert store.get("x/y.bin") == b"0123456789" and store.head("x/y.bin").size == 10
    assert store.get_ranges("x/y.bin", [ByteRange(3, 5)]) == [b"34"]
    with pytest.raises(NotFoundError):
        store.get("x/nothing")
    with pytest.raises(UnsupportedError, match="cannot list"):
        next(store.list())


def test_more_than_a_page_is_listed(moto: Server) -> None:
    """A list longer than a server's page of 1,000 is whole."""
    store = connect(fresh_prefix(moto), options=options_for(moto))
    list(parallel_map(lambda n: store.put(f"k/{n:04d}", b""), range(1005), workers=8))
    assert [info.key for info in store.list("k/")] == [f"k/{n:04d}" for n in range(1005)]
    assert [info.key for info in store.list("k/100")] == [f"k/{n:04d}" for n in range(1000, 1005)]


def test_a_forked_child_is_refused_and_does_not_hang(moto: Server) -> None:
    """A child forked after its parent used an object store gets an error that says what to do."""
    store = connect(fresh_prefix(moto), options=options_for(moto))
    store.put("x", b"1")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            store.get("x")
        except UnsupportedError as error:
            os.write(writer, str(error.hint).encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0
    assert b"forkserver" in os.read(reader, 1000)
    os.close(reader)


def test_servers_end_with_their_block() -> None:
    """A server and its children are gone when the block ends, also when it ends badly."""
    with pytest.raises(StokerError, match="on purpose"), moto_server() as server:
        (process,) = [child for child in psutil.Process().children() if str(server.port) in child.cmdline()]
        raise StokerError("on purpose")
    assert not process.is_running()


def test_a_refused_bucket_is_told_in_words(moto: Server) -> None:
    """What the server's XML says, without the XML."""
    with pytest.raises(StokerError, match="bucket 'b': 400 InvalidBucketName") as caught:
        moto.make_bucket("b")
    assert "<" not in str(caught.value)
