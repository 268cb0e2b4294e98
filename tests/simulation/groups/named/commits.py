"""Progress: commits in order, flushed before a share is given up, and none that spoils the others."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import ANY

from rota.client import commits, consumer, driver, member
from rota.client.errors import error_for
from rota.protocol.errors import ErrorCode
from tests.simulation.groups.planting import Plants
from tests.simulation.registry import Patch

PLANTS = Plants()
ORDER = "tests/client/test_commits_in_order.py::"


@PLANTS.named("clients D5 B-51b", ORDER + "test_a_repeated_earlier_commit_overwrites_no_later_one")
def each_commit_is_a_task_of_its_own(patch: Patch) -> None:
    def add(self: Any, items: Any) -> Any:
        outcome = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(commits.retrieved)
        entry = commits._Entry(items, self._role.concerned(self._holding.owned, items), self._holding.era, outcome)
        self._tasks.create(self._commit([entry]))
        return outcome

    patch(commits.Commits, "add", add)


@PLANTS.named("clients D5 B-51c", ORDER + "test_an_offset_stored_before_a_commit_is_not_sent_after_it")
def a_commit_leaves_what_was_stored_before(patch: Patch) -> None:
    patch(consumer.Consumer, "_commit_in_turn", lambda self, items: self._commits.add(items))


@PLANTS.named("clients D5 B-52", ORDER + "test_a_repeated_earlier_commit_overwrites_no_later_one")
def outcomes_are_published_out_of_order(patch: Patch) -> None:
    async def notify_of_commits(self: Any) -> None:
        while self._notices:
            await self._notify_of_commit(*self._notices[-1])
            self._notices.pop()

    patch(consumer.Consumer, "_notify_of_commits", notify_of_commits)


@PLANTS.named(
    "clients D5 B-52b",
    ORDER + "test_an_error_in_the_outcomes_function_ends_the_member",
)
def a_function_that_raises_ends_the_member_without_a_leave(patch: Patch) -> None:
    def leave(self: Any, **_options: Any) -> None:
        self._machine.abandon()
        self._wake.set()

    patch(member.Member, "_leave", leave)


@PLANTS.named("clients D5 B-61b", ORDER + "test_background_commits_are_sent_before_the_leave")
def leaving_does_not_wait_for_commits(patch: Patch) -> None:
    async def at_once(*_arguments: Any) -> None:
        """Nothing is waited for."""

    patch(consumer.Consumer, "_before_leaving", at_once)
    patch(commits.Commits, "flush", at_once)


@PLANTS.named(
    "clients D10 B-53c",
    ORDER + "test_an_unacceptable_offset_is_rejected_where_it_is_stored[-1]",
    fails_with="Failed",
)
def any_offset_is_stored(patch: Patch) -> None:
    patch(consumer, "check_offset", lambda _item: None)
    patch(commits, "check_offset", lambda _item: None)


@PLANTS.named(
    "clients D10 B-57a",
    ORDER + "test_one_rejected_offset_does_not_hold_back_the_others",
    fails_with="InvalidRequest",
)
def one_refused_offset_fails_all_of_its_request(patch: Patch) -> None:
    former = commits.Commits._commit_once

    async def commit_once(self: Any, request: Any, entries: Any) -> Any:
        answer = await self._driver.commit(request, 5_000, lambda _answer: None)
        refused = [each for each in answer.reply.partitions if each.error is not ErrorCode.NONE]
        if refused:
            return error_for(refused[0].error, "the request was refused")
        return await former(self, request, entries)

    patch(commits.Commits, "_commit_once", commit_once)
    patch(commits, "InvalidRequest", ZeroDivisionError)


@PLANTS.named(
    "seams D2", "tests/client/test_error_classes.py::test_a_commits_error_is_the_coordinators_word[commit-memory]"
)
def a_rejection_is_applied_before_it_is_noted(patch: Patch) -> None:
    former = driver.Driver.commit

    async def commit(self: Any, request: Any, timeout_ms: int, note: Any) -> Any:
        outcome = await former(self, request, timeout_ms, lambda _answer: None)
        note(outcome)
        return outcome

    patch(driver.Driver, "commit", commit)


@PLANTS.named("seams m05", ORDER + "test_a_commit_that_outlasts_a_handover_is_not_sent_again", fails_with="Failed")
def commits_of_an_earlier_ownership_are_sent_in_the_later_one(patch: Patch) -> None:
    patch(commits._Entry, "era", property(lambda _self: ANY, lambda _self, _era: None))


@PLANTS.named("seams m06", ORDER + "test_a_commit_in_doubt_takes_no_progress_back")
def a_commit_in_doubt_puts_the_lower_offset_back(patch: Patch) -> None:
    patch(consumer, "_kept", lambda former, _item, _error: former)
