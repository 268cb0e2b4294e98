"""The default times add up: each holder survives each failure, as the sums in `docs/explanation/failures.md` say."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rota.agents.exec.stopping import StopTimes
from rota.cli import exec as commands
from rota.cli.sidecar import sidecar
from rota.client.options import ConsumerSettings, MemberSettings, SessionSettings, to_ms
from rota.core.membership import MembershipSettings
from rota.protocol.defaults import (
    COMMAND_REBALANCE_TIMEOUT_MS,
    CONNECT_TIMEOUT_MS,
    CONSUMER_REBALANCE_TIMEOUT_MS,
    LEASE_MS,
    REBALANCE_TIMEOUT_MS,
)
from rota.protocol.messages import Heartbeat
from tests.unit.membership_bench import BEATING, SETTINGS, a_stable_follower

PAGE = Path(__file__).parents[2] / "docs/explanation/failures.md"
ROUND_TRIP_MS = 20
SYN_AGAIN_MS = 1_000
"""After so long, Linux sends the first packet of a connection again."""
TAKE_OVER_MS = 500
"""From the end of a lease until another replica has loaded the shard."""
SILENCE_MS = 6_000
START_MS = 2_500
"""From the kill of a server until the next process asks Postgres."""
SPARE_MS = 1_000
"""For a busy machine."""


@dataclass(frozen=True, slots=True)
class Holder:
    name: str
    session_ms: int
    rebalance_ms: int
    stop_ms: int = 0
    """How long before its deadline it is stopped."""

    def settings(self) -> MembershipSettings:
        return dataclasses.replace(SETTINGS, session_timeout_ms=self.session_ms, rebalance_timeout_ms=self.rebalance_ms)


def default(function: Callable[..., Any], name: str) -> int:
    value: int = inspect.signature(function).parameters[name].default
    return value


def of_sdk(name: str, settings: SessionSettings) -> Holder:
    return Holder(name, to_ms(settings.session_timeout), to_ms(settings.rebalance_timeout))


def of_member(name: str, function: Callable[..., Any], rebalance_ms: int) -> Holder:
    session_ms = default(function, "session_timeout_ms")
    return Holder(name, session_ms, max(session_ms, rebalance_ms))


def of_command(name: str, function: Callable[..., Any], rebalance_ms: int) -> Holder:
    member = of_member(name, function, rebalance_ms)
    times = StopTimes.for_session(member.session_ms)
    return dataclasses.replace(member, stop_ms=times.grace_ms + times.margin_ms)


HOLDERS = (
    of_sdk("a term of an election", MemberSettings()),
    of_sdk("a permit, a lock", SessionSettings()),
    of_sdk("a share of a pool or a consumer", ConsumerSettings()),
    of_member("`rota sidecar`", sidecar, COMMAND_REBALANCE_TIMEOUT_MS),
    of_command("`rota lead`", commands.lead, COMMAND_REBALANCE_TIMEOUT_MS),
    of_command("`rota hold`", commands.hold, COMMAND_REBALANCE_TIMEOUT_MS),
    of_command("`rota work`", commands.work, CONSUMER_REBALANCE_TIMEOUT_MS),
)
OUTAGES = {
    "the owner is killed, and another replica runs on its Postgres": LEASE_MS + TAKE_OVER_MS,
    # A new process cannot know whether the store's clock was set, so that it waits for a lease (`known_owners.py`).
    "the only server is killed on Postgres, and started again within 2.5 s": START_MS + LEASE_MS + TAKE_OVER_MS,
    "the only server is stopped in order, or killed on SQLite, and ready within 6 s": SILENCE_MS,
    "the network path is silent for 6 s": SILENCE_MS,
}


def least_left_ms(holder: Holder, *, over_a_stream: bool) -> int:
    """How much of its session is left before the answer to a heartbeat comes, when it is least."""
    bench = a_stable_follower(holder.settings())
    left = []
    for _ in range(20):
        request = bench.sends()
        assert isinstance(request, Heartbeat)
        # On a stream the heartbeat is answered at once; the transport waits for half of the time.
        wait_ms = (request.wait_ms or 0) // (2 if over_a_stream else 1)
        deadline_ms = bench.membership.deadline_ms
        assert deadline_ms is not None
        left.append(deadline_ms - bench.now_ms - wait_ms - ROUND_TRIP_MS)
        reply = replace(BEATING, waited_ms=0 if over_a_stream else wait_ms)
        bench.answered(reply, after_ms=wait_ms + ROUND_TRIP_MS)
    return min(left)


def retry_ms(holder: Holder) -> int:
    """From the end of an outage until the next attempt: one may have been made just before, in vain, and one pause."""
    return holder.settings().heartbeat_backoff_cap_ms + CONNECT_TIMEOUT_MS - SYN_AGAIN_MS


def survived_ms(holder: Holder, *, over_a_stream: bool = False) -> int:
    return least_left_ms(holder, over_a_stream=over_a_stream) - retry_ms(holder) - holder.stop_ms


@pytest.mark.parametrize("over_a_stream", [False, True])
@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.name)
def test_each_holder_survives_each_outage(holder: Holder, *, over_a_stream: bool) -> None:
    for outage, lasts_ms in OUTAGES.items():
        assert survived_ms(holder, over_a_stream=over_a_stream) >= lasts_ms + SPARE_MS, outage


@pytest.mark.parametrize("holder", HOLDERS, ids=lambda holder: holder.name)
def test_each_holder_survives_a_lost_answer(holder: Holder) -> None:
    settings = holder.settings()
    assert survived_ms(holder) >= settings.heartbeat_grace_ms + SPARE_MS


def test_the_page_has_the_sums() -> None:
    lines = PAGE.read_text().splitlines()

    for line in (*map(row, HOLDERS), *(f"| {outage} | {seconds(lasts_ms)} |" for outage, lasts_ms in OUTAGES.items())):
        assert line in lines, line


def row(holder: Holder) -> str:
    gone_ms = holder.session_ms - least_left_ms(holder, over_a_stream=False)
    times = (holder.session_ms, gone_ms, retry_ms(holder), holder.stop_ms, survived_ms(holder))
    return f"| {holder.name} | {' | '.join(map(seconds, times))} |"


def seconds(ms: int) -> str:
    return f"{round(ms / 1_000, 1):g} s"


def test_with_a_session_of_10_s_commands_need_a_shorter_lease() -> None:
    """As the page says where it advises one."""
    times = StopTimes.for_session(10_000)
    short = Holder("", 10_000, REBALANCE_TIMEOUT_MS, times.grace_ms + times.margin_ms)

    assert survived_ms(short) < LEASE_MS + TAKE_OVER_MS
    assert survived_ms(short) >= 2_000 + TAKE_OVER_MS
    assert survived_ms(dataclasses.replace(short, stop_ms=0)) >= LEASE_MS + TAKE_OVER_MS
