"""What must hold of every run: one linear scan over the journal and the answers, one small function for each rule.

The ids in the docstrings (S1 to S16 safety, D1 to D3 durability and honest errors, L1 to L7 liveness) are those of the
reports. The world itself notes violations that show only at their moment (D1, L6, L7, S14); and L11: only the replica
that owns a group assigns for it. S22 to S25 are those of elections by priority, freezes and permissions
(`maintenance_checks.py`), S26 is that of quarantines. What users' programs notice has rules with names, in
`groups/rules.py` and `groups/wire_rules.py`.
"""

from __future__ import annotations

from rota.core.group.records import settles
from tests.simulation.answer_checks import check_answer
from tests.simulation.beside_checks import check_fence_at_commit
from tests.simulation.history import Call, History, Landed
from tests.simulation.history_checks import HISTORY_RULES, check_refused_commits
from tests.simulation.journal_checks import LINE_RULES, MEMBERS_RULES, check_clients, check_instances
from tests.simulation.ledger import Ledger
from tests.simulation.profiles import Profile
from tests.simulation.scan import Scan, scan_of


def check(history: History, profile: Profile, *, by_programs: bool = False) -> list[str]:
    """Everything that is wrong with a run: what the world noted, and what the scan finds.

    If the members are users' programs, the rules are left out that read the marks of the simulated members' commits and
    shares, or that count on them: the SDK repeats commits, and joins as a new member while its former one is left.
    """
    scan = scan_of(history, profile)
    found = list(history.violations)
    for shard_id, lines in history.journal.items():
        found += _walk(scan, shard_id, lines, by_programs=by_programs)
    for rule in HISTORY_RULES:
        if not by_programs or rule is not check_refused_commits:
            found += rule(scan)
    return found


def _walk(scan: Scan, shard_id: int, lines: list[Landed], *, by_programs: bool) -> list[str]:
    """Move through one shard's journal; the answers are looked at where their revision is.

    An answer may also show the records of a join phase that its owner had decided since, and not appended (`settles`).
    So what is wrong at its revision counts only if it is wrong after each of these lines, too. If its owner has not
    appended them, because it ended or the run has, what it had decided is not known.
    """
    found: list[str] = []
    doubted: list[tuple[Call, list[str]]] = []
    ledger = Ledger()
    answers = _answers(scan.history, shard_id)
    beside = [commit for commit in reversed(scan.history.user_commits) if commit.shard_id == shard_id]
    position = 0
    for line in lines:
        while beside and beside[-1].revision < line.seq:
            commit = beside.pop()
            found += check_fence_at_commit(ledger.account(commit.group), commit)
        while position < len(answers) and answers[position].revision < line.seq:
            doubted.append((answers[position], list(check_answer(ledger, answers[position]))))
            position += 1
        doubted = [(call, wrong) for call, wrong in doubted if wrong and call.epoch == line.epoch]
        if settles(line.entry):
            found += [text for _, wrong in doubted for text in wrong]
            doubted = []
        found += _take_in(scan, ledger, line, by_programs=by_programs)
        doubted = [(call, wrong) for call, wrong in doubted if list(check_answer(ledger, call))]
    for call in answers[position:]:
        if call.revision > len(lines):
            found.append(f"S12 {call.request} was answered with revision {call.revision}, which the journal lacks")
    return found


def _answers(history: History, shard_id: int) -> list[Call]:
    answers = [call for call in history.calls if call.epoch and call.shard_id == shard_id]
    answers.sort(key=lambda call: call.revision)
    return answers


def _take_in(scan: Scan, ledger: Ledger, line: Landed, *, by_programs: bool) -> list[str]:
    if not line.entry.group_id:
        ledger.move(line)
        return []
    key = (line.entry.namespace, line.entry.group_id)
    account = ledger.account(key)
    rules = LINE_RULES if by_programs else (*LINE_RULES, *MEMBERS_RULES)
    found = [text for rule in rules for text in rule(scan, account, line)]
    ledger.move(line)
    if key in ledger.groups:
        found += check_instances(ledger.groups[key], line)
        if not by_programs:
            found += check_clients(ledger.groups[key], line)
    return [f"{text} (seq {line.seq}, {line.landed_ms} ms)" for text in found]
