"""The coordinator's answers to programs, the command line, the examples, and what pages say of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from rota.agents.exec import ending, lead
from rota.agents.exec.ending import not_granted
from rota.cli import calls, exits
from rota.cli.exits import CommandFailed
from rota.client import context, election
from rota.core.group import describe, rebalance
from rota.core.types import leader, registry
from rota.protocol import filters
from rota.protocol.wire.shapes import Shape
from tests.simulation.groups.planting import Plants, patch_text
from tests.simulation.registry import Patch
from tests.support import sources
from tests.support.processes import Process

PLANTS = Plants()
ROOT = Path(__file__).parents[4]
MOST_S = 5.0
"""Time for a process to print its line; more than a start takes."""
UNKNOWN = "tests/http/test_http_unknown_names.py::test_the_nearest_name_is_suggested"
FORESEEN = "tests/cli/test_foreseen.py::"
GIVING_UP = "tests/exec/test_giving_up.py::"
PROTOCOL = "tests/docs/test_protocol_page.py::"
REFERENCES = "tests/docs/test_references.py::"


# --- what the coordinator answers ------------------------------------------------------------------


@PLANTS.named(
    "mission D4",
    "tests/unit/protocol_types/test_decoded.py::test_of_a_large_group_only_the_first_members_are_decoded[their size]",
)
def a_group_is_described_in_bytes_alone(patch: Patch) -> None:
    patch(describe, "decoded", lambda _readable: None)


@PLANTS.named("mission D6 fields, ux D10 fields", UNKNOWN)
def an_unknown_field_is_ignored(patch: Patch) -> None:
    former = Shape.decode

    def read(self: Any, data: bytes, limits: Any, **given: Any) -> Any:
        known = {name: item for name, item in msgspec.json.decode(data).items() if name in self.names}
        return former(self, known, limits, **given)

    patch(Shape, "read", read)


@PLANTS.named("mission D6 query", UNKNOWN)
def an_unknown_query_parameter_is_ignored(patch: Patch) -> None:
    former = Shape.from_query

    def from_query(self: Any, parameters: Any) -> Any:
        return former(self, [(name, text) for name, text in parameters if name in self.names])

    patch(Shape, "from_query", from_query)


@PLANTS.named("ux D10 states", UNKNOWN, fails_with="KeyError")
def an_unknown_state_selects_nothing(patch: Patch) -> None:
    patch(filters, "_names_in", lambda text: iter([text]))


@PLANTS.named("mission D6 pending", PROTOCOL + "test_a_pending_id_does_not_delay_the_first_generation")
def a_pending_id_holds_every_phase_open(patch: Patch) -> None:
    former = rebalance.complete_join

    def complete_join(result: Any, group: Any) -> None:
        if group.pending and group.initial:
            rebalance._set_join_timer(result, group, 1_000)
        else:
            former(result, group)

    patch(rebalance, "complete_join", complete_join)


@PLANTS.named("mission D6 priority", PROTOCOL + "test_a_candidate_s_priority_is_shown_and_waits_its_time")
def a_priority_is_shown_nowhere(patch: Patch) -> None:
    former = registry.readable_metadata

    def readable_metadata(protocol_type: str, metadata: bytes) -> Any:
        return None if protocol_type == leader.PROTOCOL_TYPE else former(protocol_type, metadata)

    patch(describe, "readable_metadata", readable_metadata)


# --- names, defaults and pages ---------------------------------------------------------------------


@PLANTS.named("mission D5", REFERENCES + "test_the_references_events_are_exported_events_of_members")
def an_event_has_the_name_of_an_error(patch: Patch) -> None:
    generation_failed = "- `GenerationFailed("
    patch_text(patch, ROOT / "docs/reference/sdk.md", generation_failed, "- `AssignmentFailed(")


@PLANTS.named("ux D5", "tests/unit/test_defaults.py::test_no_other_module_states_a_default_time")
def a_command_has_a_session_of_its_own(patch: Patch) -> None:
    one_default = "session_timeout_ms: SessionTimeout = SESSION_TIMEOUT_MS"
    patch_text(patch, ROOT / "service/rota/cli/exec.py", one_default, "session_timeout_ms: SessionTimeout = 45_000")
    patch(sys.modules["tests.unit.test_defaults"], "sources", sources.sources.__wrapped__)


@PLANTS.named("ux D5 page", REFERENCES + "test_the_times_that_pages_state_are_the_defaults")
def a_page_states_another_default(patch: Patch) -> None:
    page = ROOT / "docs/how-to/migrate-from-kafka.md"
    patch_text(patch, page, "`session_timeout` (15 s", "`session_timeout` (45 s")


def _wait_not_long(patch: Patch) -> None:
    """For a line that a process does not print while the defect is planted."""
    former = Process.wait_until

    def wait_until(self: Any, ready: Any, what: str, _deadline_seconds: float = 0.0) -> None:
        former(self, ready, what, MOST_S)

    patch(Process, "wait_until", wait_until)


# --- programs that fail or wait --------------------------------------------------------------------


@PLANTS.named(
    "ux D3",
    "tests/client/test_ways_out.py::test_work_that_raises_is_retried_where_requested",
    fails_with="TimeoutError",
)
def work_that_raises_ends_the_candidacy(patch: Patch) -> None:
    former = election.Election._campaign

    async def campaign(self: Any, work: Any, _retry: bool) -> Any:
        return await former(self, work, False)

    patch(election.Election, "_campaign", campaign)


@PLANTS.named(
    "ux D3 reason",
    "tests/examples/test_leader_in_fastapi.py::test_a_replica_without_a_coordinator_says_so",
    in_processes=True,
)
def a_replica_without_a_coordinator_says_that_another_leads(patch: Patch) -> None:
    patch(election.Election, "trouble", "")
    if (test := sys.modules.get("tests.examples.test_leader_in_fastapi")) is not None:
        patch(test, "DEADLINE_S", MOST_S)


@PLANTS.named(
    "ux D4 lead",
    GIVING_UP + "test_a_server_that_cannot_be_reached_is_69[0.1-no answer from the coordinator yet]",
    in_processes=True,
)
def a_server_that_cannot_be_reached_is_75(patch: Patch) -> None:
    patch(lead, "exit_unserved", lambda _name, _member: None)


@PLANTS.named("ux D4 work", GIVING_UP + "test_a_topic_that_is_not_registered_is_3", in_processes=True)
def a_topic_that_is_not_registered_is_75(patch: Patch) -> None:
    def exit_unregistered(name: str, _topics: object) -> int:
        return not_granted(name, "other members hold all partitions")

    patch(ending, "_exit_unregistered", exit_unregistered)


@PLANTS.named(
    "ux D4 watch",
    "tests/cli/test_watching_topics.py::test_a_group_that_is_not_there_is_named_and_waited_for",
    fails_with="ProcessFailed",
    in_processes=True,
)
def a_group_that_is_not_there_is_watched_in_silence(patch: Patch) -> None:
    patch(calls.Server, "has_group", lambda _self, _group_id: True)
    _wait_not_long(patch)


@PLANTS.named(
    "ux D4 sidecar",
    "tests/sidecar/test_sidecar.py::test_a_sidecar_without_a_server_says_why_it_is_not_ready",
    fails_with="ProcessFailed",
    in_processes=True,
)
def a_sidecar_says_only_that_it_listens(patch: Patch) -> None:
    patch(context.TroubleLog, "repeat", lambda *_arguments, **_named: None)
    _wait_not_long(patch)


def _foresees_only(patch: Patch, *kinds: type[BaseException]) -> None:
    former = exits.failure_of
    patch(exits, "failure_of", lambda error: former(error) if isinstance(error, kinds) else None)


@PLANTS.named(
    "ux D11 lead",
    "tests/cli/test_failures.py::test_a_wrong_name_is_refused[lead-GROUP]",
    fails_with="RejectedRequest",
)
def a_wrong_name_is_a_traceback_of_rota_lead(patch: Patch) -> None:
    _foresees_only(patch, CommandFailed)


@PLANTS.named(
    "ux D11 work",
    "tests/cli/test_failures.py::test_a_wrong_name_is_refused[work-GROUP]",
    fails_with="RejectedRequest",
)
def a_wrong_name_is_a_traceback_of_rota_work(patch: Patch) -> None:
    _foresees_only(patch, CommandFailed)


@PLANTS.named(
    "ux D11 sidecar",
    "tests/cli/test_failures.py::test_a_wrong_name_is_refused[sidecar-GROUP]",
    fails_with="RejectedRequest",
)
def a_wrong_name_is_a_traceback_of_rota_sidecar(patch: Patch) -> None:
    _foresees_only(patch, CommandFailed)


@PLANTS.named(
    "ux D11 refused",
    FORESEEN + "test_failed_members_in_task_groups_are_one_line_with_a_code[refused by the rules]",
)
def a_refusal_in_a_task_group_is_a_traceback(patch: Patch) -> None:
    test, former = sys.modules["tests.cli.test_foreseen"], exits.failure_of
    patch(test, "failure_of", lambda error: None if isinstance(error, BaseExceptionGroup) else former(error))
