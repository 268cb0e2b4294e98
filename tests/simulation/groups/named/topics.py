"""Topics, strategies and work: changes that a leader notices, and its assignments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rota.client.calls import Caller
from rota.client.connect_worker import ConnectWorker
from rota.client.consumer_protocol import TopicRole, WithheldPartitions
from rota.client.topic_lookout import TopicLookout
from rota.client.topics import TopicsWatch
from rota.core.group import assignment, join, topics
from rota.core.group.rows import TopicRow
from rota.protocol.messages import ListTopics
from tests.simulation.groups.planting import Plants
from tests.simulation.registry import Patch

PLANTS = Plants()
STATIC = "tests/client/test_static_restarts.py::"
UPGRADE = "tests/client/test_rolling_upgrade.py::"
WATCH = "tests/client/test_topics_watch.py::"


@PLANTS.named("clients D2 range", STATIC + "test_growth_is_noticed_long_after_a_rolling_restart[range]")
def a_returning_leader_follows_no_topics(patch: Patch) -> None:
    async def read_assignment(_self: Any) -> None:
        """It knows only what it assigned itself."""

    patch(TopicLookout, "_read_assignment", read_assignment)


@PLANTS.named(
    "clients D2 cooperative",
    STATIC + "test_growth_is_noticed_long_after_a_rolling_restart[cooperative-sticky]",
)
def a_returning_cooperative_leader_follows_no_topics(patch: Patch) -> None:
    a_returning_leader_follows_no_topics(patch)


@PLANTS.named("clients D2 work", STATIC + "test_work_added_long_after_a_leaders_restart_is_assigned")
def a_returning_leader_follows_no_work(patch: Patch) -> None:
    async def read_given(_self: Any) -> None:
        """It knows only its own assignments."""

    patch(ConnectWorker, "_read_given", read_given)


@PLANTS.named(
    "mission D1 claims",
    "tests/client/test_topic_role.py::test_an_eager_member_claims_nothing_when_cooperative",
)
def an_eager_member_claims_what_it_held(patch: Patch) -> None:
    patch(TopicRole, "_claims_under", lambda _self, listed: listed.remembers)


@PLANTS.named("mission D1", UPGRADE + "test_a_second_member_gets_its_half[both]")
def an_upgrade_leaves_partitions_without_an_owner(patch: Patch) -> None:
    an_eager_member_claims_what_it_held(patch)
    patch(TopicRole, "is_chosen_cooperative", lambda self, _protocol_name: self.is_cooperative)


@PLANTS.named("mission D1 net", UPGRADE + "test_a_claim_that_is_never_revoked_is_assigned_all_the_same")
def withheld_partitions_are_not_looked_for(patch: Patch) -> None:
    async def reassign_withheld(_self: Any) -> None:
        """The next rebalance will do."""

    patch(TopicLookout, "_reassign_withheld", reassign_withheld)


@PLANTS.named(
    "the check",
    "tests/client/test_withheld.py::test_claims_of_a_generation_assigned_by_another_are_believed[1]",
)
def a_returning_leader_assumes_that_its_assignment_was_taken(patch: Patch) -> None:
    patch(WithheldPartitions, "note_received", lambda *_: None)


@PLANTS.named("mission D2 version", WATCH + "test_weights_changed_and_changed_back_are_seen[weighted]")
def the_watch_compares_what_topics_were_before_they_were_read(patch: Patch) -> None:
    """A version is a digest of the topic, and the watch waits with that of the answer that made the leader look."""
    former, ask = topics.version_of, Caller.ask

    def version_of(topic: TopicRow) -> str:
        return former(replace(topic, revision=0))

    async def ask_and_keep(self: Any, request: Any, reply_type: Any) -> Any:
        reply = await ask(self, request, reply_type)
        if isinstance(request, ListTopics) and request.wait_ms:
            self.answered = reply.version
        return reply

    def note(self: Any, version: str) -> None:
        self._version = getattr(self._caller, "answered", version)
        self._noted.set()

    patch(topics, "version_of", version_of)
    patch(TopicsWatch, "note", note)
    patch(Caller, "ask", ask_and_keep)


@PLANTS.named(
    "mission D2 net",
    WATCH + "test_a_change_that_the_watch_misses_is_found_by_refresh",
    fails_with="TimeoutError",
)
def a_live_watch_is_all_that_a_leader_looks_at(patch: Patch) -> None:
    patch(TopicLookout, "_is_soon_enough", lambda self: self._is_watching())


# --- what the coordinator takes from a leader ------------------------------------------------------


@PLANTS.named(
    "the check", "tests/unit/group/test_syncing.py::test_a_leader_that_joined_again_moves_nothing_that_is_held"
)
def a_leader_that_joined_again_moves_what_is_held(patch: Patch) -> None:
    def answer(result: Any, group: Any, member: Any, call: int, **named: Any) -> None:
        answered(result, group, member, call, **named)
        member.joined_again = False

    answered = join._answer_from_memory
    patch(join, "_answer_from_memory", answer)


@PLANTS.named(
    "the check", "tests/unit/group/test_quarantine.py::test_a_holder_acquits_what_an_assignment_takes_from_it"
)
def a_holder_that_gave_a_unit_up_acquits_nothing(patch: Patch) -> None:
    patch(assignment, "clear_handed_over", lambda *_: None)
