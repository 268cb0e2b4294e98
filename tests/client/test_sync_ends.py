"""The sync twin where one thread closes what another one waits in: an error of the SDK, or an ordered end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rota.client import LeadershipLost, sync

PATIENCE_S = 60.0


def works_until_stopped(begun: threading.Event) -> Callable[[Any], None]:
    def work(subject: Any) -> None:
        begun.set()
        assert subject.stopping.wait_in_thread(PATIENCE_S)

    return work


def test_a_run_in_a_thread_ends_by_the_loss_at_the_blocks_end(url: str) -> None:
    begun = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        with sync.connect(url) as client:
            with client.leader("writer", session_timeout=60.0) as election:
                running = threads.submit(election.run, works_until_stopped(begun))
                assert begun.wait(PATIENCE_S)
        with pytest.raises(LeadershipLost):
            running.result(PATIENCE_S)


def test_an_endless_wait_in_a_thread_ends_with_the_client(url: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        with sync.connect(url) as client:
            begun = threading.Event()

            def follow() -> object:
                begun.set()
                return next(iter(client.watch("nothing")))

            running = threads.submit(follow)
            assert begun.wait(PATIENCE_S)
            client.topics()
        with pytest.raises(RuntimeError, match="closed"):
            running.result(PATIENCE_S)
