"""A proxy before a real server that fails on purpose: slow, silent, 503, reset, cut short, corrupt, 200 to a range.

What happens to the n-th request is drawn from the plan's seed. Headers pass unchanged (Host too), so signatures hold,
save for the one fault that needs to drop `Range`: the server behind it must not check signatures.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PIECE_BYTES = 64 << 10
_HOP = {"transfer-encoding", "connection", "keep-alive"}


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """How often what goes wrong. Rates are shares of requests in [0, 1], each drawn for itself."""

    seed: int = 0
    latency_s: float = 0.0
    """Added before each request is passed on."""
    bytes_per_s_max: float | None = None
    """Cap on the bodies of all answers together."""
    unavailable_rate: float = 0.0
    """Answered with `refusal`; the server never sees the request."""
    refusal: tuple[int, str] = (503, "SlowDown")
    """Status and code of that answer."""
    reset_rate: float = 0.0
    """The connection is reset in mid-body, or instead of an answer without one: the server has done what was asked."""
    truncate_rate: float = 0.0
    """The body ends early, the connection is closed in good order."""
    corrupt_rate: float = 0.0
    """One byte of the body is another."""
    hang_rate: float = 0.0
    """Accepted and never answered: nothing comes, the connection stays open until the proxy ends."""
    stall_rate: float = 0.0
    """The body stops in the middle, and the connection stays open."""
    whole_rate: float = 0.0
    """A range is answered 200 with the whole object."""
    corrupt_first: int = 0
    """The first so many GETs of each path are answered with one byte changed, whatever the rate."""
    paths: str = ""
    """Only requests whose path contains this are harmed."""
    methods: tuple[str, ...] = ("GET", "HEAD", "PUT", "POST", "DELETE")
    """Requests of other methods pass unharmed, if slowly."""


@dataclass(frozen=True, slots=True)
class _Faults:
    """What is drawn for one request."""

    unavailable: bool
    reset: bool
    truncate: bool
    corrupt: bool
    whole: bool
    hang: bool
    stall: bool
    where: float
    """Place in the body, as a share of it."""


class FaultProxy:
    """`with FaultProxy(host, port, plan) as proxy:` serves at `proxy.endpoint` until the block ends."""

    def __init__(self, target_host: str, target_port: int, plan: FaultPlan | None = None) -> None:
        self.target = (target_host, target_port)
        self.plan = plan or FaultPlan()
        """May be replaced while the proxy runs; the draws go on."""
        self.counts: Counter[str] = Counter()
        """requests, unavailable, reset, truncate, corrupt, whole, hang, stall: what was done so far."""
        self.sent_bytes: Counter[str] = Counter()
        """Body bytes passed on to clients, by path (percent-encoded, without query)."""
        self._random = random.Random(self.plan.seed)
        self._silence = random.Random(f"{self.plan.seed} silence")
        """For itself, so that plans without silence draw what they always drew."""
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._free_at_s = 0.0
        self._got: Counter[str] = Counter()
        self._sockets: set[socket.socket] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> FaultProxy:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="stoker-fault-proxy")
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            still_open = list(self._sockets)
        for connection in still_open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def count(self, what: str, by: int = 1) -> None:
        with self._lock:
            self.counts[what] += by

    def count_sent(self, path: str, count: int) -> None:
        with self._lock:
            self.sent_bytes[path.partition("?")[0]] += count

    def draw(self, method: str, path: str) -> _Faults:
        """The faults of the next request."""
        with self._lock:
            if method == "GET":
                self._got[path] += 1
            first = method == "GET" and self._got[path] <= self.plan.corrupt_first
            plan, drawn = self.plan, [self._random.random() for _ in range(6)]
            hang_chance, stall_chance = self._silence.random(), self._silence.random()
            self.counts["requests"] += 1
        rates = (plan.unavailable_rate, plan.reset_rate, plan.truncate_rate, plan.corrupt_rate, plan.whole_rate)
        harmed = method in plan.methods and plan.paths in path
        unavailable, reset, cut, corrupt, whole = (
            harmed and chance < rate for chance, rate in zip(drawn[:5], rates, strict=True)
        )
        hang, stall = harmed and hang_chance < plan.hang_rate, harmed and stall_chance < plan.stall_rate
        return _Faults(unavailable, reset, cut, corrupt or (first and harmed), whole, hang, stall, where=drawn[5])

    def be_silent(self, what: str) -> None:
        """Say nothing until the proxy ends."""
        self.count(what)
        self._ending.wait()

    def pace(self, count: int) -> None:
        """Wait until *count* more bytes may pass under the cap that all connections share."""
        if self.plan.bytes_per_s_max is not None:
            with self._lock:
                self._free_at_s = max(self._free_at_s, time.monotonic()) + count / self.plan.bytes_per_s_max
                wait_s = self._free_at_s - time.monotonic()
            time.sleep(max(0.0, wait_s))

    @contextlib.contextmanager
    def serving(self, connection: socket.socket) -> Iterator[None]:
        """Remember the connection while it is served, to end it with the proxy."""
        with self._lock:
            self._sockets.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(connection)


class _Handler(BaseHTTPRequestHandler):
    """One client connection."""

    owner: FaultProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _upstream: http.client.HTTPConnection | None = None

    def handle(self) -> None:
        try:
            with self.owner.serving(self.connection), contextlib.suppress(OSError):
                super().handle()
        finally:
            if self._upstream is not None:
                self._upstream.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is http.server's
        """Say nothing."""

    def pass_on(self) -> None:
        """One request: passed to the server, or not, and its answer passed back, or not quite."""
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True  # the client went away in mid-request
            return
        faults = self.owner.draw(self.command, self.path.partition("?")[0])
        time.sleep(self.owner.plan.latency_s)
        if faults.hang:
            self.owner.be_silent("hang")
            self.close_connection = True
            return
        if faults.unavailable:
            self._unavailable()
            return
        ranged = "Range" in self.headers
        if faults.whole and ranged:
            del self.headers["Range"]
            self.owner.count("whole")
        answer = self._ask(body)
        self._answer(answer, answer.read(), faults)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815  # the names are http.server's

    def _ask(self, body: bytes) -> http.client.HTTPResponse:
        """The server's answer to the client's own words; tried once more when a kept connection turns out closed."""
        for last in (False, True):
            if self._upstream is None:
                self._upstream = http.client.HTTPConnection(*self.owner.target, timeout=60)
            try:
                self._upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in _HOP:
                        self._upstream.putheader(name, value)
                self._upstream.endheaders(body or None)
                return self._upstream.getresponse()
            except (http.client.HTTPException, OSError):
                self._upstream.close()
                self._upstream = None
                if last:
                    raise
        raise AssertionError("the loop above returns or raises")

    def _unavailable(self) -> None:
        self.owner.count("unavailable")
        status, code = self.owner.plan.refusal
        text = f"<Error><Code>{code}</Code><Message>Planned by FaultProxy.</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _answer(self, answer: http.client.HTTPResponse, body: bytes, faults: _Faults) -> None:
        if faults.reset and not body:
            self._reset()
            return
        if faults.corrupt and body and self.command == "GET" and answer.status < 300:
            at = int(faults.where * len(body))
            body = body[:at] + bytes([body[at] ^ 0xFF]) + body[at + 1 :]
            self.owner.count("corrupt")
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP and not (name.lower() == "content-length" and self.command != "HEAD"):
                self.send_header(name, value)
        if self.command != "HEAD" and answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = int(faults.where * len(body)) if faults.reset or faults.truncate or faults.stall else len(body)
        self._send(body[:cut])
        if cut < len(body):
            self.close_connection = True
            if faults.stall:
                self.owner.be_silent("stall")
            elif faults.reset:
                self._reset()
            else:
                self.owner.count("truncate")

    def _send(self, body: bytes) -> None:
        for at in range(0, len(body), _PIECE_BYTES):
            piece = body[at : at + _PIECE_BYTES]
            self.owner.pace(len(piece))
            self.owner.count_sent(self.path, len(piece))
            self.wfile.write(piece)

    def _reset(self) -> None:
        """End the connection by RST."""
        self.owner.count("reset")
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
