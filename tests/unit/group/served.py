"""Groups of a coordinator that assigns, and the shell that hands its assignments in."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from rota.core.group.assignment import AssignmentJob
from rota.core.group.state import TimerKind
from rota.core.types import TopicFacts
from rota.core.types.leader import Candidate, encode_candidate
from tests.unit.group.driver import KEY, Core, a_join, an_empty_shard

DOCUMENTS = b'{"topics": ["documents"]}'
TOPICS = {"documents": TopicFacts(4), "elsewhere": TopicFacts(9)}
Listed = tuple[tuple[str, bytes], ...]
SERVER_STICKY: Listed = (("server:sticky", DOCUMENTS),)


def a_served_group(protocols: Listed = SERVER_STICKY, members: int = 2, protocol_type: str = "consumer") -> Core:
    """The join phase is over: `m0`, `m1`, … are in generation 1."""
    core = an_empty_shard()
    for number in range(members):
        join(core, f"m{number}", protocols, protocol_type)
    end_join_phase(core)
    return core


def a_served_static_member() -> Core:
    """The member `i-1` of the instance `i` is alone in generation 1, and has its assignment."""
    core = an_empty_shard()
    core.send(a_join(new="i-1", instance="i", protocols=SERVER_STICKY, protocol_type="consumer"))
    core.let_the_join_phase_end()
    finish(core)
    return core


def candidates(members: int = 2, name: str = "single") -> Core:
    """A group of the type `leader`: it has elected `m0`."""
    return a_served_group(((name, encode_candidate(Candidate("http://here"))),), members, "leader")


def join(core: Core, member_id: str, protocols: Listed = SERVER_STICKY, protocol_type: str = "consumer") -> int:
    if member_id not in core.ids:
        core.ids.append(member_id)
        core.ask(a_join(new=member_id, protocols=protocols, protocol_type=protocol_type))
    request = a_join(member_id, protocols=protocols, protocol_type=protocol_type)
    return core.send(replace(request, last_generation_id=core.known_generation_id(member_id)))


def end_join_phase(core: Core) -> None:
    """An election is Stable then; any other generation waits for its assignment."""
    while core.group.state == "PreparingRebalance":
        core.advance(100)


def the_job(core: Core) -> AssignmentJob:
    job = core.shard.assignment_job(*KEY)
    assert job is not None
    return job


def asks_for_assignment(core: Core) -> bool:
    """Whether the shell will be asked for an assignment."""
    return TimerKind.ASSIGN in [timer.kind for *_, timer in core._timers]


def finish(core: Core, job: AssignmentJob | None = None, topics: Mapping[str, TopicFacts] = TOPICS) -> None:
    """Compute the job by these topics, and hand the assignments in."""
    job = job or the_job(core)
    hand_in(core, job.side.assign(job.generation, topics), job)


def hand_in(core: Core, outcome: Mapping[str, bytes] | str, job: AssignmentJob | None = None) -> None:
    core._take(core.shard.finish_job(job or the_job(core), outcome, core.now_ms))
