"""A coordination driver for OpenStack's tooz: `rota://HOST:PORT` as its backend URL, found by its entry point.

Groups are members' groups of type `tooz`; that one was created is a topic of the registry, since a group of Rota's is
there only with its first member. Leaders and locks are elections. Options in the URL: `namespace`,
`session_timeout_ms`, and `tls=1`. Liveness is the SDK's, in a thread: `heartbeat` need not be called.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import tooz
from tooz import coordination, locking, utils

from rota.adapters.candidacy import Candidacy
from rota.adapters.tooz_lock import RotaLock, translated
from rota.client import Generation, sync
from rota.client.errors import GroupIdNotFound
from rota.protocol.defaults import REQUEST_TIMEOUT_MS, SESSION_TIMEOUT_MS, SETTLE_TIMEOUT_MS
from rota.protocol.messages import DescribeReply

PROTOCOL = "tooz-1"
_STABLE_S = SETTLE_TIMEOUT_MS / 1000
_LOOK_AGAIN_S = 0.02
Outcome = TypeVar("Outcome")

_log = logging.getLogger(__name__)


class RotaDriver(coordination.CoordinationDriverCachedRunWatchers):
    """See `tooz.coordination.CoordinationDriver`: this documents only what it leaves open.

    Two that create the same group at the same moment both get that answer.
    """

    CHARACTERISTICS = (
        # The SDK sends heartbeats: no member expires because a program did not call `heartbeat`.
        coordination.Characteristics.NON_TIMEOUT_BASED,
        coordination.Characteristics.DISTRIBUTED_ACROSS_THREADS,
        coordination.Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
        coordination.Characteristics.DISTRIBUTED_ACROSS_HOSTS,
    )

    def __init__(self, member_id: bytes, parsed_url: Any, options: dict[str, Any]) -> None:
        super().__init__(member_id, parsed_url, options)
        given = utils.collapse(options)
        scheme = "https" if given.get("tls") in ("1", "true") else "http"
        self._url = f"{scheme}://{parsed_url.netloc}"
        self._namespace = given.get("namespace", "default")
        self._session_timeout_ms = int(given.get("session_timeout_ms", SESSION_TIMEOUT_MS))
        self._members: dict[bytes, sync.Member[bytes]] = {}
        self._candidacies: dict[bytes, Candidacy] = {}
        self._announced: set[bytes] = set()
        self._lost: set[bytes] = set()
        """Groups that this member was removed from."""
        self._locks: set[RotaLock] = set()
        self._connected: sync.Client | None = None

    @property
    def client(self) -> sync.Client:
        if self._connected is None:
            raise tooz.ToozError("the driver is not started")
        return self._connected

    def _start(self) -> None:
        connecting = sync.connect(
            self._url,
            namespace=self._namespace,
            client_id=_to_name(self._member_id),
            retry_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        self._connected = connecting.__enter__()
        try:
            with translated():
                self._connected.topics()
        except tooz.ToozError:
            self._connected.__exit__(None, None, None)
            self._connected = None
            raise

    def _stop(self) -> None:
        for lock in list(self._locks):
            lock.release()
        for candidacy in self._candidacies.values():
            candidacy.stop()
        self._candidacies.clear()
        self._announced.clear()
        for group_id in list(self._members):
            self._leave(group_id)
        self.client.__exit__(None, None, None)
        self._connected = None

    # --- groups -------------------------------------------------------------------------------

    def create_group(self, group_id: bytes) -> coordination.CoordAsyncResult[None]:
        def create() -> None:
            if self._exists(group_id):
                raise coordination.GroupAlreadyExist(group_id)
            self.client.put_topic(_group(group_id), 1)

        return _done(create)

    def delete_group(self, group_id: bytes) -> coordination.CoordAsyncResult[None]:
        def delete() -> None:
            if self._ids(group_id):
                raise coordination.GroupNotEmpty(group_id)
            self.client.delete_topic(_group(group_id))

        return _done(delete)

    def get_groups(self) -> coordination.CoordAsyncResult[list[bytes]]:
        prefix = _group(b"")
        return _done(
            lambda: [
                _from_name(each.topic.removeprefix(prefix))
                for each in self.client.topics()
                if each.topic.startswith(prefix)
            ]
        )

    def _exists(self, group_id: bytes) -> bool:
        return any(each.topic == _group(group_id) for each in self.client.topics())

    # --- members ------------------------------------------------------------------------------

    def join_group(
        self, group_id: bytes, capabilities: coordination.Capabilities | None = None
    ) -> coordination.CoordAsyncResult[None]:
        def join() -> None:
            if self._member_id in self._ids(group_id):
                raise coordination.MemberAlreadyExist(group_id, self._member_id)
            self._enter(group_id, {} if capabilities is None else capabilities)

        return _done(join)

    def leave_group(self, group_id: bytes) -> coordination.CoordAsyncResult[None]:
        def leave() -> None:
            is_listed = self._member_id in self._ids(group_id)
            self._joined_groups.discard(group_id)
            self._lost.discard(group_id)
            self.stand_down_group_leader(group_id)
            if not self._leave(group_id) and is_listed:
                self._remove_namesakes(group_id)
            if not is_listed:
                raise coordination.MemberNotJoined(group_id, self._member_id)

        return _done(leave)

    def get_members(self, group_id: bytes) -> coordination.CoordAsyncResult[set[bytes]]:
        return _done(lambda: self._ids(group_id))

    def get_member_capabilities(self, group_id: bytes, member_id: bytes) -> coordination.CoordAsyncResult[Any]:
        def read() -> Any:
            name = _to_name(member_id)
            for member in self._described(group_id).members:
                if member.client_id == name:
                    return utils.loads(member.metadata)
            raise coordination.MemberNotJoined(group_id, member_id)

        return _done(read)

    def get_members_with_capabilities(
        self, group_id: bytes
    ) -> coordination.CoordAsyncResult[dict[bytes, coordination.Capabilities | None]]:
        return _done(
            lambda: {
                _from_name(member.client_id): utils.loads(member.metadata)
                for member in self._described(group_id).members
            }
        )

    def update_capabilities(
        self, group_id: bytes, capabilities: coordination.Capabilities
    ) -> coordination.CoordAsyncResult[None]:
        def update() -> None:
            self._ids(group_id)
            if not self._leave(group_id):
                raise coordination.MemberNotJoined(group_id, self._member_id)
            self._enter(group_id, capabilities)

        return _done(update)

    def _remove_namesakes(self, group_id: bytes) -> None:
        """Remove the member with our name: for tooz, the name is the member."""
        for member in self.client.describe_group(_group(group_id)).members:
            if member.client_id == _to_name(self._member_id):
                self.client.remove_member(_group(group_id), member.member_id, "left by its name")

    def _on_lost(self, group_id: bytes) -> None:
        """With tooz a member that was removed stays away until its program joins again; our SDK would join at once."""
        self._lost.add(group_id)
        threading.Thread(target=self._leave, args=(group_id,), daemon=True).start()

    def _leave(self, group_id: bytes) -> bool:
        """End our member of a group, if there is one; a member that had failed is logged."""
        member = self._members.pop(group_id, None)
        if member is None:
            return False
        try:
            member.__exit__(None, None, None)
        except Exception as error:
            _log.error("the member of %s had ended: %s", _group(group_id), error)
        return True

    def _enter(self, group_id: bytes, capabilities: Any) -> None:
        member = self.client.member(
            _group(group_id),
            protocol_type="tooz",
            protocols={PROTOCOL: utils.dumps(capabilities)},
            assign=_nothing_to_assign,
            session_timeout_ms=self._session_timeout_ms,
            on_lost=lambda _removed: self._on_lost(group_id),
        )
        self._lost.discard(group_id)
        self._members[group_id] = member.__enter__()
        try:
            member.wait_assigned()
        except BaseException:
            self._leave(group_id)
            raise
        self._joined_groups.add(group_id)

    def _ids(self, group_id: bytes) -> set[bytes]:
        """The members of the group; `GroupNotCreated` if it was not created."""
        if not self._exists(group_id):
            raise coordination.GroupNotCreated(group_id)
        try:
            found = self.client.describe_group(_group(group_id))
        except GroupIdNotFound:
            return set()
        members = {_from_name(member.client_id) for member in found.members}
        return members - {self._member_id} if group_id in self._lost else members

    def _described(self, group_id: bytes) -> DescribeReply:
        """The group with its members' capabilities, which are known while it is stable."""
        if not self._exists(group_id):
            raise coordination.GroupNotCreated(group_id)
        try:
            return self._settled(_group(group_id))
        except GroupIdNotFound:
            return DescribeReply()

    def _settled(self, name: str) -> DescribeReply:
        """A group of Rota's once no rebalance of it is under way."""
        until = time.monotonic() + _STABLE_S
        while (found := self.client.describe_group(name)).state not in ("Stable", "Empty"):
            if time.monotonic() > until:
                raise coordination.OperationTimedOut(f"{name} does not become stable")
            time.sleep(_LOOK_AGAIN_S)
        reply: DescribeReply = found
        return reply

    # --- leaders and locks ----------------------------------------------------------------------

    def get_leader(self, group_id: bytes) -> coordination.CoordAsyncResult[bytes]:
        def look() -> bytes | None:
            try:
                found = self.client.describe_group(_election(group_id))
            except GroupIdNotFound:
                return None
            names = {member.member_id: member.client_id for member in found.members}
            return _from_name(names[found.leader_id]) if found.leader_id in names else None

        # tooz says bytes, and its own drivers return None where there is none, too.
        return _done(look)  # type: ignore[arg-type]

    def run_elect_coordinator(self) -> None:
        for group_id, hooks in list(self._hooks_elected_leader.items()):
            if not hooks:
                continue
            candidacy = self._candidacies.get(group_id)
            if candidacy is None:
                candidacy = self._candidacies[group_id] = self._candidacy(_election(group_id))
                candidacy.start()
            if not self._has_won(group_id, candidacy):
                self._announced.discard(group_id)
            elif group_id not in self._announced:
                self._announced.add(group_id)
                hooks.run(coordination.LeaderElected(group_id, self._member_id))

    def _has_won(self, group_id: bytes, candidacy: Candidacy) -> bool:
        """Whether this candidate leads, once it knows of the last generation: what tooz gets should be news."""
        candidacy.wait_decided()
        return candidacy.wait_decided(self._settled(_election(group_id)).generation_id)

    def run_watchers(self, timeout: float | None = None) -> list[Any]:
        found = super().run_watchers(timeout)
        self.run_elect_coordinator()
        return found

    def unwatch_elected_as_leader(self, group_id: bytes, callback: Any) -> None:
        super().unwatch_elected_as_leader(group_id, callback)
        if not self._hooks_elected_leader.get(group_id):
            self.stand_down_group_leader(group_id)

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        """Stop campaigning; whether this member led."""
        candidacy = self._candidacies.pop(group_id, None)
        self._announced.discard(group_id)
        if candidacy is None:
            return False
        led = candidacy.is_leader
        candidacy.stop()
        return led

    def get_lock(self, name: bytes) -> locking.Lock:
        return RotaLock(name, lambda: self._candidacy(f"tooz.lock.{_to_name(name)}"), self._locks)

    def _candidacy(self, election: str) -> Candidacy:
        return Candidacy(self.client, election, session_timeout_ms=self._session_timeout_ms)


def _nothing_to_assign(generation: Generation) -> dict[str, bytes]:
    return {member.member_id: b"member" for member in generation.members}


def _done(work: Callable[[], Outcome]) -> coordination.CoordAsyncResult[Outcome]:
    """The outcome, as the promise that tooz expects; the work is done by then."""
    future: Future[Outcome] = Future()
    try:
        with translated():
            future.set_result(work())
    except tooz.ToozError as error:
        future.set_exception(error)
    return coordination.CoordinatorResult(future)


def _group(group_id: bytes) -> str:
    return f"tooz.group.{_to_name(group_id)}"


def _election(group_id: bytes) -> str:
    return f"tooz.leader.{_to_name(group_id)}"


def _to_name(raw: bytes | str) -> str:
    """Any bytes as a name: tooz allows whatever, also text, and we letters and a few signs."""
    text = raw.encode() if isinstance(raw, str) else raw
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode("ascii")


def _from_name(name: str) -> bytes:
    return base64.urlsafe_b64decode(name + "=" * (-len(name) % 4))
