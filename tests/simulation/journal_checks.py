"""Rules about each line of the journal, given how its group stood before that line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rota.core.group import records as r
from rota.core.group.records import has_cause, wrong_cause
from rota.protocol.messages import CommitOffsets
from tests.simulation.beside_checks import EMPTIED, check_limits, check_step_down, check_taken_in, is_of_user
from tests.simulation.history import Landed
from tests.simulation.ledger import GroupAccount
from tests.simulation.maintenance_checks import check_freeze, check_hysteresis, check_permission, check_succession
from tests.simulation.scan import Scan


def check_generations(_scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S1, S8: a generation is the one before plus one, over crashes, failovers, deletion and re-creation."""
    record = line.entry.record
    match record:
        case r.GenerationCompleted() | r.GroupEmptied() | r.AssignmentSynced(resync=True):
            expected = account.generation_id + 1
        case r.GroupDeleted() | r.AssignmentSynced():
            expected = account.generation_id
        case r.GenerationRaised():
            yield f"S1 {line.entry.group_id}: raised to {record.generation_id}, though the store never went back"
            return
        case _:
            return
    if record.generation_id != expected:
        yield f"S1 {line.entry.group_id}: {record.kind} with {record.generation_id} after {account.generation_id}"


def check_completed(scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S2, S3, S18: one leader, which is a member; a protocol that every member offered; exactly the present members."""
    record = line.entry.record
    if not isinstance(record, r.GenerationCompleted):
        return
    if record.leader_id not in account.members:
        yield f"S2 {line.entry.group_id}: leader {record.leader_id} is no member"
    if set(record.member_ids) != set(account.members):
        yield f"S3 {line.entry.group_id}: generation of {record.member_ids}, members are {list(account.members)}"
    offered = [{protocol.name for protocol in image.protocols} for image in account.members.values()]
    if any(record.protocol_name not in names for names in offered):
        yield f"S3 {line.entry.group_id}: protocol {record.protocol_name} is not offered by all"
    # A static member keeps its place, also in a full group.
    dynamic = sum(image.group_instance_id is None for image in account.members.values())
    if scan.history.limits is not None and dynamic > scan.history.limits.group_max_size:
        yield f"S18 {line.entry.group_id}: generation of {list(account.members)}"


def check_assignment(scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S5, S6, S7a: one assignment per generation, as its leader sent it, for all members, each partition once."""
    record, key = line.entry.record, (line.entry.namespace, line.entry.group_id)
    if not isinstance(record, r.AssignmentSynced):
        return
    sent_for = record.generation_id - 1 if record.resync else record.generation_id
    due_in = "Stable" if record.resync else "CompletingRebalance"
    if sent_for != account.generation_id or account.state != due_in:
        yield f"S6 {key[1]}: assignment for {sent_for} in {account.state}, generation {account.generation_id}"
    given = dict(record.assignments)
    if record.resync and all(given.get(m, b"") == account.assignments.get(m, b"") for m in account.members):
        yield f"S6 {key[1]}: generation {record.generation_id} has the assignment of the one before"
    if record.leader_id != account.leader_id:
        yield f"S6 {key[1]}: assignment from {record.leader_id}, leader is {account.leader_id}"
    sent = [payload for payload in scan.payloads.get((key, sent_for), ()) if payload.member_id == record.leader_id]
    if not any(all(dict(p.assignments).get(m) == a for m, a in given.items()) for p in sent):
        yield f"S5 {key[1]}: the assignment of {record.generation_id} is not one that its leader sent"
    # A static member that had nothing may come back between two assignments without its leader's knowing.
    left_out = [m for m in account.members if m not in given and not (record.resync and not account.assignments.get(m))]
    if left_out:
        yield f"S16 {key[1]}: assignment for {list(given)}, {left_out} are members, too"
    partitions = [number for share in given.values() for number in share.split(b",") if number]
    if len(partitions) != len(set(partitions)):
        yield f"S7a {key[1]}: a partition is assigned twice in {record.generation_id}"


def check_commit(scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S9, S10: a commit is from a member that is in the current generation; progress goes back only on request.

    Its offset expires when the retention that it named is over.
    """
    record = line.entry.record
    if not isinstance(record, r.OffsetsCommitted) or is_of_user(record):
        return
    (item,) = record.offsets
    call = scan.commits[item.metadata]
    assert isinstance(call.request, CommitOffsets)
    retention_ms = call.request.offsets[0].retention_time_ms
    if item.expires_at_ms != (None if retention_ms is None else line.entry.at_ms + retention_ms):
        yield f"S10 {line.entry.group_id}: {call.request} landed as {item}"
    if record.member_id:
        if call.request.generation_id != account.generation_id or record.member_id not in account.settled:
            yield f"S9 {line.entry.group_id}: {call.request} landed in generation {account.generation_id}"
        if account.state == "CompletingRebalance":
            yield f"S9 {line.entry.group_id}: commit while the assignment was awaited"
        former = account.offsets.get((item.topic, item.partition))
        if former is not None and item.offset < former.offset and call.ret_ms >= 0:
            yield f"S10 {line.entry.group_id}: offset {former.offset} of {former.metadata} went back by {item}"
    elif account.state != "Empty":
        yield f"S9 {line.entry.group_id}: an administrator's commit landed in {account.state}"


def check_retention(scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S10: progress of an Empty group lasts until it has been Empty for the retention, by the owners' clocks.

    An offset whose commit named a retention lasts for that long instead.
    """
    record, limits, since_ms = line.entry.record, scan.history.limits, account.empty_since_ms
    if not isinstance(record, r.OffsetsDeleted) or record.reason != "expired" or account.state != "Empty":
        return
    if limits is None or since_ms is None:
        return
    for name in record.partitions:
        early_ms = account.expiry_ms(name, since_ms, limits.offsets_retention_ms) - line.entry.at_ms
        if early_ms > 0:
            after_ms = line.entry.at_ms - since_ms
            yield (
                f"S10 {line.entry.group_id}: {name} expired {after_ms} ms after the last member had gone, "
                f"{early_ms} ms early"
            )


def check_retention_of_each(scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S10: while a group has members, progress lasts for the retention from its commit; a sweep keeps it."""
    record, limits = line.entry.record, scan.history.limits
    if isinstance(record, r.GroupDeleted) and record.reason == EMPTIED and account.offsets:
        yield f"S10 {line.entry.group_id}: deleted as empty, with {account.offsets}"
    if not isinstance(record, r.OffsetsDeleted) or record.reason != "expired" or account.state == "Empty":
        return
    for name in record.partitions:
        if limits is None:
            continue
        due_ms = account.expiry_ms(name, account.committed_ms[name], limits.offsets_retention_ms)
        if line.entry.at_ms < due_ms:
            yield f"S10 {line.entry.group_id}: {name} expired {due_ms - line.entry.at_ms} ms early"


def check_timeouts(_scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """L1: a static member outlives the rebalance timeout of a join phase."""
    record = line.entry.record
    if isinstance(record, r.MemberExpired) and record.reason.startswith("did not rejoin"):
        image = account.members.get(record.member_id)
        if image is not None and image.group_instance_id is not None:
            yield f"L1 {line.entry.group_id}: static member {record.member_id} was expired: {record.reason}"


def check_expiry(scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """L1: a member with an acknowledged heartbeat or commit is not expired before its session has passed since."""
    record = line.entry.record
    if isinstance(record, r.MemberExpired) and record.reason.startswith("no heartbeat"):
        image = account.members.get(record.member_id)
        last_ms = max((ms for ms in scan.renewals.get(record.member_id, ()) if ms <= line.decided_ms), default=0)
        if image is not None and last_ms and line.decided_ms < last_ms + image.session_timeout_ms:
            yield (
                f"L1 {line.entry.group_id}: {record.member_id} was expired at {line.decided_ms} although its "
                f"heartbeat of {last_ms} was acknowledged, session {image.session_timeout_ms}"
            )


def check_join_phase(scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """L3: a join phase ends within its members' rebalance timeout; at once where all have joined, see `World`, and
    where candidates lack nothing but a leader.
    """
    record, since_ms = line.entry.record, account.rebalance_since_ms
    ends = isinstance(record, r.GenerationCompleted | r.GroupEmptied)
    if not ends or since_ms is None or account.state != "PreparingRebalance":
        return
    stalls = [
        each.lateness_ms
        for each in scan.history.stalls
        if each.replica_id == line.replica_id and since_ms < each.noticed_ms <= line.decided_ms
    ]
    late_ms = scan.profile.late_timer_ms + sum(stalls)
    bound_ms = account.rebalance_timeout_ms + late_ms
    if account.is_initial and not account.had_static_members and scan.history.limits is not None:
        # Every member of an Empty group has joined: only newcomers prolong its initial delay, each for one more.
        delay_ms = scan.history.limits.initial_rebalance_delay_ms
        bound_ms = min(bound_ms, account.last_join_ms - since_ms + 2 * delay_ms + late_ms)
    if account.had_static_members:
        # Where only static members are left and none has joined, the phase is armed again until their sessions end.
        bound_ms += account.rebalance_timeout_ms + scan.profile.session_ms[1]
    if account.elects_at_once:
        bound_ms = 0
    if (took_ms := line.decided_ms - since_ms) > bound_ms:
        yield f"L3 {line.entry.group_id}: the join phase took {took_ms} ms, at most {bound_ms} are due"


def check_causes(_scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S21: each rebalance, departure and group that becomes empty has a code, which the lines before confirm."""
    if has_cause(line.entry.record) and (wrong := wrong_cause(line.entry.record, account.telling)):
        yield f"S21 {line.entry.group_id}: {wrong}"


def check_instances(account: GroupAccount, line: Landed) -> Iterator[str]:
    """S16, after the line: an instance id belongs to one member."""
    for instance_id, member_ids in account.static_members().items() if _adds_a_member(line) else ():
        if len(member_ids) > 1:
            yield f"S16 {line.entry.group_id}: {instance_id} is {member_ids}"


def check_clients(account: GroupAccount, line: Landed) -> Iterator[str]:
    """S13, after the line: a process is one member at a time."""
    clients = [image.client_id for image in account.members.values()]
    if _adds_a_member(line) and len(set(clients)) != len(clients):
        yield f"S13 {line.entry.group_id}: one client is two of {list(account.members)}"


def _adds_a_member(line: Landed) -> bool:
    return line.entry.record.kind in ("member_joined", "member_fenced")


def check_quarantine(_scan: Scan, account: GroupAccount, line: Landed) -> Iterator[str]:
    """S26: units that felled their holders are left out of assignments, and no others."""
    yield from (f"S26 {line.entry.group_id}: {text}" for text in account.quarantine.note(line.entry.record))


LineRule = Callable[[Scan, GroupAccount, Landed], Iterator[str]]
LINE_RULES: tuple[LineRule, ...] = (
    check_generations,
    check_completed,
    check_taken_in,
    check_step_down,
    check_succession,
    check_hysteresis,
    check_freeze,
    check_permission,
    check_limits,
    check_retention,
    check_retention_of_each,
    check_timeouts,
    check_expiry,
    check_join_phase,
    check_causes,
    check_quarantine,
)
"""Each is asked before the line is taken in."""
MEMBERS_RULES: tuple[LineRule, ...] = (check_commit, check_assignment)
"""Those that read the form of the simulated members' commits and shares."""
