"""The network between one process and the coordinator: a transport that is slow, loses, repeats, and can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random

from rota.client.errors import CoordinatorUnreachable
from rota.client.transports.port import GroupEvent
from rota.protocol.calls import CALLS, refuse
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import CommitOffsets, JoinGroup, LeaveGroup, Reply, Request, SyncGroup, SyncReply
from rota.protocol.wire.replies import Received
from rota.protocol.wire.routes import REQUESTS
from tests.simulation.groups.coordinator import GroupCoordinator
from tests.simulation.groups.trace import Trace

UNAVAILABLE = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.THROTTLED,
)
_LONGEST_TEXT = 1_000


@dataclass(slots=True)
class Weather:
    """How bad the network is. Each number is the share of requests that this happens to."""

    lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    refused: float = 0.0
    foreign: float = 0.0


CALM = Weather()


class Observer:
    """Notices what goes over a link."""

    def sent(self, request: Request) -> None: ...

    def tried(self, request: Request) -> None:
        """A request is refused on its way to the coordinator. Until its sender has the answer it cannot know that."""

    def arrives(self, request: Request) -> None:
        """The coordinator is about to decide the request."""

    def answered(self, request: Request, reply: Reply) -> None: ...

    def concluded(self, request: Request) -> None:
        """Its sender does not wait for an answer any more."""


class Link:
    """Carries requests for one life of a process."""

    def __init__(
        self, coordinator: GroupCoordinator, loop: asyncio.AbstractEventLoop, rng: Random, trace: Trace, name: str
    ) -> None:
        self._coordinator = coordinator
        self._loop = loop
        self._rng = rng
        self._trace = trace
        self.name = name
        self.weather = CALM
        self.observer = Observer()
        self.is_cut = False
        self.is_silent = False
        """Cut: silent, or refusing connections."""
        self._flights: dict[_Flight, None] = {}
        self._assignments = 0
        """How many have arrived."""

    # --- as a transport -----------------------------------------------------------------------

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        """As `Transport.send`."""
        if self._rng.random() < self.weather.refused:
            return await self._refused_at_once(request)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await self.carry(request)
        except TimeoutError as error:
            raise CoordinatorUnreachable(f"no answer within {timeout_ms} ms") from error

    async def watch(self, *_asked: object) -> AsyncIterator[GroupEvent]:
        """No journal is kept, so that no event ever comes."""
        events: tuple[GroupEvent, ...] = ()
        for event in events:
            yield event

    async def close(self) -> None:
        """Nothing to close."""

    # --- on its way ---------------------------------------------------------------------------

    async def carry(self, request: Request) -> Received:
        """The answer, `CoordinatorUnreachable` where the connection breaks, or nothing ever where it is silent."""
        self._trace.note(self.name, "sends", request)
        self.observer.sent(request)
        if self.is_cut and not self.is_silent:
            await asyncio.sleep(0.001)
            self.observer.concluded(request)
            raise CoordinatorUnreachable("connection refused", was_sent=False)
        outcome: asyncio.Future[Received] = self._loop.create_future()
        flight = _Flight(request, outcome, self._assignments)
        self._flights[flight] = None
        self._take_off(flight)
        try:
            return await outcome
        except asyncio.CancelledError:
            self._hang_up(flight)
            raise
        finally:
            self._flights.pop(flight, None)
            self.observer.concluded(request)

    def _take_off(self, flight: _Flight) -> None:
        weather, draw, delay_s = self.weather, self._rng.random(), 0.001 + 0.004 * self._rng.random()
        if weather is CALM:
            self._loop.call_later(delay_s, self._land, flight)
            return
        if self._happens(weather.slow) and not _is_takeover(flight.request):
            delay_s += 1.5 * self._rng.random()
        if draw < weather.lost:
            self._break(flight)
            return
        if _is_takeover(flight.request):
            # A copy that comes late would fence its own sender, in Kafka too: the coordinator cannot know better.
            pass
        elif draw < weather.lost + weather.late:
            self._break(flight)
            delay_s += 0.5 + 3 * self._rng.random()
        elif draw < weather.lost + weather.late + weather.answer_lost:
            flight.answer_is_lost = True
        if self._happens(weather.twice) and not _is_takeover(flight.request):
            self._loop.call_later(
                delay_s + 0.5 * self._rng.random(), self._land, _Flight(flight.request, None, self._assignments)
            )
        self._loop.call_later(delay_s, self._land, flight)

    def _happens(self, share: float) -> bool:
        return share > 0 and self._rng.random() < share

    def _land(self, flight: _Flight) -> None:
        if self.is_cut or self._misleads(flight):
            self._is_found_broken(flight)
            return
        if (refusal := _rejection(flight.request)) is not None:
            self._fly_back(flight, refusal)
            return
        self.observer.arrives(flight.request)
        flight.call = self._coordinator.submit(flight.request, lambda reply: self._fly_back(flight, reply))
        if flight.is_hung_up:
            self._coordinator.hang_up(flight.call)

    def _misleads(self, flight: _Flight) -> bool:
        """Whether it is a late copy that no coordinator of the protocol can tell from what its sender wants now.

        A static member's first join fences its own sender. A join that comes when its sender has had an assignment
        counts as the next one, by which a member that is not cooperative says that it holds nothing. So it is in Kafka;
        fences hold all the same.
        """
        if _is_takeover(flight.request):
            return flight.is_hung_up
        return isinstance(flight.request, JoinGroup) and flight.assignments < self._assignments

    def _fly_back(self, flight: _Flight, reply: Reply) -> None:
        if flight.outcome is None:
            return
        if flight.answer_is_lost:
            self._break(flight)
            return
        self._loop.call_later(0.001 + 0.004 * self._rng.random(), self._arrive, flight, reply)

    def _arrive(self, flight: _Flight, reply: Reply) -> None:
        outcome = flight.outcome
        if outcome is None or outcome.done() or self.is_cut:
            self._is_found_broken(flight)
            return
        self._trace.note(self.name, "receives", reply)
        if isinstance(reply, SyncReply) and reply.assignment:
            self._assignments += 1
        self.observer.answered(flight.request, reply)
        outcome.set_result(Received(reply, self._coordinator.revision, 1))

    def _break(self, flight: _Flight) -> None:
        """The connection is reset soon, or silent until its caller gives up."""
        self._is_found_broken(flight)
        if self._rng.random() < 0.5:
            self._loop.call_later(0.002 + 0.05 * self._rng.random(), self._reset, flight)

    def _is_found_broken(self, flight: _Flight) -> None:
        """At once where the weather has become calm meanwhile, and else in `mend`."""
        flight.is_broken = True
        if self.weather is CALM:
            self._loop.call_later(0.002, self._reset, flight)

    def _reset(self, flight: _Flight) -> None:
        if flight.outcome is not None and not flight.outcome.done():
            self._trace.note(self.name, "connection reset", type(flight.request).__name__)
            flight.outcome.set_exception(CoordinatorUnreachable("connection reset by peer"))

    def _hang_up(self, flight: _Flight) -> None:
        if not self.is_cut:
            self._loop.call_later(0.002, self._hung_up, flight)

    def _hung_up(self, flight: _Flight) -> None:
        flight.is_hung_up = True
        if flight.call is not None:
            self._coordinator.hang_up(flight.call)

    async def _refused_at_once(self, request: Request) -> Received:
        self.observer.tried(request)
        try:
            await asyncio.sleep(0.002)
            code = self._rng.choice(UNAVAILABLE)
            asked_ms = self._rng.choice((0, 0, 300, 86_400_000)) if code is ErrorCode.THROTTLED else 0
            self._trace.note(self.name, "is refused", (type(request).__name__, code.value, asked_ms))
            reply = refuse(request, code, "bad weather")
            self.observer.answered(request, reply)
        finally:
            self.observer.concluded(request)
        return Received(reply, retry_after_ms=asked_ms)

    # --- faults -------------------------------------------------------------------------------

    def cut(self, *, silent: bool) -> None:
        """From now on nothing gets through; connections refuse, or are silent."""
        self.is_cut, self.is_silent = True, silent
        if not silent:
            for flight in list(self._flights):
                self._reset(flight)

    def repair(self) -> None:
        """Let requests through again. Connections on which an answer was lost are found to be broken."""
        self.is_cut = False
        for flight in list(self._flights):
            if flight.is_broken:
                self._reset(flight)


@dataclass(slots=True, eq=False)
class _Flight:
    request: Request
    outcome: asyncio.Future[Received] | None
    """None for a copy without an awaited answer."""
    assignments: int
    """How many its sender had received."""
    call: int | None = None
    answer_is_lost: bool = False
    is_hung_up: bool = False
    is_broken: bool = False
    """No answer will come."""


def _rejection(request: Request) -> Reply | None:
    """What the server's decoder rejects before the core sees it; only looked at where that is likely."""
    if not _is_odd(request):
        return None
    shape, names = REQUESTS[type(request)], CALLS[type(request)].path_names
    try:
        shape.decode(shape.encode(request), Limits(), **{name: getattr(request, name) for name in names})
    except RejectedRequest as rejected:
        return refuse(request, rejected.code, rejected.detail)
    return None


def _is_takeover(request: Request) -> bool:
    """A static member's first join: it takes the place of whichever process has its instance id."""
    return isinstance(request, JoinGroup) and request.group_instance_id is not None and not request.member_id


def _is_odd(request: Request) -> bool:
    match request:
        case JoinGroup():
            return len(request.reason) > _LONGEST_TEXT
        case SyncGroup():
            return len(request.leader_error or "") > _LONGEST_TEXT
        case LeaveGroup():
            return any(len(member.reason) > _LONGEST_TEXT for member in request.members)
        case CommitOffsets():
            return any(item.offset < 0 for item in request.offsets)
        case _:
            return False
