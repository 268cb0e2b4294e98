"""A world's history as text, in the order of time: acts of the nemesis, calls, answers, and lines of the journal."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.history import Call, History, Landed


def trace(history: History) -> list[str]:
    """One line each."""
    notes = ((at_ms, f"{actor} {event} {str(detail)[:220]}") for at_ms, actor, event, detail in history.notes)
    lines = [*_acts(history), *notes, *_calls(history), *_landed(history)]
    return [f"{at_ms:6} ms  {text}" for at_ms, text in sorted(lines, key=lambda line: line[0])]


def _acts(history: History) -> Iterator[tuple[int, str]]:
    for number, act in enumerate(history.acts):
        if not act.is_left_out:
            yield act.at_ms, f"#{number} {act.kind}"


def _calls(history: History) -> Iterator[tuple[int, str]]:
    for call in history.calls:
        yield call.sent_ms, f"{call.client} → {call.number} {call.request}"
        if call.reply is not None:
            yield call.ret_ms, _answer(call)


def _answer(call: Call) -> str:
    return f"{call.client} ← {call.number} {call.reply} as of {call.revision}, epoch {call.epoch}"


def _landed(history: History) -> Iterator[tuple[int, str]]:
    for shard_id, lines in history.journal.items():
        for line in lines:
            yield line.landed_ms, _line(shard_id, line)


def _line(shard_id: int, line: Landed) -> str:
    entry = line.entry
    return f"shard {shard_id} · {line.seq} {entry.group_id or 'itself'}: {entry.record} by {line.replica_id}"
