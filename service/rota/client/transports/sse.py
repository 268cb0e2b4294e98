"""Server-sent events: lines to events, as the HTML standard reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event; events without an id are about the stream itself."""

    event: str
    event_id: str
    data: str


async def events_of(lines: AsyncIterator[str]) -> AsyncIterator[ServerSentEvent]:
    """Yield each event after its blank line; an incomplete last one is dropped. Comments are skipped."""
    fields: dict[str, str] = {}
    async for line in lines:
        if not line:
            if "data" in fields:
                yield ServerSentEvent(fields.get("event", "message"), fields.get("id", ""), fields["data"])
            fields = {}
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and "data" in fields:
            value = f"{fields['data']}\n{value}"
        fields[name] = value
