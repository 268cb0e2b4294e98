"""A SetPartitioner as in kazoo: a set of items that the members of a party share.

    partitioner = SetPartitioner("http://localhost:8080", "/work_queues", {"queue-1", "queue-2", "queue-3"})
    while True:
        if partitioner.failed:
            raise RuntimeError("lost")
        if partitioner.release:
            partitioner.release_set()
        elif partitioner.acquired:
            for queue in partitioner:
                ...
        elif partitioner.allocating:
            partitioner.wait_for_acquire()

States, names and their meaning are kazoo's. Kazoo need not be installed.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from rota.client import sync
from rota.client.options import REBALANCE_TIMEOUT_S, SESSION_TIMEOUT_S
from rota.core.assignors import TopicPartition
from rota.protocol.defaults import SETTLE_TIMEOUT_MS

ALLOCATING: Final = "ALLOCATING"
ACQUIRED: Final = "ACQUIRED"
RELEASE: Final = "RELEASE"
FAILURE: Final = "FAILURE"

_log = logging.getLogger(__name__)


class SetPartitioner:
    """Each item is held by one member at a time; a member that releases late is removed and gets the state `FAILURE`.

    Members with different sets do not share: each set is divided among the members with that set.
    """

    def __init__(
        self,
        url: str,
        path: str,
        set: Collection[str],  # noqa: A002 - kazoo's name
        *,
        identifier: str | None = None,
        namespace: str = "default",
        session_timeout: float = SESSION_TIMEOUT_S,
        release_timeout: float = REBALANCE_TIMEOUT_S,
    ) -> None:
        """Join the party at `path`. `identifier` names this member to people."""
        self._things = sorted(set)
        self._held: tuple[str, ...] = ()
        self._state = ALLOCATING
        self._changed = threading.Condition()
        self._leaving = threading.Lock()
        self._has_left = False
        self._failure: BaseException | None = None
        self._path = path
        self._client = sync.connect(url, namespace=namespace, client_id=identifier)
        self._client.__enter__()
        # The name identifies the set; its items are numbered in this order.
        topic = f"set.{hashlib.sha256(repr(self._things).encode()).hexdigest()[:32]}"
        consumer = self._client.consumer(
            f"set-partitioner.{path.strip('/').replace('/', '.')}",
            {topic: len(self._things)},
            "sticky",
            session_timeout=session_timeout,
            rebalance_timeout=release_timeout,
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
            on_lost=self._on_lost,
        )
        try:
            self._consumer = consumer.__enter__()
        except BaseException:
            self._client.__exit__(None, None, None)
            raise
        self._watching = threading.Thread(target=self._watch, name=f"rota set partitioner {path}", daemon=True)
        self._watching.start()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the items of this member; empty unless it is `acquired`."""
        with self._changed:
            return iter(self._held if self._state == ACQUIRED else ())

    @property
    def state(self) -> str:
        """`ALLOCATING`, `ACQUIRED`, `RELEASE` or `FAILURE`."""
        return self._state

    @property
    def allocating(self) -> bool:
        """Whether the set is being divided."""
        return self._state == ALLOCATING

    @property
    def acquired(self) -> bool:
        """Whether this member holds its part."""
        return self._state == ACQUIRED

    @property
    def release(self) -> bool:
        """Whether the set will be divided anew: stop work and call `release_set` soon."""
        return self._state == RELEASE

    @property
    def failed(self) -> bool:
        """Whether this member was lost permanently: create a new partitioner."""
        return self._state == FAILURE

    @property
    def failure(self) -> BaseException | None:
        """Why the coordinator rejected this member, if that is why it `failed`."""
        return self._failure

    def wait_for_acquire(self, timeout: float = SETTLE_TIMEOUT_MS / 1000) -> bool:
        """Wait until this member holds its part; return False after `timeout` seconds, or if it failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._state != ALLOCATING, timeout)
            return self._state == ACQUIRED

    def release_set(self) -> None:
        """Report that all work on the set has stopped. Only then may other members have it."""
        with self._changed:
            if self._state in (RELEASE, ACQUIRED):
                self._move_to(ALLOCATING)

    def finish(self) -> None:
        """Leave the party. Other members may have this member's items at once. Never raises."""
        with self._changed:
            self._move_to(FAILURE)
        with self._leaving:
            if not self._has_left:
                self._has_left = True
                try:
                    self._consumer.__exit__(None, None, None)
                except Exception as error:
                    self._fail(error)
                if self._watching is not threading.current_thread():
                    self._watching.join()  # The iteration calls the client.
                self._client.__exit__(None, None, None)

    def _watch(self) -> None:
        """Notice the end of a member that is rejected before it held anything: it has no loss to report."""
        try:
            for _ in self._consumer.events():
                pass
        except Exception as error:
            if not self._has_left:
                self._fail(error)
                self._finish_in_background()

    def _finish_in_background(self) -> None:
        threading.Thread(target=self.finish, name="set partitioner leaves", daemon=True).start()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            is_new, self._failure = self._failure is None, error
            self._move_to(FAILURE)
        if is_new:
            _log.error("set partitioner %s: failed for good; make a new one: %s", self._path, error)

    def _on_assigned(self, _added: Sequence[TopicPartition], held: Sequence[TopicPartition]) -> None:
        with self._changed:
            if self._state != FAILURE:
                self._held = tuple(self._things[place.partition] for place in held)
                self._move_to(ACQUIRED)

    def _on_revoked(self, _removed: Sequence[TopicPartition]) -> None:
        """Wait for the release; the coordinator waits for this callback until the release timeout."""
        with self._changed:
            if self._state == ACQUIRED:
                self._move_to(RELEASE)
            self._changed.wait_for(lambda: self._state != RELEASE)

    def _on_lost(self, _removed: Sequence[TopicPartition]) -> None:
        """Fail permanently, as kazoo's members do. Ours would join again and hold items without work on them."""
        with self._changed:
            self._move_to(FAILURE)
        self._finish_in_background()

    def _move_to(self, state: str) -> None:
        self._state = state
        if state != ACQUIRED:
            self._held = ()
        self._changed.notify_all()
