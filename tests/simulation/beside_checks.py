"""Rules about users' own transactions, and about leaders that were asked to step down."""

from __future__ import annotations

from collections.abc import Iterator

from rota.core.group import records as r
from rota.core.types.leader import PROTOCOL_TYPE as LEADER_TYPE
from rota.protocol.messages import FetchOffsets, FetchReply
from tests.simulation.history import GroupKey, Landed, UserCommit
from tests.simulation.ledger import GroupAccount
from tests.simulation.scan import Scan
from tests.simulation.user_commits import expiry_ms

STRANGER = "exceeds"
"""The client id of joins that must all be rejected."""
EMPTIED = "nothing was left in it"
"""Why a sweep deletes a group."""
STEP_DOWN = "was asked to step down"


def is_of_user(record: r.OffsetsCommitted) -> bool:
    """Was this committed in a user's transaction, and taken in later?"""
    return all(item.metadata.startswith("user/") for item in record.offsets)


def check_fence_at_commit(account: GroupAccount, commit: UserCommit) -> Iterator[str]:
    """S9: a user's transaction commits only in the current generation, of which its member is, as of the journal."""
    is_current = commit.generation_id == account.generation_id and account.state != "Empty"
    awaits = account.settled_state == "CompletingRebalance"
    if not is_current or awaits or commit.member_id not in account.settled:
        yield f"S9 {commit} landed in {account.settled_state}, generation {account.generation_id}"


def check_taken_in(scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S9, S10: the owner takes in only offsets that were committed before, and progress never goes back by them."""
    record = line.entry.record
    if not isinstance(record, r.OffsetsCommitted) or not is_of_user(record):
        return
    for item in record.offsets:
        commit = scan.user_commits.get(item.offset)
        if commit is None or commit.revision >= line.seq or (commit.topic, commit.partition) != _key(item):
            yield f"S9 {line.entry.group_id}: {item} is taken in, committed was {commit}"
        if item.committed_at_ms is None or item.expires_at_ms != expiry_ms(item.offset, item.committed_at_ms):
            yield f"S10 {line.entry.group_id}: {item} expires at another time than its commit said"
        former = account.offsets.get(_key(item))
        if former is not None and item.offset < former.offset:
            yield f"S10 {line.entry.group_id}: {former} went back by {item}, taken in"


def check_user_commits(scan: Scan) -> Iterator[str]:
    """S10: an offset that a user's transaction commits is taken in, unless it was deleted; the next fetch shows it."""
    ends = _ends(scan)
    for offset, commit in scan.user_commits.items():
        ended = [at_ms for at_ms, last in ends.get((commit.group, commit.partition), ()) if last >= offset]
        waiting = [last for *key, last in scan.history.on_the_way if (*key,) == (commit.group, commit.partition)]
        if not ended and not any(last >= offset for last in waiting):
            yield f"S10 {commit} was neither taken in nor deleted"
    for call in scan.history.calls:
        if isinstance(call.request, FetchOffsets) and isinstance(call.reply, FetchReply) and call.epoch:
            key = (call.request.namespace, call.request.group_id)
            yield from _behind(scan, key, call.sent_ms, call.ret_ms, call.reply, ends)


Ends = dict[tuple[GroupKey, int], list[tuple[int, int]]]
"""By group and partition: when progress up to which offset was taken in, or deleted whatever it was."""
_ALL = 2**62


def _ends(scan: Scan) -> Ends:
    ends: Ends = {}
    for lines in scan.history.journal.values():
        for line in lines:
            for partition, last in _ended(line):
                key = ((line.entry.namespace, line.entry.group_id), partition)
                ends.setdefault(key, []).append((line.landed_ms, last))
    return ends


def _ended(line: Landed) -> Iterator[tuple[int, int]]:
    match line.entry.record:
        case r.OffsetsCommitted() as record if is_of_user(record):
            yield from ((item.partition, item.offset) for item in record.offsets)
        case r.OffsetsDeleted(partitions=partitions):
            yield from ((partition, _ALL) for _, partition in partitions)
        case r.GroupDeleted(reason=reason) if reason != EMPTIED:
            yield from ((partition, _ALL) for partition in (0, 1))


def _behind(scan: Scan, group: GroupKey, sent_ms: int, ret_ms: int, reply: FetchReply, ends: Ends) -> Iterator[str]:
    for found in reply.offsets:
        known = [
            commit
            for commit in scan.user_commits.values()
            if (commit.group, commit.topic, commit.partition) == (group, found.topic, found.partition)
            and commit.at_ms < sent_ms
            and found.offset < commit.offset
        ]
        for commit in known:
            deleted = [ms for ms, last in ends.get((group, found.partition), ()) if last == _ALL]
            if not any(commit.at_ms <= ms <= ret_ms for ms in deleted):
                yield f"S10 a fetch of {sent_ms} was answered {found}, after {commit}"


def check_limits(_scan: Scan, _account: GroupAccount, line: Landed) -> Iterator[str]:
    """S18: a client of which each join breaks a rule is never a member."""
    record = line.entry.record
    if isinstance(record, r.MemberJoined) and record.member.client_id == STRANGER:
        yield f"S18 {line.entry.group_id}: {record.member} was admitted"


def check_step_down(_scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S2: a leader that was asked to step down is followed by another member, if one has joined.

    A new owner of the shard does not know of the request.
    """
    record = line.entry.record
    if isinstance(record, r.GenerationCompleted) and STEP_DOWN in account.rebalance_reason:
        if record.protocol_type == LEADER_TYPE:
            return  # A candidate at work is asked to hand over first (S22).
        others = [
            member_id
            for member_id, image in account.members.items()
            if member_id != account.leader_id and image.group_instance_id is None
        ]
        if others and record.leader_id == account.leader_id and account.leader_id in account.settled:
            yield f"S2 {line.entry.group_id}: {record.leader_id} leads again, though {account.rebalance_reason}"


def _key(item: r.CommittedOffset) -> tuple[str, int]:
    return item.topic, item.partition
