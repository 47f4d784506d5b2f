"""A long, narrow wire before a port of this machine: `python bench/link.py PORT LATENCY_S BYTES_PER_S`, which prints its own port.

Works on bytes, not requests, so that it costs next to nothing: what a client sends arrives LATENCY_S later, and what all
servers' answers together bring is capped. Ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIECE_BYTES = 128 << 10


class Wire:
    """Connections to one port, all under one cap."""

    def __init__(self, port: int, latency_s: float, bytes_per_s: float) -> None:
        self._port = port
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client."""
        with suppress(OSError, asyncio.IncompleteReadError):
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            await asyncio.gather(self._up(reader, back), self._down(there, writer))
        writer.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What the client sends, later."""
        loop = asyncio.get_running_loop()
        while piece := await reader.read(PIECE_BYTES):
            loop.call_later(self._latency_s, writer.write, piece)
        loop.call_later(self._latency_s, writer.close)

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What the server answers, no faster than the wire."""
        loop = asyncio.get_running_loop()
        while piece := await reader.read(PIECE_BYTES):
            self._free_at_s = max(self._free_at_s, loop.time()) + len(piece) / self._bytes_per_s
            await asyncio.sleep(self._free_at_s - loop.time())
            writer.write(piece)
            await writer.drain()
        writer.close()


async def serve(wire: Wire) -> None:
    """Until stdin ends."""
    server = await asyncio.start_server(wire.connect, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # connections may be open still, and nobody is there for them


@contextmanager
def link(port: int, latency_s: float, bytes_per_s: float) -> Iterator[str]:
    """The endpoint of such a wire, in a process of its own."""
    command = [sys.executable, __file__, str(port), str(latency_s), str(bytes_per_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


if __name__ == "__main__":
    asyncio.run(serve(Wire(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))))
