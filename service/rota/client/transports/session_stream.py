"""A client's side of one session stream: numbered calls, and pushed events."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from rota.client.errors import CoordinatorUnreachable
from rota.client.transports.causes import broken, closed, foreign
from rota.client.transports.rpc import Channels, problem_in
from rota.protocol.calls import COORDINATOR
from rota.protocol.wire.batching import dump_next, split_batch
from rota.v1.coordinator_pb2 import SessionEvent, SessionOptions, SessionRequest

_PATH = f"/{COORDINATOR}/Session"
_log = logging.getLogger(__name__)
_NEWS = ("rebalance", "election", "generation", "fenced", "drain")


class SessionStream:
    """Is open until either side ends it; then every open call fails, and `is_over` is true.

    `on_news` is called with each pushed event after the callers of earlier answers have received them, and with None
    when the stream is over.
    """

    def __init__(
        self,
        channels: Channels,
        url: str,
        on_news: Callable[[SessionEvent | None], None],
        leave_after_ms: int | None,
    ) -> None:
        """Raises `CoordinatorUnreachable` if the channel cannot be used."""
        method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channels.to(url).stream_stream(_PATH)
        self._stream = method(metadata=channels.metadata)
        self._channels, self._url = channels, url
        self._on_news = on_news
        self._calls = 0
        self._open: dict[int, asyncio.Future[SessionEvent]] = {}
        self._unsent: deque[SessionRequest] = deque()
        self._wake = asyncio.Event()
        self._failure: CoordinatorUnreachable | None = None
        self._idle = asyncio.Event()
        self.is_draining = False
        """The server has asked the client to use another address; it still answers open calls."""
        self._send(self._next_number(), options=SessionOptions(leave_after_ms=leave_after_ms))
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    @property
    def is_over(self) -> bool:
        return self._failure is not None

    @property
    def failure(self) -> CoordinatorUnreachable:
        """Why the stream is over."""
        return self._failure or broken(self._url, "the stream is over")

    async def until_idle(self, timeout_s: float) -> None:
        """Return when no call waits for an answer here, or the stream is over, or after this time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._open and not self.is_over:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            return

    async def call(self, **request: Any) -> SessionEvent:
        """Send a request and return its answer; raise `CoordinatorUnreachable` if there will be none."""
        if self._failure is not None:
            raise self._failure
        number = self._next_number()
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        self._send(number, **request)
        try:
            event: SessionEvent = await answer
            return event
        except asyncio.CancelledError:
            self._send(self._next_number(), cancel=number)
            raise
        finally:
            del self._open[number]
            self._idle.set()

    async def close(self) -> None:
        """Cancel the stream."""
        self._end(closed(was_sent=True) if self._channels.is_closed else broken(self._url, "the stream was cancelled"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stream.cancel()

    def _next_number(self) -> int:
        self._calls += 1
        return self._calls

    def _send(self, number: int, **request: Any) -> None:
        self._unsent.append(SessionRequest(call=number, **request))
        self._wake.set()

    async def _write(self) -> None:
        try:
            while True:
                while self._unsent:
                    await self._stream.write(dump_next(self._unsent))
                self._wake.clear()
                await self._wake.wait()
        except Exception as error:
            # Usually the stream has ended, and the reader has its reason. Otherwise no further call could be sent.
            self._stream.cancel()
            _log.debug("the stream to %s takes no more calls", self._url, exc_info=error)

    async def _read(self) -> None:
        failure = broken(self._url, "the server ended the stream")
        try:
            while isinstance(data := await self._stream.read(), bytes):
                for each in split_batch(SessionEvent, data):
                    self._take(SessionEvent.FromString(each))
        except (DecodeError, ValueError):
            failure = foreign(f"a message of the stream from {self._url} is not Rota's")
        except Exception as error:
            failure = self._failure_of(error)
        finally:
            self._end(failure)

    def _failure_of(self, error: Exception) -> CoordinatorUnreachable:
        problem = problem_in(error)
        if problem is not None:
            return broken(self._url, f"the server ended the stream: {problem.code}: {problem.detail}")
        return self._channels.failure(error, self._url)

    def _take(self, event: SessionEvent) -> None:
        answer = self._open.get(event.call)
        if answer is not None and not answer.done():
            answer.set_result(event)
        elif event.WhichOneof("event") in _NEWS:
            self.is_draining = self.is_draining or event.HasField("drain")
            # Publish later: callers first receive the answers of the same message.
            asyncio.get_running_loop().call_soon(self._on_news, event)

    def _end(self, failure: CoordinatorUnreachable) -> None:
        if self._failure is None:
            self._failure = failure
            for answer in self._open.values():
                if not answer.done():
                    answer.set_exception(failure)
            self._on_news(None)
