"""A TCP proxy in front of a server of this machine: it can be cut, hold answers back, and speak TLS to its clients."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Self


class Link:
    """Forwards connections to `port`, each piece of an answer `delay_s` late. Use as an async context manager.

    Once it is cut nothing passes in either direction, and neither end is notified.
    """

    def __init__(self, port: int, *, delay_s: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        self.delay_s = delay_s
        self.connections = 0
        self._target = port
        self._tls = tls
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        """Bytes that were held back arrive now, as TCP would send them again."""
        self._whole.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, there_writer, late=False))
                both.create_task(self._copy(there_reader, writer, late=True))
        except* OSError:
            pass  # One side has gone; the other is notified by what follows.
        finally:
            for end in (writer, there_writer):
                end.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late: bool) -> None:
        while data := await reader.read(65_536):
            await self._whole.wait()
            if late and self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(data)
            await writer.drain()
        writer.close()
