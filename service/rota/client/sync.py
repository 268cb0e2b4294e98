"""The SDK for programs without asyncio: the same names, which wait instead of being awaited.

    with rota.client.sync.connect("http://localhost:8080") as client:
        with client.leader("billing-writer") as election:
            for term in election.terms():
                with term:
                    while term.is_valid:
                        write(term.token)

Nothing is written twice: each object here is the `Twin` of one of `rota.client`, which lives on an event loop in a
thread of its own, heartbeats included. Callbacks, `work` and `assign` are plain functions, called in threads. A thread
cannot be cancelled: where the async SDK cancels a body, look at `term.is_valid` or `shard.is_held`, or wait for
`term.lost`; the block raises `LeadershipLost` at its end all the same. What waits for something (`wait_assigned`,
`wait_done`, `lost.wait`) takes a `timeout` in seconds.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import rota.client as sdk
from rota.client.errors import LeadershipLost
from rota.client.threads import LoopThread

Original = TypeVar("Original")

_TWINNED = (sdk.Client, sdk.Member, sdk.Election, sdk.Term, sdk.WorkerPool, sdk.Shard, asyncio.Event)
_WAITS = frozenset({"wait", "wait_assigned", "wait_done"})
_MOST_THREADS = 10_000
"""Threads for callbacks and work come when they are needed: one for each shard that is held, at most."""


def connect(*arguments: Any, **options: Any) -> Twin[sdk.Client]:
    """As `rota.connect`, for a `with` block."""
    thread = _Thread()
    thread.start()

    async def make() -> sdk.Client:
        return sdk.connect(*arguments, **options)

    try:
        return Twin(thread.run(make()), thread)
    except BaseException:
        thread.stop()
        raise


class _Thread(LoopThread):
    """The loop that the twins of one client live on, and the threads that their callbacks run in."""

    def __init__(self) -> None:
        super().__init__("rota")
        self.workers = ThreadPoolExecutor(_MOST_THREADS, "rota callback")

    def stop(self) -> None:
        super().stop()
        self.workers.shutdown()


class Twin(Generic[Original]):
    """Stands for an object of the async SDK: what is awaited there, is waited for here."""

    def __init__(self, original: Original, thread: _Thread) -> None:
        self._original = original
        self._thread = thread
        self._block: _Block | None = None

    def __repr__(self) -> str:
        return f"<{type(self._original).__name__} of rota.client.sync>"

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._original) if not name.startswith("_")]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = self._thread.run(_read(self._original, name))
        return self._method(value) if inspect.ismethod(value) else _twin(value, self._thread)

    def __enter__(self) -> Self:
        self._block = _Block(self._original, self._thread)
        self._block.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, None
        assert block is not None
        try:
            block.leave(error)
        finally:
            if isinstance(self._original, sdk.Client):
                self._thread.stop()

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._thread

        def waits(*arguments: Any, **options: Any) -> Any:
            timeout_s = (
                options.pop("timeout", None) if method.__name__ in ("wait", "wait_assigned", "wait_done") else None
            )
            given = [_given(each, thread) for each in arguments]
            named = {name: _given(each, thread) for name, each in options.items()}
            return _twin(thread.run(_call(method, given, named, timeout_s)), thread)

        waits.__name__, waits.__doc__ = method.__name__, method.__doc__
        return waits


async def _read(original: Any, name: str) -> Any:
    return getattr(original, name)


async def _call(
    method: Callable[..., Any], arguments: list[Any], named: dict[str, Any], timeout_s: float | None
) -> Any:
    """With a timeout, `TimeoutError` where it runs out."""
    async with asyncio.timeout(timeout_s):
        outcome = method(*arguments, **named)
        return await outcome if inspect.isawaitable(outcome) else outcome


def _twin(value: Any, thread: _Thread) -> Any:
    if isinstance(value, AsyncIterator):
        return _iterate(value, thread)
    return Twin(value, thread) if isinstance(value, _TWINNED) else value


def _iterate(values: AsyncIterator[Any], thread: _Thread) -> Iterator[Any]:
    async def following() -> Any:
        return await anext(values, StopAsyncIteration)

    try:
        while (value := thread.run(following())) is not StopAsyncIteration:
            yield _twin(value, thread)
    finally:
        if inspect.isasyncgen(values):
            thread.run(_close(values))


async def _close(values: Any) -> None:
    await values.aclose()


def _given(argument: Any, thread: _Thread) -> Any:
    """What the user hands in: functions are called in threads, with twins."""
    if isinstance(argument, Twin):
        return argument._original
    return _in_thread(argument, thread) if inspect.isroutine(argument) or _is_callable_object(argument) else argument


def _is_callable_object(argument: Any) -> bool:
    return callable(argument) and not isinstance(argument, type)


def _in_thread(function: Callable[..., Any], thread: _Thread) -> Callable[..., Awaitable[Any]]:
    async def call(*arguments: Any, **named: Any) -> Any:
        given = [_twin(each, thread) for each in arguments]
        running = asyncio.get_running_loop().run_in_executor(thread.workers, lambda: function(*given, **named))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # It goes on in its thread until it looks at what it holds. Who cancels waits for that, as for any task.
            await asyncio.wait((running,))
            raise

    if "deadline" in _parameters(function):
        call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # Written in C, without a signature.
        return ()


class _Block:
    """An `async with` block that is entered and left from another thread: one task holds it open."""

    def __init__(self, original: Any, thread: _Thread) -> None:
        self._original = original
        self._thread = thread
        self._entered = threading.Event()
        self._leave = asyncio.Event()
        self._error: BaseException | None = None
        self._holding: Any = None

    def enter(self) -> None:
        if isinstance(self._original, sdk.Term):
            self._thread.run(_do(self._original.begin))
            return
        self._holding = self._thread.submit(self._hold())
        self._entered.wait()
        if self._holding.done():
            self._holding.result()

    def leave(self, error: BaseException | None) -> None:
        """What ended the block meanwhile is raised, unless the body raised something itself."""
        if isinstance(self._original, sdk.Term):
            self._thread.run(_do(self._original.finish))
            if error is None and self._original.lost.is_set():
                raise LeadershipLost(self._original.reason)
            return
        self._thread.run(_do(self._leave.set))
        try:
            self._holding.result()
        except BaseException:
            if error is None:
                raise

    async def _hold(self) -> None:
        try:
            async with self._original:
                self._entered.set()
                await self._leave.wait()
        finally:
            self._entered.set()


async def _do(act: Callable[[], None]) -> None:
    act()
