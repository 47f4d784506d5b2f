"""A server that takes so many requests at once, and its client: `python bench/served.py SOCKET AT_ONCE SECONDS`.

One limit for all threads and processes of the machine, as a far service has, whoever of them ends in the middle of a
request. It sleeps, so that it costs next to nothing. Ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Served:
    """The client: a connection of its own for every thread of every process. Can be pickled and forked."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._mine = threading.local()

    def __reduce__(self) -> tuple[type[Served], tuple[str]]:
        return Served, (self._path,)  # connections stay where they are

    def wait(self) -> None:
        """Be served."""
        if getattr(self._mine, "pid", None) != os.getpid():
            self._mine.pid, self._mine.link = os.getpid(), socket.socket(socket.AF_UNIX)
            self._mine.link.connect(self._path)
        self._mine.link.sendall(b"?")
        if self._mine.link.recv(1) != b".":
            raise ConnectionError(f"{self._path}: the server went away")


async def serve(path: str, at_once: int, seconds: float) -> None:
    """Until stdin ends."""
    room = asyncio.Semaphore(at_once)

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.read(1):
                async with room:
                    await asyncio.sleep(seconds)
                writer.write(b".")
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(client, path, backlog=1024)
    print("ready", flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # connections may be open still, and nobody is there for them


@contextmanager
def served(at_once: int, seconds: float) -> Iterator[str]:
    """The socket of such a server, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="stoker-served-") as folder:
        path = str(Path(folder) / "s")
        command = [sys.executable, __file__, path, str(at_once), str(seconds)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdin is not None
            assert process.stdout.readline() == "ready\n", "the server did not start"
            yield path
            process.stdin.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
