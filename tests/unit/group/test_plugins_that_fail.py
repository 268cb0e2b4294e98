"""The functions of a plug-in's protocol type run in the core. One that fails must cost its own group alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from rota.core.group.assignment import AGAIN_MS
from rota.core.group.state import Timer, TimerKind
from rota.core.types import (
    JoinedWith,
    ProtocolType,
    ServerSide,
    Succession,
    TopicFacts,
    Units,
    registry,
    subscribed_topics,
)
from rota.protocol import messages as m
from rota.protocol.causes import Cause
from rota.protocol.errors import ErrorCode
from tests.unit.group.driver import KEY, Core, a_join, a_sync, an_empty_shard
from tests.unit.group.served import a_served_group, end_join_phase, finish, hand_in, join

NAME = "server:luck"


def fail(*_: object) -> Any:
    raise KeyError("luck")


def by_topics(topics: dict[str, TopicFacts]) -> dict[str, bytes]:
    return {"m0": b"".join(b"%d" % facts.partitions for facts in topics.values())}


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a type with these functions in place of harmless ones."""

    def install(**functions: Any) -> None:
        harmless = {"assigns": NAME.__eq__, "assign": lambda _, topics: by_topics(topics)}
        side = ServerSide(**(harmless | functions))
        monkeypatch.setitem(registry._TYPES, "gamble", ProtocolType("gamble", fail, fail, fail, side))

    return install


def a_group() -> Core:
    """The join phase of the one member is over."""
    return a_served_group(((NAME, b""),), 1, "gamble")


@pytest.mark.parametrize(
    "assign",
    [fail, lambda *_: None, lambda *_: {"m0": "text"}, lambda *_: {0: b""}],
    ids=["raises", "no mapping", "no bytes", "no member id"],
)
def test_a_strategy_that_fails_at_once_runs_again_later(
    plug_in: Callable[..., None], assign: Callable[..., Any]
) -> None:
    """It reports the error: the core logs nothing."""
    plug_in(assign=assign)
    core = a_group()
    call = core.send(a_sync("m0", 1))
    assert core.is_parked(call)

    hand_in(core, "out of luck")

    assert (core.answer(call).error, core.answer(call).detail) == (ErrorCode.ASSIGNMENT_FAILED, "out of luck")


@pytest.mark.parametrize("of_members", [True, False])
def test_a_takeover_that_a_strategy_cannot_assign_rebalances(plug_in: Callable[..., None], *, of_members: bool) -> None:
    plug_in(assign=lambda *_: {"i-1": b"share"}, of_members=of_members)
    core = an_empty_shard()
    joins = a_join(new="i-1", instance="i", protocols=((NAME, b""),), protocol_type="gamble")
    core.send(joins)
    end_join_phase(core)

    plug_in(assign=fail, of_members=of_members)
    call = core.send(replace(joins, new_member_id="i-2"))

    assert core.answer(call).generation_id == 2
    assert core.group.rebalance_cause == Cause.STATIC_MEMBER_RETURNED
    hand_in(core, "out of luck")
    assert core.group.state == "PreparingRebalance", "its own group alone fails"


def test_a_takeover_leaves_units_in_quarantine_out(monkeypatch: pytest.MonkeyPatch) -> None:
    side = ServerSide(NAME.__eq__, lambda generation, _: {generation.leader_id: b"a b"}, of_members=True)
    units = Units(lambda share: share.decode().split(), lambda share, out: b" ".join(_kept(share, out)))
    monkeypatch.setitem(registry._TYPES, "gamble", ProtocolType("gamble", fail, fail, None, side, None, units))
    core = an_empty_shard()
    joins = a_join(new="i-1", instance="i", protocols=((NAME, b""),), protocol_type="gamble")
    core.send(joins)
    end_join_phase(core)
    core.ask(m.QuarantineGroup(*KEY, after_falls=1))
    core.ask(m.LeaveGroup(*KEY, (m.LeavingMember("i-1", failed_unit="a"),)))
    core.send(replace(joins, new_member_id="i-2"))
    end_join_phase(core)

    core.send(replace(joins, new_member_id="i-3"))

    assert core.group.quarantine.names == ("a",)
    assert core.group.members["i-3"].assignment == b"b"


def _kept(share: bytes, out: frozenset[str]) -> list[bytes]:
    return [unit for unit in share.split() if unit.decode() not in out]


def test_a_change_of_topics_that_cannot_be_compared_rebalances(plug_in: Callable[..., None]) -> None:
    plug_in(wants_topic=lambda _: lambda _: True, takes_away=fail)
    core = a_group()
    for partitions in (1, 2):
        finish(core, topics={"t": TopicFacts(partitions)})

    assert core.group.state == "PreparingRebalance"
    assert (core.group.rebalance_cause, core.group.rebalance_reason) == (Cause.TOPICS_CHANGED, "the topics changed")
    assert core.group.members["m0"].assignment == b"1"


@pytest.mark.parametrize(
    ("waits_for_ms", "cause", "reason"),
    [
        (None, Cause.TOPICS_CHANGED, "the topics changed"),
        (1, Cause.TOPICS_CHANGED, "the topics changed"),
        (0, Cause.RETURN_DELAY_OVER, "what waited for departed members is given out"),
        (-1, Cause.RETURN_DELAY_OVER, "what waited for departed members is given out"),
    ],
)
def test_a_rebalance_by_the_server_says_why(
    plug_in: Callable[..., None], waits_for_ms: int | None, cause: Cause, reason: str
) -> None:
    functions = {"wants_topic": lambda _: lambda _: True, "takes_away": lambda *_: True}
    plug_in(**functions)
    core = a_group()
    finish(core, topics={"t": TopicFacts(1)})
    until_ms = None if waits_for_ms is None else core.now_ms + waits_for_ms

    plug_in(**functions, again_at_ms=lambda _: until_ms)
    finish(core, topics={"t": TopicFacts(2)})

    assert (core.group.rebalance_cause, core.group.rebalance_reason) == (cause, reason)


def test_an_assignment_that_cannot_be_described_is_given_out(plug_in: Callable[..., None]) -> None:
    plug_in(wants_topic=lambda _: lambda _: True, describe=fail)
    core = a_group()

    finish(core)

    assert core.last("assignment_synced").reason == f"the server assigned generation 1 by {NAME}"


@pytest.mark.parametrize(("again_ms", "asked_ms"), [(-1, AGAIN_MS), (0, AGAIN_MS), (1, 1)])
def test_a_strategy_does_not_keep_the_server_busy(plug_in: Callable[..., None], again_ms: int, asked_ms: int) -> None:
    """It names a time that is over, although it has just assigned the group."""
    plug_in(wants_topic=lambda _: lambda _: True)
    core = a_group()
    core.advance(0)
    again_at_ms = core.now_ms + again_ms

    plug_in(wants_topic=lambda _: lambda _: True, again_at_ms=lambda _: again_at_ms)
    finish(core)

    asked = [timer for *_, timer in core._timers if timer.kind is TimerKind.ASSIGN]
    assert asked == [Timer(TimerKind.ASSIGN, *KEY, "", core.now_ms + asked_ms)]


@pytest.mark.parametrize(
    ("name", "functions", "why"),
    [
        (NAME, {"check": fail}, "metadata of 'server:luck': KeyError('luck')"),
        ("server:luck(x", {"assigns": fail}, "the server cannot assign groups of type 'gamble' by 'server:luck(x'"),
    ],
    ids=["metadata", "name"],
)
def test_a_join_that_a_plug_in_cannot_check_is_rejected(
    plug_in: Callable[..., None], name: str, functions: dict[str, Any], why: str
) -> None:
    plug_in(**functions)

    answer = an_empty_shard().ask(a_join(new="m", protocol_type="gamble", protocols=((name, b""),)))

    assert (answer.error, answer.detail) == (ErrorCode.INVALID_REQUEST, why)


def test_a_leader_that_gives_its_protocol_up_says_nothing(plug_in: Callable[..., None]) -> None:
    said: list[bytes] = []

    def elect(members: Sequence[JoinedWith], _leader_id: str) -> str:
        said.extend(each.metadata for each in members)
        return members[0].member_id

    plug_in(succession=Succession(elect, lambda *_: {}, lambda _: 0, lambda _: "", lambda _: None))
    core = a_served_group(((NAME, b"luck"), ("other", b"")), 1, "gamble")

    join(core, "m0", (("other", b""),), "gamble")

    assert said == [b"luck", b""]
    assert core.group.protocol_name == "other"


def test_a_subscription_that_a_plug_in_cannot_read_is_unknown(plug_in: Callable[..., None]) -> None:
    plug_in()

    assert subscribed_topics("gamble", b"") is None
