"""The coordinator behind its guard: every call is looked at here, whichever transport it came by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from contextvars import copy_context
from typing import Any, TypeAlias

from msgspec.structs import replace

from rota.core.access.binding import in_name_of, is_anothers, wrong_with_pod
from rota.core.access.document import AccessDocument
from rota.core.access.quotas import may_park, payer_of
from rota.core.access.rules import (
    LOCATE,
    READ_JOURNAL,
    WATCH,
    Resource,
    is_administrative,
)
from rota.core.replica.forwarding import Submitted
from rota.core.replica.ports import Answer, Cancel, JournalEvent, ShardOwner
from rota.protocol.calls import CALLS, Action, Kind, Need, need_of, refuse
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import (
    Act,
    GetLeader,
    Heartbeat,
    HeartbeatMany,
    LeaveGroup,
    ListGroups,
    ListTopics,
    ListTopicsReply,
    Request,
    VerifyFence,
    parks_for_ms,
)
from rota.protocol.texts import storable
from rota.protocol.values import MAX_PAGE_SIZE
from rota.server.access.identity import CURRENT, NOTE, ORIGIN, Authenticator, Credentials, Identity, unauthenticated
from rota.server.access.meters import PARKED, STREAM, Meters
from rota.server.access.meters import WATCH as A_WATCH
from rota.server.access.open_work import Check, End, Ending, OpenWork, ParkedCall, unpark
from rota.server.ports import ServedCoordinator

_NOTHING_HELD = nullcontext()
"""One for all open work, as there are tens of thousands of streams."""


class AdmitAll:
    """The guard of a server without rules: every caller may do everything."""

    rules = None

    def _admit(self, *_: object) -> None:
        return

    admit = admit_undecoded = admit_needing = admit_unread = _admit

    def in_name_of_caller(self, request: Request) -> Request:
        return request

    def hold(self, *_: object) -> AbstractContextManager[None]:
        return _NOTHING_HELD


ADMIT_ALL = AdmitAll()


class Guard:
    """Authenticates and authorizes callers and applies quotas. Shared by all transports of a server."""

    def __init__(self, authenticator: Authenticator, limits: Limits) -> None:
        self.authenticator = authenticator
        self._policy = authenticator.policy
        self.meters = Meters(authenticator.policy, limits)
        self.open_work = OpenWork()

    @property
    def rules(self) -> AccessDocument:
        return self._policy.document

    async def enter(self, credentials: Credentials) -> Identity:
        """Authenticate the caller, and set the identity of this call and of tasks that it starts. Raises nothing."""
        identity = self.authenticator.known(credentials) or await self.authenticator.identify(credentials)
        CURRENT.set(identity)
        return identity

    def demand_proof(self, why: str) -> None:
        """Deny a caller without proof whatever rules allow `anonymous`: another site's page may have sent the call."""
        if self.current().caller.is_anonymous and not self.current().refusal:
            CURRENT.set(unauthenticated(self._policy, why))

    def current(self) -> Identity:
        """Identity of the current call; anonymous if none was set."""
        return CURRENT.get(None) or unauthenticated(self._policy)

    # --- before a request is read, and once it is: all raise `RejectedRequest` ---

    def admit_undecoded(self, request: type[Request]) -> None:
        """Raise unless the caller may do this anywhere: even the namespace is in the message."""
        self.current().check_ever(CALLS[request].needs)

    def admit_needing(self, need: Need) -> None:
        """Admit an operation that is no request of the protocol, as `admit_undecoded` does."""
        self.current().check_ever((need,))

    def admit_unread(self, request: type[Request], namespace: str, name: str) -> None:
        """Raise if the caller may ask nothing of this kind there, whatever the request says.

        So that the bodies of callers without rights are neither awaited nor parsed.
        """
        self.current().check_any(CALLS[request].needs, namespace, name)

    def admit(self, request: Request) -> None:
        """Raise unless the caller may ask this, in the name that the request gives."""
        identity, document = self.current(), self._policy.document
        identity.check(need_of(request), request.namespace, request.key)
        if document.bind_members_to_pods:
            wrong = wrong_with_pod(request, identity.caller, requires_pods=document.require_pods)
            if wrong:
                raise RejectedRequest(ErrorCode.GROUP_AUTHORIZATION_FAILED, f"{identity.caller.subject}: {wrong}")

    def admit_call(self, need: Need, namespace: str = "", group_id: str = "") -> None:
        """Admit and charge an operation that is no request of the protocol; without a namespace it is the server's."""
        self.current().check(need, namespace, group_id)
        self.charge(namespace)

    def charge(self, namespace: str = "", opening: tuple[str, ...] = ()) -> None:
        """Count an operation that is no request of the protocol, and raise if it is too much."""
        why = self.meters.refusal_of_call(self.payer(), namespace, opening)
        if why:
            raise RejectedRequest(ErrorCode.THROTTLED, why)

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Count a stream of the caller for as long as it is open; raise if it is too much."""
        self.charge(opening=STREAM)
        with self.meters.holding(self.payer(), STREAM):
            yield

    def hold(self, check: Check, end: End) -> AbstractContextManager[None]:
        """Check this caller's work for as long as it is open, and end it if the check raises."""
        return self.open_work.hold(self.current(), check, end)

    # --- the caller's name ---

    def in_name_of_caller(self, request: Request) -> Request:
        """The request with its caller, which only acts for members that it joined as; an administrator may act for all.

        A transport also calls this for a caller whose connection was lost.
        """
        if not self._policy.document.bind_members_to_callers:
            return request
        if isinstance(request, LeaveGroup) and may_administer(self.current(), request):
            return request  # Asked before, for it is carried out member by member.
        return in_name_of(request, self.current().caller.subject)

    def payer(self) -> str:
        """The caller as meters name it."""
        return payer_of(self.current().caller.subject, ORIGIN.get())

    def act(self) -> Act:
        """The author, reason and origin of this call, for the audit trail."""
        return Act(self.current().caller.subject, storable(NOTE.get()), ORIGIN.get())


Admission: TypeAlias = Guard | AdmitAll
"""What a transport asks before it reads a request, and once it has."""


_LISTED = {ListGroups: (Kind.GROUP, "group_id", "groups"), ListTopics: (Kind.TOPIC, "topic", "topics")}
"""By the request for a list: the kind of its things, the field with their names, and the field of the reply."""


class GuardedCoordinator:
    """A coordinator that answers callers that the guard admits. Rejections are answers, as its own are."""

    def __init__(self, inner: ServedCoordinator, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard
        self._meters = guard.meters
        self.shard_count = inner.shard_count
        self.ready, self.drain, self.stop = inner.ready, inner.drain, inner.stop

    async def call(self, request: Request) -> Answer:
        refused = self._refused(request) or self._too_much(request)
        if refused is not None:
            return refused
        if isinstance(request, ListGroups | ListTopics):
            return await self._list(request)
        request = self._signed(request)
        own = self._guard.in_name_of_caller(request)
        answer = await self._ask(own)
        if _is_administrators(own, answer, self._guard.current()):
            answer = await self._ask(request)
        self._meters.settle(self._guard.payer(), request, answer.reply)
        return answer

    def try_heartbeat(self, request: Heartbeat | HeartbeatMany) -> Answer | None:
        refused = self._refused(request)
        if refused is not None:
            return refused
        own: Any = self._guard.in_name_of_caller(request)
        answer = self._inner.try_heartbeat(own)
        if answer is None or _is_administrators(own, answer, self._guard.current()):
            return None  # `call` comes next, and counts.
        why = self._meters.refusal_of_answered(self._guard.payer(), request, answer.reply)
        return Answer(refuse(request, ErrorCode.THROTTLED, why)) if why else answer

    def try_read(self, request: VerifyFence | GetLeader) -> Answer | None:
        refused = self._refused(request)
        if refused is not None:
            return refused
        answer = self._inner.try_read(request)
        return answer and (self._too_much(request) or answer)

    def submit(self, request: Submitted, done: Callable[[Answer], None]) -> Cancel | None:
        refused = self._refused(request) or self._too_much(request)
        if refused is not None:
            done(refused)
            return None
        asked: Any = self._signed(request)
        own: Any = self._guard.in_name_of_caller(asked)
        identity, payer = self._guard.current(), self._guard.payer()
        again: Cancel | None = None
        context = copy_context() if parks_for_ms(own) else None

        def settle(answer: Answer) -> None:
            self._meters.settle(payer, asked, answer.reply)
            done(answer)

        def ask_again_or_settle(answer: Answer) -> None:
            nonlocal again
            if not _is_administrators(own, answer, identity):
                settle(answer)
            elif context is None:
                self._inner.submit(asked, settle)
            else:
                again = context.run(self._submit_and_hold, asked, payer, settle)

        first = self._submit_and_hold(own, payer, ask_again_or_settle)
        return None if context is None else lambda: unpark(again or first)

    def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[JournalEvent]:
        """Raises `RejectedRequest` before there is anything to follow, and as soon as it would be rejected anew."""
        identity = self._guard.current()
        identity.check(WATCH, namespace, group_id)
        self._guard.charge(namespace, A_WATCH)
        events = self._inner.watch(namespace, group_id, after_revision)
        return self._while_allowed(identity, namespace, group_id, events)

    async def check_revision(self, namespace: str, group_id: str, after_revision: int) -> None:
        self._guard.admit_call(WATCH, namespace, group_id)
        await self._inner.check_revision(namespace, group_id, after_revision)

    async def events(self, shard_id: int, after_seq: int, limit: int) -> list[JournalEvent]:
        self._guard.admit_call(READ_JOURNAL)
        return await self._inner.events(shard_id, after_seq, limit)

    def locate(self, namespace: str, group_id: str) -> ShardOwner:
        self._guard.admit_call(LOCATE, namespace, group_id)
        return self._inner.locate(namespace, group_id)

    def owners(self) -> Sequence[ShardOwner]:
        return self._inner.owners()

    # --- inside ------------------------------------------------------------------------------------

    def _refused(self, request: Request) -> Answer | None:
        try:
            self._guard.admit(request)
        except RejectedRequest as rejected:
            return Answer(refuse(request, rejected.code, rejected.detail))
        return None

    async def _ask(self, request: Request) -> Answer:
        if not parks_for_ms(request):
            return await self._inner.call(request)
        parked = self._meters.holding(self._guard.payer(), PARKED, request.namespace)
        with parked if may_park(request) else nullcontext():
            return await self._ask_while_allowed(request)

    def _submit_and_hold(self, request: Submitted, payer: str, done: Callable[[Answer], None]) -> Cancel | None:
        """As `_ask`, without a task."""
        if not parks_for_ms(request):
            return self._inner.submit(request, done)
        parked = ParkedCall(request, done)
        if may_park(request):
            parked.held.enter_context(self._meters.holding(payer, PARKED, request.namespace))
        parked.held.enter_context(self._guard.hold(lambda: self._guard.admit(request), parked.end))
        return parked.submit(self._inner)

    async def _ask_while_allowed(self, request: Request) -> Answer:
        """Neither the caller's proof nor the rules need last as long as a call is parked."""
        ending = Ending()
        try:
            with self._guard.hold(lambda: self._guard.admit(request), ending.end):
                return await ending.wait_for(lambda: self._inner.call(request))
        except RejectedRequest as rejected:
            if rejected is not ending.rejection:
                raise
            return Answer(refuse(request, rejected.code, rejected.detail))

    def _signed(self, request: Request) -> Request:
        """An administrative request with its author, for the audit trail, which the shard's owner writes."""
        if not is_administrative(request):
            return request
        signed: Request = replace(request, act=self._guard.act())
        return signed

    def _too_much(self, request: Request) -> Answer | None:
        why = self._meters.refusal_of(self._guard.payer(), request)
        return Answer(refuse(request, ErrorCode.THROTTLED, why)) if why else None

    async def _list(self, request: ListGroups | ListTopics) -> Answer:
        """A list shows what the caller may look at, and its pages are full of that."""
        identity, shown, page, first = self._guard.current(), list[Any](), request, None
        kind, name, listed = _LISTED[type(request)]
        while True:
            answer = await self._ask(page)
            reply: Any = answer.reply
            if reply.error is not ErrorCode.NONE:
                return answer
            first = first or reply
            shown += [
                each
                for each in getattr(reply, listed)
                if identity.may(Action.DESCRIBE, Resource(kind, page.namespace, getattr(each, name)))
            ]
            if reply.next_after is None or len(shown) >= request.limit:
                break
            # The rest is filtered in large pages, as each costs a look at the whole list, and other calls come between.
            page = replace(page, after=reply.next_after, limit=MAX_PAGE_SIZE)
            if isinstance(page, ListTopics):
                page = replace(page, wait_ms=0)
            await asyncio.sleep(0)
        if isinstance(reply, ListTopicsReply):
            # A change between two pages must count as one that the caller has not seen.
            reply = replace(reply, version=first.version)
        next_after = reply.next_after if len(shown) <= request.limit else getattr(shown[request.limit - 1], name)
        return replace(answer, reply=replace(reply, next_after=next_after, **{listed: tuple(shown[: request.limit])}))

    async def _while_allowed(
        self, identity: Identity, namespace: str, group_id: str, events: Any
    ) -> AsyncIterator[JournalEvent]:
        """Neither the caller's proof nor the rules need last as long as a watch. Raises `RejectedRequest`."""

        def check() -> None:
            identity.look_again()
            identity.check(WATCH, namespace, group_id)

        ending, watch = Ending(), self._meters.holding(self._guard.payer(), A_WATCH, namespace)
        async with aclosing(events):
            with watch, self._guard.hold(check, ending.end):
                while (event := await ending.wait_for(lambda: anext(events, None))) is not None:
                    check()
                    yield event


def behind(guard: Guard | None, coordinator: ServedCoordinator) -> ServedCoordinator:
    """The coordinator as callers reach it; without a guard every caller may do everything."""
    return coordinator if guard is None else GuardedCoordinator(coordinator, guard)


def may_administer(identity: Identity, request: Request) -> bool:
    """Whether the caller is an administrator of the request's group."""
    return identity.may(Action.ADMINISTER, Resource(Kind.GROUP, request.namespace, request.key))


def _is_administrators(own: Request, answer: Answer, identity: Identity) -> bool:
    """Whether the owner rejected what an administrator may do all the same: asked only then, as it is rare."""
    return bool(getattr(own, "subject", "")) and is_anothers(answer.reply) and may_administer(identity, own)
