"""Carries connections from sockets that it inherits to addresses of the network on which it runs.

A socket belongs to the network on which it was made. So tests, which are on this machine's, reach servers of another
network through a relay that runs there: `python -m tests.support.relay 7=10.77.0.2:8080`, 7 being a listening socket.
"""

from __future__ import annotations

import asyncio
import socket
import sys

_PIECE = 65_536


async def carry(
    host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str = ""
) -> None:
    """Both ways, until both have ended, from the source address if given. A connection that breaks is reset."""
    try:
        there_reader, there_writer = await asyncio.open_connection(
            host, port, local_addr=(source, 0) if source else None
        )
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, there_writer))
                both.create_task(_copy(there_reader, writer))
        finally:
            there_writer.transport.abort()
    except* OSError:
        pass  # The other side is notified by what follows.
    finally:
        writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _relay(descriptor: int, host: str, port: int) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await carry(host, port, reader, writer)

    server = await asyncio.start_server(accept, sock=socket.socket(fileno=descriptor))
    await server.serve_forever()


async def main(arguments: list[str]) -> None:
    async with asyncio.TaskGroup() as relays:
        for argument in arguments:
            descriptor, _, target = argument.partition("=")
            host, _, port = target.rpartition(":")
            relays.create_task(_relay(int(descriptor), host, int(port)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
