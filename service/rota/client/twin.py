"""The sync twins of the SDK's objects: blocking proxies of objects on an event loop in a separate thread.

Their public interface is `sync.pyi`, which docs/generate.py writes.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import rota.client as sdk
from rota.client.callbacks import current_queues, in_own_thread, inside, wants_deadline
from rota.client.connect_worker import WorkShared
from rota.client.consumer_protocol import Partitions
from rota.client.signals import stopped_by_signals
from rota.client.tasks import FinalSignal, contained, until_ended
from rota.client.threads import LoopThread
from rota.client.user_functions import check_plain, check_plain_result, name_of

Original = TypeVar("Original")

Share = TypeVar("Share")
Outcome = TypeVar("Outcome")

WAITS = frozenset({"wait", "wait_assigned", "wait_done"})
"""Methods that also take a `timeout`."""
PURE = frozenset({"protocols", "without", "config_offset"})
"""Options that are plain functions and return soon: the event loop calls them itself."""
ANY_THREAD = frozenset({"is_set", "wait_in_thread", "stop"})
"""Methods that run in the calling thread, without the loop."""
_MOST_THREADS = 10_000
"""Threads for callbacks and work are created when needed: at most one for each held shard."""


class _Thread(LoopThread):
    """The loop of one client's twins, and the threads in which their callbacks run."""

    def __init__(self) -> None:
        super().__init__("rota")
        self.workers = ThreadPoolExecutor(_MOST_THREADS, "rota callback")

    def stop(self) -> None:
        super().stop()
        if not self.was_forked:
            self.workers.shutdown()


class Twin(Generic[Original]):
    """A blocking proxy of an object of the async SDK."""

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
        value = self._thread.run(_do(partial(getattr, self._original, name)))
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
        if not self._thread.was_forked:
            block.leave(error)

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        thread = self._thread

        def waits(*arguments: Any, **options: Any) -> Any:
            timeout_s = options.pop("timeout", None) if method.__name__ in WAITS else None
            given = [_given(each, thread) for each in arguments]
            named = {name: each if name in PURE else _given(each, thread) for name, each in options.items()}
            return _twin(thread.run(_call(method, given, named, timeout_s, current_queues())), thread)

        def runs(*arguments: Any, handle_signals: bool = True, **options: Any) -> Any:
            # Signals arrive in the main thread, which waits here, never in the loop's thread.
            with stopped_by_signals(method.__self__._stops, enabled=handle_signals):  # type: ignore[attr-defined]
                return waits(*arguments, handle_signals=False, **options)

        chosen = method if method.__name__ in ANY_THREAD else runs if method.__name__ == "run" else waits
        if chosen is not method:
            chosen.__name__, chosen.__doc__ = method.__name__, method.__doc__
        return chosen


class Client(Twin[sdk.Client]):
    """A client, which ends its thread at the end of its `with` block, or when it is closed."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._thread.stop()

    def close(self) -> None:
        """Close the client as the async `close` does, and end its thread."""
        try:
            if not (self._thread.was_forked or self._thread.is_over):
                self._thread.run(self._original.close())
        finally:
            self._thread.stop()


class Member(Twin[sdk.Member[Share]]):
    """A member of any kind of group."""


class Consumer(Member[Partitions]):
    """A member that shares the partitions of topics."""


class ConnectWorker(Member[WorkShared]):
    """A worker that shares connectors and tasks."""


class Election(Twin[sdk.Election]):
    """A candidate in an election."""


class Term(Twin[sdk.Term]):
    """A term as leader. Its body is not cancelled: the block raises `LeadershipLost` at its end."""


class Permits(Twin[sdk.Permits]):
    """A permit, or the wait for one. Its body is not cancelled: the block raises `PermitLost` at its end."""

    def __enter__(self) -> Permit:  # type: ignore[override]
        super().__enter__()
        permit: Permit = self.permit
        return permit


class Permit(Term):
    """A granted permit."""


class WorkerPool(Twin[sdk.WorkerPool]):
    """Runs `work(shard)` in a thread for each shard that this process holds."""


class Shard(Twin[sdk.Shard]):
    """One partition while this process works on it."""


class Event(Twin[asyncio.Event]):
    """Waits that take a `timeout`, as with a `threading.Event`."""


TWINS: dict[type[Any], type[Twin[Any]]] = {
    sdk.Client: Client,
    sdk.Member: Member,
    sdk.Consumer: Consumer,
    sdk.ConnectWorker: ConnectWorker,
    sdk.Election: Election,
    sdk.Term: Term,
    sdk.Permits: Permits,
    sdk.Permit: Permit,
    sdk.WorkerPool: WorkerPool,
    sdk.Shard: Shard,
    asyncio.Event: Event,
    FinalSignal: Event,
}
"""The twins by the class of the original."""


def connect(*arguments: Any, **options: Any) -> Client:
    """Connect as `rota.connect` does, for a `with` block."""
    thread = _Thread()
    thread.start()

    async def make() -> sdk.Client:
        return sdk.connect(*arguments, **options)

    try:
        return Client(thread.run(make()), thread)
    except BaseException:
        thread.stop()
        raise


async def _call(
    method: Callable[..., Any],
    arguments: list[Any],
    named: dict[str, Any],
    timeout_s: float | None,
    queues: frozenset[int],
) -> Any:
    """Call the original and wait; raise `TimeoutError` after a timeout. `queues` are those whose callback the caller
    is.
    """
    with inside(*queues):
        async with asyncio.timeout(timeout_s):
            outcome = method(*arguments, **named)
            return await outcome if inspect.isawaitable(outcome) else outcome


def _twin(value: Any, thread: _Thread) -> Any:
    if isinstance(value, AsyncIterator):
        return _iterate(value, thread)
    kind = TWINS.get(type(value))
    return value if kind is None else kind(value, thread)


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
    """Convert an argument of the user: functions are called in threads, with twins."""
    if isinstance(argument, Twin):
        return argument._original
    is_function = inspect.isroutine(argument) or (callable(argument) and not isinstance(argument, type))
    return _in_thread(argument, thread) if is_function else argument


def _in_thread(function: Callable[..., Any], thread: _Thread) -> Callable[..., Awaitable[Any]]:
    check_plain(function)

    def plain(*arguments: Any, **named: Any) -> Any:
        with in_own_thread():
            outcome = function(*arguments, **named)
            check_plain_result(function, outcome)
        return outcome

    async def call(*arguments: Any, **named: Any) -> Any:
        given = [_twin(each, thread) for each in arguments]
        # A thread that works in a term must not wait for the end of that work: see `Election.resign`.
        with inside(*(id(each._member) for each in arguments if isinstance(each, sdk.Term))):
            context = copy_context()
        running = asyncio.get_running_loop().run_in_executor(
            thread.workers, lambda: context.run(partial(plain, *given, **named))
        )
        # The function runs in its thread until it checks its share. A canceller waits for its end, as for any task.
        await until_ended(running)
        return running.result()

    call.__qualname__ = name_of(function)
    if wants_deadline(function):
        call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


class _Block:
    """An `async with` block that is entered and left from another thread: one task holds it open."""

    def __init__(self, original: Any, thread: _Thread) -> None:
        self._original = original
        self._thread = thread
        self._entered = threading.Event()
        """Set when the block was entered, or will not be."""
        self._is_entered = False
        self._leave = asyncio.Event()
        self._holding: Any = None
        self._in_term = ExitStack()

    def enter(self) -> None:
        if isinstance(self._original, sdk.Term):
            self._thread.run(_do(self._original._begin))
            self._in_term.enter_context(inside(id(self._original._member)))
            return
        self._holding = self._thread.submit(contained(self._hold()))
        try:
            self._entered.wait()
        except BaseException:  # After Ctrl-C the block would be entered without a waiting caller.
            self._holding.cancel()
            raise
        if not self._is_entered:
            self._holding.result().result()

    def leave(self, error: BaseException | None) -> None:
        """Raise the error that ended the block after it was entered, unless the body raised one itself."""
        if isinstance(self._original, sdk.Term):
            with suppress(ValueError):  # The block may be left by another thread than it was entered by.
                self._in_term.close()
            self._thread.run(_do(self._original._finish))
            self._original._check(error)
            if error is None and self._original.lost.is_set():
                raise self._original._wording.error(self._original.reason)
            return
        self._thread.submit(_do(self._leave.set))  # Do not wait: Ctrl-C must not undo it.
        try:
            self._holding.result().result()
        except BaseException:
            if error is None:
                raise

    async def _hold(self) -> None:
        try:
            async with self._original:
                self._is_entered = True
                self._entered.set()
                await self._leave.wait()
        finally:
            self._entered.set()


async def _do(act: Callable[[], Outcome]) -> Outcome:
    return act()
