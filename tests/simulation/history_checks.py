"""Rules about a history as a whole: order in real time, epochs, effects, holders, and forgotten members."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rota.core.group import records as r
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import CommitReply
from tests.simulation.beside_checks import check_user_commits
from tests.simulation.history import Departure, Effect, GroupKey
from tests.simulation.scan import Scan

_NONE = ErrorCode.NONE


def check_real_time(scan: Scan) -> Iterator[str]:
    """S15: an answer reflects all answers from before its request was sent."""
    for call in scan.history.calls:
        if call.epoch and call.revision < call.floor:
            yield f"S15 {call.request}: answered as of {call.revision}, when {call.floor} was known"


def check_epochs(scan: Scan) -> Iterator[str]:
    """S11: each acquisition has a higher epoch, also by the same replica; the journal's epochs never go back."""
    last: dict[int, int] = {}
    for shard_id, epoch, replica_id, _ in scan.history.epochs:
        if epoch <= last.get(shard_id, 0):
            yield f"S11 shard {shard_id}: {replica_id} took it with epoch {epoch} after {last[shard_id]}"
        last[shard_id] = epoch
    owners = {(shard_id, epoch): replica_id for shard_id, epoch, replica_id, _ in scan.history.epochs}
    for shard_id, lines in scan.history.journal.items():
        epoch = 0
        for line in lines:
            if line.epoch < epoch or owners.get((shard_id, line.epoch)) != line.replica_id:
                yield f"S11 shard {shard_id}: seq {line.seq} of {line.replica_id}, epoch {line.epoch} after {epoch}"
            if line.epoch != epoch and line.entry.record.kind != "shard_acquired":
                yield f"S11 shard {shard_id}: epoch {line.epoch} begins with {line.entry.record.kind}"
            epoch = line.epoch


def check_unknown(scan: Scan) -> Iterator[str]:
    """D3: after a write of unknown outcome nothing more is answered in that epoch."""
    for shard_id, epoch, at_ms in scan.history.unknown_appends:
        if scan.history.releases.get((shard_id, epoch), 0) > at_ms:
            yield f"D3 shard {shard_id}: answered in epoch {epoch} after an unknown outcome at {at_ms}"


def check_refused_commits(scan: Scan) -> Iterator[str]:
    """S9, D2: an acknowledged commit is in the journal, once; a refused one is not; else it may be, once."""
    landed: dict[str, int] = {}
    for lines in scan.history.journal.values():
        for line in lines:
            if isinstance(line.entry.record, r.OffsetsCommitted):
                mark = line.entry.record.offsets[0].metadata
                landed[mark] = landed.get(mark, 0) + 1
    for mark, call in scan.commits.items():
        times = landed.get(mark, 0)
        if times > 1:
            yield f"S13 {call.request} took effect {times} times"
        if call.epoch and isinstance(call.reply, CommitReply) and times != (call.reply.error is _NONE):
            rule = "S9" if call.reply.error is _NONE else "D2"
            yield f"{rule} {call.request} was answered {call.reply.error}, and landed {times} times"


def check_fence(scan: Scan) -> Iterator[str]:
    """S7b: no token that the fenced resource accepts is lower than one before, or another member's before."""
    highest: dict[tuple[GroupKey, int], Effect] = {}
    for effect in scan.history.effects:
        key = (effect.group, effect.partition)
        before = highest.get(key)
        if not effect.accepted:
            continue
        if before is not None and effect.token < before.token:
            yield f"S7b {key}: token {effect.token} was accepted after {before.token}"
        elif before is not None and effect.token == before.token and effect.member_id != before.member_id:
            yield f"S7b {key}: token {effect.token} was accepted from {before.member_id} and {effect.member_id}"
        if before is None or effect.token >= before.token:
            highest[key] = effect


def check_one_holder(scan: Scan) -> Iterator[str]:
    """S7d: a token has one holder: no two members ever hold the same partition with the same token."""
    holders: dict[tuple[GroupKey, int, int], str] = {}
    for hold in scan.history.holds:
        for partition in hold.partitions:
            holder = holders.setdefault((hold.group, partition, hold.token), hold.member_id)
            if holder != hold.member_id:
                yield f"S7d {hold.group[1]}: {holder} and {hold.member_id} hold {partition} with token {hold.token}"


def check_overlap(scan: Scan) -> Iterator[str]:
    """S7c: at no time do two members hold the same partition, each by its own reckoning.

    Except for what nobody can prevent without asking the holder: an administrator removed it, the group was
    full, a second process was started under its instance id, or its owner was silent and the liveness store then lost
    its last heartbeat. Those the fencing token stops (S7b).
    """
    ended = _forced_ends(scan) | _ends_without_heartbeats(scan)
    by_partition: dict[tuple[GroupKey, int], list[tuple[int, int, str, str | None]]] = {}
    for hold in scan.history.holds:
        until_ms = min(hold.until_ms, ended.get(hold.member_id, hold.until_ms))
        for partition in hold.partitions if until_ms > hold.from_ms else ():
            spans = by_partition.setdefault((hold.group, partition), [])
            spans.append((hold.from_ms, until_ms, hold.client, hold.group_instance_id))
    for (group, partition), spans in by_partition.items():
        spans.sort()
        for position, (from_ms, until_ms, client, instance_id) in enumerate(spans):
            for other in spans[position + 1 :]:
                if other[0] >= until_ms:
                    break
                if other[2] != client and (instance_id is None or other[3] != instance_id):
                    both = f"{other[2]} from {other[0]}, {client} {from_ms} to {until_ms}"
                    yield f"S7c {group[1]}: two have {partition}: {both}"


def _forced_ends(scan: Scan) -> dict[str, int]:
    """When a member was removed against its will, without its session being over."""
    return {
        line.entry.record.member_id: line.decided_ms
        for lines in scan.history.journal.values()
        for line in lines
        if isinstance(line.entry.record, r.MemberRemoved | r.MemberFenced)
    }


def _ends_without_heartbeats(scan: Scan) -> dict[str, int]:
    """When a member expired of which the liveness store had taken a heartbeat, and lost it."""
    return {
        line.entry.record.member_id: line.decided_ms
        for lines in scan.history.journal.values()
        for line in lines
        if isinstance(line.entry.record, r.MemberExpired)
        and (sent_ms := scan.recorded.get(line.entry.record.member_id)) is not None
        and any(begin_ms <= line.decided_ms and end_ms >= sent_ms for begin_ms, end_ms in scan.history.liveness_faults)
    }


def check_no_spurious_rebalance(scan: Scan) -> Iterator[str]:
    """L5: where only coordinators fail and all members keep heartbeating, no generation changes.

    A failover loses the join phase that is under way, so its members join again, and begin another one.
    """
    if scan.profile.churn_every_ms or scan.history.sometimes["share lost by the local deadline"]:
        return  # Members come and go, or one gave up by itself: its return may well start a rebalance.
    for lines in scan.history.journal.values():
        at_rest: set[GroupKey] = set()
        for line in lines:
            group, record = (line.entry.namespace, line.entry.group_id), line.entry.record
            if isinstance(record, r.AssignmentSynced):
                at_rest.add(group)
            elif isinstance(record, r.RebalanceStarted):
                if group in at_rest and line.decided_ms > scan.profile.quiet_ms:
                    yield f"L5 {line.entry.group_id}: rebalance at {line.decided_ms}: {record.reason}"
                at_rest.discard(group)


def check_departures(scan: Scan) -> Iterator[str]:
    """L2: a dead member is gone by the end of its session, given one more for each takeover and generation since."""
    gone = _gone_ms(scan)
    for departure in scan.history.departures:
        at_ms = gone.get(departure.member_id)
        if at_ms is None:
            continue
        groups = ("", departure.group[1])
        renewals = sum(group_id in groups and departure.at_ms < ms <= at_ms for group_id, ms in scan.renewed_all)
        bound_ms = (1 + renewals) * (scan.profile.session_ms[1] + 2_000) + _unowned_ms(scan, departure)
        # The owner of an embedded store survives pauses that are longer than a lease: it holds its late timers back.
        late = (each.lateness_ms for each in scan.history.stalls if departure.at_ms < each.noticed_ms <= at_ms)
        bound_ms += sum(2 * max(0, late_ms - scan.profile.late_timer_ms) for late_ms in late)
        if at_ms - departure.at_ms > bound_ms:
            yield f"L2 {departure.member_id} died at {departure.at_ms} and was removed only at {at_ms}"


def _unowned_ms(scan: Scan, departure: Departure) -> int:
    """For how long since then no replica has served the shard, beyond the leases that a takeover takes."""
    shard_id, unowned_ms, served_ms = shard_of(*departure.group, scan.profile.shards), 0, departure.at_ms
    for moved, epoch, _, at_ms in scan.history.epochs:
        if moved == shard_id and at_ms > departure.at_ms:
            unowned_ms += max(0, at_ms - served_ms - 3 * scan.profile.lease_ms)
        if moved == shard_id:
            served_ms = max(served_ms, at_ms, scan.history.releases.get((shard_id, epoch), 0))
    return unowned_ms


def _gone_ms(scan: Scan) -> dict[str, int]:
    return {
        line.entry.record.member_id: line.decided_ms
        for lines in scan.history.journal.values()
        for line in lines
        if isinstance(line.entry.record, r.MemberEnd)
    }


HISTORY_RULES: tuple[Callable[[Scan], Iterator[str]], ...] = (
    check_real_time,
    check_epochs,
    check_unknown,
    check_refused_commits,
    check_fence,
    check_one_holder,
    check_overlap,
    check_departures,
    check_no_spurious_rebalance,
    check_user_commits,
)
