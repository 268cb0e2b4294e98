"""Calls, their answers, and what a program learns of trouble."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import suppress
from typing import Any

import httpx
from msgspec import structs

from rota.adapters import singleton
from rota.client import client, clock, consumer_protocol, context
from rota.client.consumer_protocol import TopicRole
from rota.client.driver import Driver
from rota.client.errors import CoordinatorError, CoordinatorUnreachable
from rota.client.transports import causes, http, http_answers
from rota.client.transports.owners import Owners
from rota.core.membership import answers, machine
from rota.core.membership.backoff import Backoff, Pace
from rota.core.membership.reachability import Reachability
from rota.core.types.consumer import decode_assignment
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from rota.protocol.texts import shortened
from rota.protocol.wire import problems
from rota.protocol.wire.problems import Problem, decode_problem
from tests.simulation.groups.planting import Plants
from tests.simulation.registry import Patch

PLANTS = Plants()
FOREIGN = "tests/client/test_foreign_answers.py::"
TROUBLE = "tests/unit/test_membership_trouble.py::"
LOG = "tests/client/test_troubles.py::"


# --- answers of other programs ---------------------------------------------------------------------


@PLANTS.named(
    "clients D3 http",
    FOREIGN + "test_an_answer_of_another_program_counts_as_no_answer[an HTML page with 404-JoinGroup]",
    fails_with="Failed",
)
def a_foreign_page_is_an_invalid_request(patch: Patch) -> None:
    def problem_in(answer: Any, _address: str) -> Problem:
        found = decode_problem(answer.status, answer.document or {}, "")
        return found or Problem(ErrorCode.INVALID_REQUEST, f"HTTP status {answer.status}")

    patch(http_answers, "problem_in", problem_in)


@PLANTS.named(
    "clients D3 C-17", "tests/adapters/test_rejected.py::test_a_rejected_guard_logs_an_error_and_leads_once_it_may"
)
def a_rejected_candidacy_ends_in_silence(patch: Patch) -> None:
    def campaign(self: Any, _client: Any, election: Any) -> None:
        with suppress(CoordinatorError):
            self._follow(election, Backoff(1, 1))

    patch(singleton.SingletonGuard, "_campaign", campaign)
    patch(sys.modules["tests.adapters.test_rejected"], "DEADLINE_S", 2.0)


@PLANTS.named(
    "clients D9 C-08",
    "tests/client/test_ways_out.py::test_an_error_that_the_sdk_does_not_know_costs_no_share",
    fails_with="ZeroDivisionError",
)
def an_unknown_exception_ends_the_member(patch: Patch) -> None:
    async def try_send(self: Any, request: Any, timeout_ms: int) -> Any:
        try:
            return await self._transport.send(request, timeout_ms=timeout_ms)
        except CoordinatorUnreachable as error:
            return error

    patch(Driver, "_try_send", try_send)


@PLANTS.named(
    "clients D9 gzip",
    FOREIGN + "test_an_answer_that_cannot_be_decoded_counts_as_none[gzip]",
    fails_with="DecodingError",
)
def only_errors_of_the_transport_count(patch: Patch) -> None:
    def cause_of(error: Exception, address: str, connect_timeout_ms: int) -> Any:
        if not isinstance(error, httpx.TransportError | CoordinatorUnreachable):
            raise error
        return causes.cause_of(error, address, connect_timeout_ms)

    patch(http, "cause_of", cause_of)


@PLANTS.named(
    "clients D9 Retry-After",
    FOREIGN + "test_an_answer_of_another_program_counts_as_no_answer[a wait that is no number-JoinGroup]",
    fails_with="ValueError",
)
def a_wait_of_any_length_is_read(patch: Patch) -> None:
    def retry_after_ms(header: str) -> int:
        return int(header or 0) * 1000

    patch(problems, "retry_after_ms", retry_after_ms)
    patch(http_answers, "decode_problem", lambda status, document, header: (retry_after_ms(header), None)[1])


@PLANTS.named(
    "clients D9 closed",
    "tests/client/test_no_connection.py::test_a_call_of_a_closed_client_is_reported_as_such[http]",
    fails_with="RuntimeError",
)
def a_closed_client_raises_what_httpx_raises(patch: Patch) -> None:
    former = http.HttpTransport._request

    async def request(self: Any, *arguments: Any) -> Any:
        self._is_closed = False
        return await former(self, *arguments)

    def failure(self: Any, error: Exception, address: str, connect_timeout_s: float) -> Any:
        if isinstance(error, RuntimeError):
            raise error
        return causes.cause_of(error, address, int(connect_timeout_s * 1000))

    patch(http.HttpTransport, "_request", request)
    patch(http.HttpTransport, "_failure", failure)


# --- texts -----------------------------------------------------------------------------------------


@PLANTS.named("clients D4 C-18", TROUBLE + "test_errors_of_a_leader_are_cut_by_the_sender")
def a_leader_s_error_is_sent_whole(patch: Patch) -> None:
    former = shortened
    patch(machine, "shortened", lambda text, most=0: text if most else former(text))


@PLANTS.named("clients D4 B-33b", TROUBLE + "test_reasons_are_cut_by_the_sender")
def a_reason_to_join_is_sent_whole(patch: Patch) -> None:
    patch(machine, "shortened", lambda text, _most=0: text)


@PLANTS.named("clients D4 B-33c", TROUBLE + "test_reasons_are_cut_by_the_sender")
def a_reason_to_leave_is_sent_whole(patch: Patch) -> None:
    former = machine.Membership.next_request

    def next_request(self: Any, now_ms: int) -> Any:
        planned = former(self, now_ms)
        if planned is None or not isinstance(planned.request, LeaveGroup):
            return planned
        leaving = LeavingMember(self.member_id, self.settings.group_instance_id, self.reason)
        return dataclasses.replace(planned, request=structs.replace(planned.request, members=(leaving,)))

    patch(machine.Membership, "next_request", next_request)


# --- trouble ---------------------------------------------------------------------------------------


@PLANTS.named("clients D8 C-09, ux D4 SDK", LOG + "test_the_cause_is_logged_in_time_each_minute_and_at_its_end")
def trouble_is_not_logged(patch: Patch) -> None:
    patch(context.TroubleLog, "repeat", lambda *_arguments, **_named: None)


@PLANTS.named("clients D8 C-10", LOG + "test_the_events_have_the_cause")
def a_failed_call_s_cause_is_dropped(patch: Patch) -> None:
    former = machine.Membership.on_failure

    def on_failure(self: Any, *arguments: Any, was_sent: bool = True) -> Any:
        return former(self, *arguments[:4], was_sent=was_sent)

    patch(machine.Membership, "on_failure", on_failure)


@PLANTS.named(
    "clients D8 B-34y", TROUBLE + "test_a_member_without_room_is_notified_and_goes_on[GROUP_MAX_SIZE_REACHED]"
)
def a_rejection_counts_as_an_answer(patch: Patch) -> None:
    patch(Reachability, "rejection", lambda self, *_arguments: self.answer())


# --- answers that are not checked, and their pace --------------------------------------------------


def _check_alone(patch: Patch, request_type: type, attribute: str) -> None:
    """Take the check of one attribute of one kind of answer away."""
    former = answers.mismatch

    def mismatch(standing: Any, request: Any, reply: Any) -> str:
        found = former(standing, request, reply)
        is_of_type = found.startswith("the answer is about a group of type")
        is_unchecked = isinstance(request, request_type) and is_of_type is (attribute == "protocol_type")
        return "" if is_unchecked else found

    patch(answers, "mismatch", mismatch)
    patch(machine, "mismatch", mismatch)


@PLANTS.named("clients D12 B-08a", TROUBLE + "test_a_join_answer_of_another_protocol_is_not_taken_up[wrong0]")
def a_join_of_another_type_is_taken_up(patch: Patch) -> None:
    _check_alone(patch, JoinGroup, "protocol_type")


@PLANTS.named("clients D12 B-08b", TROUBLE + "test_a_join_answer_of_another_protocol_is_not_taken_up[wrong1]")
def a_join_of_a_protocol_that_was_not_offered_is_taken_up(patch: Patch) -> None:
    _check_alone(patch, JoinGroup, "protocol_name")


@PLANTS.named("clients D12 B-08c", TROUBLE + "test_a_sync_answer_of_another_protocol_is_not_taken_up[wrong1]")
def a_sync_of_another_protocol_is_taken_up(patch: Patch) -> None:
    _check_alone(patch, SyncGroup, "protocol_name")


@PLANTS.named(
    "clients D12 B-48b",
    "tests/client/test_topic_role.py::test_partitions_of_unsubscribed_topics_are_left_out",
)
def partitions_of_any_topic_are_taken_up(patch: Patch) -> None:
    def read(_self: Any, assigned: Any) -> Any:
        return tuple(sorted(decode_assignment(assigned.assignment).partitions))

    patch(TopicRole, "read", read)


@PLANTS.named(
    "clients D12 B-13b",
    "tests/client/test_topic_role.py::"
    "test_strategies_that_no_group_could_use_are_refused_at_once[strategies0-at least one strategy]",
    fails_with="Failed",
)
def any_list_of_strategies_is_taken(patch: Patch) -> None:
    patch(consumer_protocol, "_check_strategies", lambda _names: None)


@PLANTS.named(
    "clients D12 B-65b",
    "tests/client/test_client.py::test_an_unacceptable_name_is_rejected_before_a_call[group_instance_id]",
    fails_with="Failed",
)
def any_instance_id_is_taken(patch: Patch) -> None:
    patch(client, "check_instance_id", lambda _instance_id: None)


@PLANTS.named("clients D12 B-34z", TROUBLE + "test_a_proxy_cannot_silence_a_newcomer_for_a_day")
def patience_has_no_bound(patch: Patch) -> None:
    def retry_after(self: Any, retry_after_ms: int, now_ms: int, valid_until_ms: int | None) -> None:
        wait_ms = (
            retry_after_ms if valid_until_ms is None else min(retry_after_ms, max(0, valid_until_ms - now_ms) // 3)
        )
        self.not_before_ms = max(self.not_before_ms, now_ms + wait_ms)

    patch(Pace, "retry_after", retry_after)


@PLANTS.named("clients D12 B-34x", TROUBLE + "test_a_join_answered_pending_at_once_is_not_sent_in_a_loop")
def pending_answers_are_repeated_at_once(patch: Patch) -> None:
    patch(Pace, "pending", lambda self, _sent_at_ms, now_ms: self.at_once(now_ms))


@PLANTS.named("clients D12 C-16", TROUBLE + "test_a_leader_whose_assign_blocks_is_kept_alive_by_a_thread")
def the_heartbeat_thread_sees_only_members_with_a_share(patch: Patch) -> None:
    former = machine.Membership.overdue_heartbeat

    def overdue_heartbeat(self: Any, now_ms: int) -> Any:
        return None if self.assignment is None else former(self, now_ms)

    patch(machine.Membership, "overdue_heartbeat", overdue_heartbeat)


# --- weaknesses of design --------------------------------------------------------------------------


@PLANTS.named("clients §2 C-21", "tests/client/test_session_clock.py::test_time_asleep_counts")
def time_asleep_does_not_count(patch: Patch) -> None:
    patch(clock.SessionClock, "asleep_s", 0.0)


@PLANTS.named("clients §2 owners", "tests/client/test_owners_known.py::test_a_group_that_was_left_is_forgotten")
def owners_are_remembered_for_ever(patch: Patch) -> None:
    former = Owners.answered

    def answered(self: Any, request: Any, received: Any, by: str) -> None:
        if not isinstance(request, LeaveGroup):
            former(self, request, received, by)

    patch(Owners, "answered", answered)
