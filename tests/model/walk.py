"""A tiny world around the real core, and a breadth-first walk through everything that can happen in it.

Two clients, one of them static, do in any order what clients do, rightly or not; time passes, and the owner restarts.
A state is reached by its shortest path, and kept as that path: the core is walked there again, which is quicker than
copying it. Nothing here is a model of the core: it is the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from rota.group.state import Group
from rota.protocol import messages as m
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from tests.unit.group.driver import GROUP_ID, NAMESPACE, Core

KEY = (NAMESPACE, GROUP_ID)
LIMITS = Limits(min_session_timeout_ms=1, initial_rebalance_delay_ms=0, empty_group_retention_ms=0)
SESSION_MS, REBALANCE_MS = 1_000, 1_500
CLIENTS = ("a", "b")
INSTANCES = {"a": "ia", "b": None}
# The last two are those of a zombie: a commit and an assignment of the generation before.
CLIENT_ACTIONS = (
    "join",
    "change",
    "sync",
    "beat",
    "wait",
    "commit",
    "leave",
    "hang_up",
    "return",
    "stale_commit",
    "stale_sync",
)
Action = tuple[str, str]
Path = tuple[Action, ...]


@dataclass(slots=True)
class Client:
    """What a client knows of itself."""

    member_id: str = ""
    generation_id: int = -1
    leads: bool = False
    version: int = 0
    call: int | None = None
    kind: str = ""


@dataclass
class TinyWorld:
    """The core with two clients, and what has been said so far."""

    core: Core = field(default_factory=lambda: Core(LIMITS))
    clients: dict[str, Client] = field(default_factory=lambda: {name: Client() for name in CLIENTS})
    leaders: dict[int, str] = field(default_factory=dict)
    sent: dict[int, set[bytes]] = field(default_factory=dict)
    """What the leader of each generation has handed out."""
    drawn: int = 0

    @property
    def group(self) -> Group | None:
        return self.core.shard.groups.get(KEY)

    def actions(self) -> list[Action]:
        """What can happen now."""
        possible: list[Action] = [("time", ""), ("restart", ""), ("delete", "")]
        for name, client in self.clients.items():
            idle = client.call is None
            for action in CLIENT_ACTIONS:
                if action == "hang_up":
                    allowed = not idle
                elif action == "return":
                    allowed = INSTANCES[name] is not None and bool(client.member_id)
                elif action in ("join", "change"):
                    allowed = idle and (action == "join" or (bool(client.member_id) and client.version == 0))
                else:
                    allowed = idle and bool(client.member_id) and (action == "leave" or client.generation_id >= 0)
                if allowed:
                    possible.append((action, name))
        return possible

    def do(self, action: Action) -> None:
        """Let one thing happen, and check the answers."""
        verb, name = action
        lines, highest = len(self.core.journal), self._generation()
        absent = {i for i, member in self.group.members.items() if not member.joined} if self.group else set()
        self._do(verb, name)
        self._heartbeat()
        if any(entry.record.kind == "generation_completed" for entry in self.core.journal[lines:]) and verb != "time":
            assert self.group is not None
            actor = self.clients[name].member_id
            assert not self.group.pending, f"completed while {list(self.group.pending)} are pending"
            left_out = [i for i in self.group.members if i in absent and i != actor]
            assert not left_out, f"S7c: completed without {left_out}, which are neither here nor gone"
        assert self._generation() >= highest, f"S1: generation {self._generation()} after {highest}"

    def _generation(self) -> int:
        return self.group.generation_id if self.group is not None else self.core.shard.last_generation(KEY)

    def _do(self, verb: str, name: str) -> None:
        if verb == "time":
            self.core.fire_next()
        elif verb == "delete":
            self.core.ask(m.DeleteGroup(*KEY))
        elif verb == "restart":
            self.core.restart()
            for client in self.clients.values():
                client.call = None
        else:
            self._act(verb, self.clients[name], name)

    def _act(self, verb: str, client: Client, name: str) -> None:
        match verb:
            case "join":
                self._join(client, name)
            case "change":
                client.version = 1
                self._join(client, name)
            case "return":
                client.member_id, client.generation_id, client.call = "", -1, None
                self._join(client, name)
            case "sync" | "stale_sync":
                self._sync(client, name, back=int(verb == "stale_sync"))
            case "beat" | "wait":
                wait_ms = 500 if verb == "wait" else 0
                generation_id = client.generation_id
                request = m.Heartbeat(*KEY, client.member_id, generation_id, INSTANCES[name], wait_ms)
                self._send(client, request, "beat")
            case "commit" | "stale_commit":
                self._commit(client, name, back=int(verb == "stale_commit"))
            case "leave":
                self._send(client, m.LeaveGroup(*KEY, (m.LeavingMember(client.member_id, INSTANCES[name]),)), "leave")
            case "hang_up":
                assert client.call is not None
                self.core.hang_up(client.call)
                client.call = None

    def _join(self, client: Client, name: str) -> None:
        self.drawn += 1
        protocols = (m.Protocol("p", str(client.version).encode()),)
        times = (SESSION_MS, REBALANCE_MS)
        who = (client.member_id, INSTANCES[name])
        new_id = f"{name}{self.drawn}"
        self._send(client, m.JoinGroup(*KEY, "t", protocols, *times, *who, new_member_id=new_id), "join")

    def _sync(self, client: Client, name: str, back: int) -> None:
        generation_id = client.generation_id - back
        shares: dict[str, bytes] = {}
        group = self.group
        if client.leads and group is not None:
            shares = {member_id: f"{member_id}@{generation_id}".encode() for member_id in group.members}
            if generation_id == group.generation_id:
                self.sent.setdefault(generation_id + (group.state == "Stable"), set()).update(shares.values())
        items = tuple(shares.items())
        request = m.SyncGroup(*KEY, client.member_id, generation_id, INSTANCES[name], assignments=items)
        if back:
            assert self.core.ask(request).error is not ErrorCode.NONE, f"S6: {request} was accepted"
        else:
            self._send(client, request, "sync")

    def _commit(self, client: Client, name: str, back: int) -> None:
        generation_id, group = client.generation_id - back, self.group
        member = group.members.get(client.member_id) if group is not None else None
        is_settled = member is not None and member.settled is not None
        current = is_settled and group is not None and generation_id == group.generation_id
        items = (m.OffsetToCommit("t", 0, 1),)
        request = m.CommitOffsets(*KEY, generation_id, items, client.member_id, INSTANCES[name])
        reply = self.core.ask(request)
        by_admin = generation_id < 0 and group is not None and not group.members
        assert reply.error is not ErrorCode.NONE or current or by_admin, f"S9: {request} was accepted"

    def _send(self, client: Client, request: m.Request, kind: str) -> None:
        client.kind = kind
        client.call = self.core.send(request)

    def _heartbeat(self) -> None:
        for client in self.clients.values():
            if client.call is not None and client.call in self.core.answers:
                reply = self.core.answers[client.call]
                client.call = None
                self._take(client, reply)

    def _take(self, client: Client, reply: m.Reply) -> None:
        match reply:
            case m.JoinReply(error=ErrorCode.NONE, pending=False):
                leader = self.leaders.setdefault(reply.generation_id, reply.leader_id)
                assert self._is_same(leader, reply.leader_id), f"S2: {leader} and {reply.leader_id} lead"
                client.member_id, client.generation_id = reply.member_id, reply.generation_id
                client.leads = reply.leader_id == reply.member_id and not reply.skip_assignment
            case m.JoinReply(error=ErrorCode.MEMBER_ID_REQUIRED):
                client.member_id = reply.member_id
            case m.SyncReply(error=ErrorCode.NONE):
                handed_out = self.sent.get(reply.generation_id, set())
                assert reply.assignment in {b"", *handed_out}, f"S5: {reply.assignment!r} is not of {handed_out}"
                client.generation_id = reply.generation_id
            case _ if reply.error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.member_id, client.generation_id, client.leads = "", -1, False
            case m.LeaveReply():
                client.member_id, client.generation_id, client.leads = "", -1, False

    @staticmethod
    def _is_same(one: str, other: str) -> bool:
        """The static client keeps its place under other ids."""
        return one == other or (one[0] == other[0] == "a")

    # --- what makes a state ----------------------------------------------------------------------

    def key(self) -> Hashable:
        """Two worlds with the same key have the same future. Ids are named by their holders, times are relative."""
        group, now_ms = self.group, self.core.now_ms
        names: dict[str, str] = {}
        for name, client in self.clients.items():
            names.setdefault(client.member_id, name)
        clients = tuple(
            (bool(c.member_id), self._relative(c.generation_id), c.leads, c.version, c.kind if c.call else "")
            for c in self.clients.values()
        )
        if group is None:
            return (clients, None, tuple(sorted(self.core.shard.tombstones)))
        members = tuple(
            (
                names.get(member.member_id, f"old {member.member_id[0]}"),
                member.settled is not None,
                member.settled == member.image,
                member.image.protocols[0].metadata,
                member.joined,
                (member.join_call is not None, member.sync_call is not None, member.heartbeat_call is not None),
                _left(member.session_deadline_ms, now_ms),
                bool(member.assignment),
                member.skip_assignment,
            )
            for member in group.members.values()
        )
        settled = (group.settled.state, names.get(group.settled.leader_id or "")) if group.settled else None
        return (
            clients,
            group.state,
            names.get(group.leader_id or ""),
            members,
            settled,
            tuple((names.get(i), until - now_ms) for i, until in group.pending.items()),
            tuple(names.get(i) for i in group.pending_sync),
            (group.initial, _left(group.join_deadline_ms, now_ms), _left(group.sync_deadline_ms, now_ms)),
            group.generation_id - group.join_generation_id,
            bool(group.offsets),
        )

    def _relative(self, generation_id: int) -> int:
        """How far a client is behind; what is further behind than two generations has the same future."""
        current = self.group.generation_id if self.group is not None else 0
        return -9 if generation_id < 0 else max(generation_id - current, -2)

    def is_at_peace(self) -> bool:
        """Both clients are in one Stable generation, and neither waits."""
        group = self.group
        return (
            group is not None
            and group.state == "Stable"
            and len(group.members) == len(CLIENTS)
            and all(
                c.member_id in group.members and c.generation_id == group.generation_id for c in self.clients.values()
            )
            and all(c.call is None for c in self.clients.values())
        )


def _left(deadline_ms: int | None, now_ms: int) -> int | None:
    return None if deadline_ms is None else deadline_ms - now_ms


@dataclass
class Walk:
    """What a walk has seen."""

    states: dict[Hashable, Path] = field(default_factory=dict)
    transitions: int = 0
    peaceful: set[Hashable] = field(default_factory=set)
    sources: dict[Hashable, set[Hashable]] = field(default_factory=dict)
    """From which states a state was reached."""
    edge: set[Hashable] = field(default_factory=set)
    """States that were not gone on from, because the walk ends there."""


def world_at(path: Path) -> TinyWorld:
    """Walk a path that has been checked before."""
    world = TinyWorld()
    world.core.checking = False
    for action in path:
        world.do(action)
    world.core.checking = True
    return world


def explore(depth: int) -> Walk:
    """Everything that can happen within `depth` steps. An AssertionError names the path that led to it."""
    walk = Walk()
    start = TinyWorld().key()
    walk.states[start] = ()
    queue = deque([start])
    while queue:
        key = queue.popleft()
        path = walk.states[key]
        if len(path) == depth:
            walk.edge.add(key)
            continue
        for action in world_at(path).actions():
            world = world_at(path)
            try:
                world.do(action)
            except AssertionError as broken:
                raise AssertionError(f"{broken} after {[*path, action]}") from broken
            walk.transitions += 1
            after = world.key()
            walk.sources.setdefault(after, set()).add(key)
            if after not in walk.states:
                walk.states[after] = (*path, action)
                queue.append(after)
                if world.is_at_peace():
                    walk.peaceful.add(after)
    return walk


def without_a_way_to_peace(walk: Walk) -> list[Path]:
    """States from which neither peace nor the edge of the walk can be reached: a group would be stuck there."""
    reached = walk.peaceful | walk.edge
    queue = deque(reached)
    while queue:
        for source in walk.sources.get(queue.popleft(), ()):
            if source not in reached:
                reached.add(source)
                queue.append(source)
    return [path for key, path in walk.states.items() if key not in reached]
