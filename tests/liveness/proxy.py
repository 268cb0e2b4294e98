"""A TCP proxy in front of a server that holds answers back, for as long as it is told, or speaks TLS to its clients."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards connections to `port`, each piece of an answer `delay_s` late. Use as an async context manager."""

    def __init__(self, port: int, *, delay_s: float = 0.0, tls: ssl.SSLContext | None = None) -> None:
        self.delay_s = delay_s
        self.connections = 0
        self._target = port
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, there_writer, late=False))
                both.create_task(self._copy(there_reader, writer, late=True))
        except* OSError:
            pass
        finally:
            self._tasks.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, late: bool) -> None:
        try:
            while data := await reader.read(65_536):
                if late and self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()
