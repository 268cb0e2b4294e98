"""What the checks share: the history of a run, and a few indexes made once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rota.core.group.records import GenerationCompleted
from rota.core.types.leader import PROTOCOL_TYPE as LEADER_TYPE
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, Heartbeat, RebalanceGroup, SyncGroup
from tests.simulation.history import Call, GroupKey, History, Landed, UserCommit
from tests.simulation.profiles import Profile

_NONE = ErrorCode.NONE


@dataclass(slots=True)
class Scan:
    """A history with its indexes."""

    history: History
    profile: Profile
    renewals: dict[str, list[int]] = field(default_factory=dict)
    """When each member sent those calls that were acknowledged and renew a session."""
    recorded: dict[str, int] = field(default_factory=dict)
    """When each member sent its last heartbeat that the liveness store took for a silent owner."""
    commits: dict[str, Call] = field(default_factory=dict)
    """Commit calls by the mark in their metadata."""
    user_commits: dict[int, UserCommit] = field(default_factory=dict)
    """The commits of users' own transactions, by the offset: each is used once."""
    payloads: dict[tuple[GroupKey, int], list[SyncGroup]] = field(default_factory=dict)
    """The syncs that brought assignments of a generation, from any member."""
    renewed_all: list[tuple[str, int]] = field(default_factory=list)
    """When every session of a group began afresh: a generation was completed, or (without a group) a shard taken."""
    stepped_down: set[GroupKey] = field(default_factory=set)
    """Groups whose leader an operator asked to step down at some time."""


def scan_of(history: History, profile: Profile) -> Scan:
    """Index a history, in one pass over its calls."""
    scan = Scan(history, profile)
    scan.user_commits = {commit.offset: commit for commit in history.user_commits}
    for call in history.calls:
        match call.request:
            case SyncGroup() as sync if sync.assignments:
                key = (sync.namespace, sync.group_id)
                scan.payloads.setdefault((key, sync.generation_id), []).append(sync)
            case CommitOffsets() as commit:
                scan.commits[commit.offsets[0].metadata] = call
                _note_renewal(scan, call, commit.member_id, (_NONE,))
            case RebalanceGroup(step_down=True) as asked:
                scan.stepped_down.add((asked.namespace, asked.group_id))
            case Heartbeat() as heartbeat:
                _note_renewal(scan, call, heartbeat.member_id, (_NONE, ErrorCode.REBALANCE_IN_PROGRESS))
                if call.reply is not None and not call.epoch and call.reply.error is _NONE:
                    scan.recorded[heartbeat.member_id] = max(call.sent_ms, scan.recorded.get(heartbeat.member_id, 0))
    for lines in history.journal.values():
        scan.renewed_all += ((line.entry.group_id, line.landed_ms) for line in _that_renew(lines))
    scan.renewed_all += (("", claimed_ms) for _, _, _, claimed_ms in history.epochs)
    return scan


def _that_renew(lines: Sequence[Landed]) -> Iterator[Landed]:
    """The generations that renew all sessions; those of elections that took members along do not."""
    began_ms: dict[str, int] = {}
    for line in lines:
        record, group_id = line.entry.record, line.entry.group_id
        if record.kind == "rebalance_started":
            began_ms[group_id] = line.decided_ms
        elif isinstance(record, GenerationCompleted):
            is_at_once = began_ms.get(group_id) == line.decided_ms
            if not (is_at_once and record.protocol_type == LEADER_TYPE):
                yield line


def _note_renewal(scan: Scan, call: Call, member_id: str, alive: tuple[ErrorCode, ...]) -> None:
    if call.reply is not None and call.epoch and call.reply.error in alive:
        scan.renewals.setdefault(member_id, []).append(call.sent_ms)
