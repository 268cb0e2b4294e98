"""The stage of assigning by the server: one shard, and a test that answers the steps of `Assigning`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rota.core.group.state import Group
from rota.core.replica.assigning import AskTopics, Assigning, Compute, Step
from rota.core.replica.owned_shard import Ready
from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import JoinGroup, LeaveGroup, LeavingMember, ListedTopic, ListTopicsReply, Protocol
from tests.unit.replica.shards import ReplicaOfOneShard


class Replica(ReplicaOfOneShard):
    """The test answers the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.assigning = Assigning()
        self.todo: list[Step] = []
        """Steps without an answer."""
        self.reason = ""
        """Of the last line that an outcome led to."""
        self._calls = 0
        self.load()

    def load(self) -> None:
        self._carry_out(self.load_shard())

    def later(self, ms: int) -> None:
        super().later(ms)
        self.go_on()

    def go_on(self) -> None:
        self.todo += self.assigning.next(self.now_ms)

    # --- the shard -----------------------------------------------------------------------------

    def join(
        self,
        group: str = "g",
        topic: str = "t",
        *,
        namespace: str = "default",
        member_id: str = "",
        instance: str = "",
        debounce_ms: int = 0,
    ) -> str:
        """A member joins, so that the group has a new generation to assign; the member's id."""
        self._calls += 1
        metadata = json.dumps({"topics": [topic], "topics_debounce_ms": debounce_ms}).encode()
        joined = JoinGroup(
            namespace, group, "consumer", (Protocol("server:range", metadata),), 10_000, 60_000,
            member_id=member_id, group_instance_id=instance or f"i{self._calls}", new_member_id=f"m{self._calls}",
        )  # fmt: skip
        self._carry_out(self.owned.submit(self._calls, joined, self.now()))
        return member_id or joined.new_member_id

    def leave(self, member_id: str, group: str = "g") -> None:
        self._calls += 1
        request = LeaveGroup("default", group, (LeavingMember(member_id),))
        self._carry_out(self.owned.submit(self._calls, request, self.now()))

    def _carry_out(self, ready: Ready) -> None:
        """Whatever is decided is durable at once, and timers that are due fire."""
        timers = list(ready.timers)
        while self.owned.has_entries:
            timers += self.owned.committed(self.owned.take_batch().last_seq, self.now()).timers
        for timer in timers:
            if timer.at_ms <= self.now().wall_ms:
                fired = self.owned.on_timer(timer, self.now())
                if fired.assigns is not None:
                    self.assigning.want(self.owned, fired.assigns, self.now_ms)
                self._carry_out(fired)
        self.go_on()

    def rejoin_all(self, group: str = "g") -> None:
        """The members that the join phase waits for join as they joined before."""
        for member in list(self.group(group).members.values()):
            if member.join_call is None and self.group(group).state == "PreparingRebalance":
                self._calls += 1
                image = member.image
                again = JoinGroup(
                    "default", group, "consumer", image.protocols, 10_000, 60_000,
                    member_id=image.member_id, group_instance_id=image.group_instance_id,
                )  # fmt: skip
                self._carry_out(self.owned.submit(self._calls, again, self.now()))

    def group(self, group: str = "g") -> Group:
        return self.owned.shard.groups["default", group]

    def generation_id(self) -> int:
        return self.group().generation_id

    def shares(self, group: str = "g") -> list[list[int]]:
        """Each member's partitions of the topic `t`."""
        members = self.owned.shard.groups["default", group].members.values()
        return [json.loads(member.assignment)["topics"].get("t", []) for member in members if member.assignment]

    # --- the answers ---------------------------------------------------------------------------

    def list(self, *topics: tuple[str, int], more: bool = False) -> None:
        """Answer the one listing that is under way."""
        replies = tuple(ListedTopic(name, partitions) for name, partitions in topics)
        self.answer(ListTopicsReply(next_after=replies[-1].topic if more else None, topics=replies))

    def refuse_listing(self) -> None:
        self.answer(ListTopicsReply(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))

    def answer(self, reply: ListTopicsReply) -> None:
        listing = self.listing()
        assert listing is not None
        self.todo.remove(listing)
        self.assigning.listed(listing, Answer(reply), self.now_ms)
        self.go_on()

    def listing(self) -> AskTopics | None:
        listings = [do for do in self.todo if isinstance(do, AskTopics)]
        assert len(listings) <= 1
        return listings[0] if listings else None

    def jobs(self) -> Sequence[Compute]:
        return [do for do in self.todo if isinstance(do, Compute)]

    def compute(self) -> None:
        """Compute all jobs, and hand the outcomes in."""
        for do in self.jobs():
            self.todo.remove(do)
            self.hand_in(do)

    def hand_in(self, do: Compute) -> None:
        outcome: Mapping[str, bytes] | str
        try:
            outcome = do.assign()
        except ZeroDivisionError as error:
            outcome = str(error)
        ready = do.owned.finish_job(do.job, outcome, self.now())
        if ready is not None:
            for entry in ready.decided.records if ready.decided is not None else ():
                self.reason = getattr(entry.record, "reason", "")
            self._carry_out(ready)
        self.assigning.handed_in(do, outcome, taken=ready is not None)
        self.go_on()

    def assign(self, *topics: tuple[str, int]) -> None:
        """From the listing to the hand-in."""
        self.list(*topics)
        self.compute()

    def grow(self) -> None:
        """A change of topics is notified."""
        self.assigning.topics_changed("default", self.now_ms)
        self.go_on()
