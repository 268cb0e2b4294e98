"""The network of a cluster's replicas: TCP proxies on this machine, which can be cut and slowed link by link.

It needs no rights and no tools, so that partitions are tested wherever the tests run. Each replica reaches Postgres and
Redis through proxies of its own, and its peers through an HTTP proxy of its own (`grpc_proxy`), so that both ends of
a connection are always known. Bytes that a cut holds back arrive when it is healed, as TCP would send them again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from tests.support.cluster_wiring import POSTGRES, REDIS, Ports, Wiring
from tests.support.places import THIS_MACHINE, Place

T = TypeVar("T")

_HOST = THIS_MACHINE.address
_PIECE = 65_536

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ProxiedNetwork:
    """Proxies for each replica, on a thread of their own: a test that waits must not hold up the cluster."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        """Of the replicas, by the port where they listen for each other."""
        self._wirings: dict[str, Wiring] = {}
        self._cut: set[tuple[str, str]] = set()
        self._delay_s: dict[tuple[str, str], float] = {}
        self._links: dict[asyncio.Task[None], tuple[str, str] | None] = {}
        """Every connection, and its two ends once they are known."""
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)

    def place(self, _name: str) -> Place:
        return THIS_MACHINE

    @contextmanager
    def up(self, ports: Ports) -> Iterator[None]:
        self._names = {each.peer: name for name, each in ports.replicas.items()}
        self._thread.start()
        try:
            for name in ports.replicas:
                self._wirings[name] = self._run(self._wire(name, ports))
            yield
        finally:
            self._run(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def wiring(self, name: str) -> Wiring:
        return self._wirings[name]

    # --- faults --------------------------------------------------------------------------------------

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between these two any more, and neither is notified."""
        self._run(self._change(lambda: self._cut.update({(one, other), (other, one)})))

    def cut_one_way(self, source: str, target: str) -> None:
        """What `source` sends does not arrive at `target`."""
        self._run(self._change(lambda: self._cut.add((source, target))))

    def isolate(self, name: str) -> None:
        """Cut a replica from all but its clients."""
        for other in {*self._names.values(), POSTGRES, REDIS} - {name}:
            self.cut(name, other)

    def delay(self, one: str, other: str, seconds: float) -> None:
        """Each piece takes so much longer, in either direction."""
        self._run(self._change(lambda: self._delay_s.update({(one, other): seconds, (other, one): seconds})))

    def reset(self, one: str, other: str) -> None:
        """Break the connections that there are between these two; new ones may be made."""
        self._run(self._reset({(one, other), (other, one)}))

    def heal(self) -> None:
        """No link is cut or slow any more."""

        def repair() -> None:
            self._cut.clear()
            self._delay_s.clear()

        self._run(self._change(repair))

    # --- inside, on the network's thread -------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _wire(self, name: str, ports: Ports) -> Wiring:
        self._changed = asyncio.Event()
        postgres = await self._listen(lambda r, w: self._carry(name, POSTGRES, ports.postgres, r, w))
        redis = await self._listen(lambda r, w: self._carry(name, REDIS, ports.redis, r, w))
        peers = await self._listen(lambda r, w: self._carry_to_peer(name, r, w))
        return Wiring(postgres, redis, env={"grpc_proxy": f"http://{peers}", "no_grpc_proxy": ""})

    async def _listen(self, serve: Serve) -> str:
        """Returns where."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._serve(serve, reader, writer))
            self._links[task] = None
            task.add_done_callback(self._links.pop)

        server = await asyncio.start_server(accept, _HOST, 0)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return f"{_HOST}:{port}"

    async def _serve(self, serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # The other end has gone, of which this side is notified by what follows.
        finally:
            writer.transport.abort()

    async def _carry_to_peer(self, source: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The CONNECT of an HTTP proxy, which names the peer."""
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        port = int(request.split(" ")[1].rpartition(":")[2])
        # An address of a replica that another test started is not on this network.
        target = self._names[port]
        await self._passage(source, target)
        await self._passage(target, source)
        writer.write(b"HTTP/1.1 200 connected\r\n\r\n")
        await self._carry(source, target, port, reader, writer)

    async def _carry(
        self, source: str, target: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._links[_this_task()] = (source, target)
        await self._passage(source, target)
        await self._passage(target, source)
        there_reader, there_writer = await asyncio.open_connection(_HOST, port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._copy(reader, there_writer, source, target))
                both.create_task(self._copy(there_reader, writer, target, source))
        except* OSError:
            pass
        finally:
            there_writer.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: str, target: str) -> None:
        try:
            while data := await reader.read(_PIECE):
                await self._passage(source, target)
                writer.write(data)
                await writer.drain()
            await self._passage(source, target)
            if writer.can_write_eof():
                writer.write_eof()
        except ConnectionError:
            await self._passage(source, target)
            raise

    async def _passage(self, source: str, target: str) -> None:
        """Return once something may pass from `source` to `target`."""
        while (source, target) in self._cut:
            await self._changed.wait()
        delay_s = self._delay_s.get((source, target), 0.0)
        if delay_s:
            await asyncio.sleep(delay_s)

    async def _change(self, change: Callable[[], None]) -> None:
        change()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reset(self, links: set[tuple[str, str]]) -> None:
        for task, link in list(self._links.items()):
            if link in links:
                task.cancel()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        links = list(self._links)
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        # Closed connections let go of their sockets in the next round of the loop.
        await asyncio.sleep(0)


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None
    return task
