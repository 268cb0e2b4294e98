"""The watchdog over progress: it reports a member that holds something and gets nothing done."""

from __future__ import annotations

from rota.core.membership.deadline import ProcessingWatchdog


def test_it_barks_when_the_interval_is_over_without_progress() -> None:
    watchdog = ProcessingWatchdog(1_000)
    watchdog.progressed(500)
    assert watchdog.due_at_ms == 1_500
    assert not watchdog.is_over(1_499)
    assert watchdog.is_over(1_500)


def test_progress_puts_it_off() -> None:
    watchdog = ProcessingWatchdog(1_000)
    watchdog.progressed(500)
    watchdog.progressed(1_400)
    assert not watchdog.is_over(2_399)


def test_it_leaves_alone_who_has_nothing_to_do() -> None:
    watchdog = ProcessingWatchdog(1_000)
    watchdog.progressed(500)
    watchdog.rest()
    assert not watchdog.is_over(1_000_000)


def test_without_an_interval_it_never_barks() -> None:
    watchdog = ProcessingWatchdog(None)
    watchdog.progressed(500)
    assert watchdog.due_at_ms is None
