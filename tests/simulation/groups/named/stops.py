"""Stops that take too long, or act too late, and heartbeats that come too often meanwhile."""

from __future__ import annotations

from typing import Any

from rota.agents.exec.run import Run
from rota.agents.exec.stopping import Stopping
from rota.client import driver
from rota.client.stop_deadline import Step, StopDeadline
from tests.simulation.groups.planting import Plants
from tests.simulation.registry import Patch

PLANTS = Plants()


@PLANTS.named(
    "seams m10",
    "tests/client/test_one_deadline.py::test_a_stop_ends_within_its_deadline_in_every_state[a_consumer-run]",
)
def a_stop_does_not_bound_its_waits_for_answers(patch: Patch) -> None:
    former = StopDeadline.left_s
    answers = (Step.COMMIT, Step.LOSS, Step.LEAVE)
    patch(StopDeadline, "left_s", lambda self, step: 60.0 if step in answers else former(self, step))


@PLANTS.named("seams m12", "tests/client/test_threads.py::test_the_heartbeat_thread_beats_once_for_half_a_session")
def the_heartbeat_thread_beats_ten_times_a_second(patch: Patch) -> None:
    def overdue_heartbeat(self: Any) -> Any:
        return self._machine.overdue_heartbeat(self.clock_ms())

    patch(driver.Driver, "overdue_heartbeat", overdue_heartbeat)


@PLANTS.named("seams m13", "tests/exec/test_stopping.py::test_a_loss_shortens_a_stop_that_is_under_way")
def a_loss_does_not_shorten_a_stop(patch: Patch) -> None:
    patch(Stopping, "lose", lambda self, now_ms, reason: self.stop(now_ms, reason, 0 if not self.reason else None))


@PLANTS.named(
    "seams m14",
    "tests/exec/test_backstop.py::test_a_paused_guardian_does_not_keep_its_command_alive",
    in_processes=True,
)
def there_is_no_backstop_when_the_guardian_is_paused(patch: Patch) -> None:
    patch(Run, "_late_in_s", lambda _self: 0.25)
