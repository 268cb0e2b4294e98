"""Simulated workers of a group whose coordinator shares out connectors and tasks, round by round."""

from __future__ import annotations

from rota.core.assignors.work import CONNECTOR, WorkItem
from rota.core.membership import Assigned, State
from rota.core.types.worker import PROTOCOL_NAME, PROTOCOL_TYPE, WorkerState, decode_share, encode_state
from rota.protocol.messages import Protocol
from tests.simulation.cooperative import CooperativeMember
from tests.simulation.member import TOPIC

RETURN_DELAY_MS = 1_000
"""For how long the work of a worker that is gone waits for its return."""


class ServedWorker(CooperativeMember):
    """It says what it runs, goes on with that through a rebalance, and stops first what another one is to get."""

    protocol_type = PROTOCOL_TYPE
    _has_connector = False
    _stopped_in = -1

    def _protocols(self, version: int) -> tuple[Protocol, ...]:
        tasks = () if self._held is None else self._held.partitions
        running = [WorkItem(TOPIC, number) for number in tasks]
        running += [WorkItem(TOPIC)] if self._has_connector and self._held is not None else []
        # What survives a restart: its name without the number of the start.
        url = self.name.rpartition(".")[0]
        state = WorkerState(
            url, version, tuple(sorted(running)), self._stopped_in, (TOPIC,),
            scheduled_rebalance_max_delay_ms=RETURN_DELAY_MS, topics_debounce_ms=self.world.topics.debounce_ms,
        )  # fmt: skip
        return (Protocol(PROTOCOL_NAME, encode_state(state)),)

    def resync(self) -> bool:
        """The connector has a task more. That is all that anybody has to do."""
        if self.core.state is not State.STABLE:
            return False
        self.world.grow(self.group)
        return True

    def _take_up(self, event: Assigned) -> None:
        share = decode_share(event.assignment)
        given = tuple(work.task for work in share.run if work.task != CONNECTOR)
        former = self.holds
        removed = tuple(number for number in former if number not in given)
        if any(number in given for number in former):
            self.world.sometimes("work kept through a rebalance")
        self._has_connector = WorkItem(TOPIC) in share.run
        self._hold(event.generation_id, given + removed)
        self._giving_up = None
        if removed or share.revoke:
            # It may have to stop what only its former process ran: then it has to say that it does not, too.
            self._stopped_in = event.generation_id
            self._giving_up = self._held
            self.world.sometimes("work stopped before it is granted")
            self.world.scheduler.after(self._revoke_ms(), self, self._gave_up, self._held, given)
