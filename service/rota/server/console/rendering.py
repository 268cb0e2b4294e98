"""Rendering of templates, with the words and marks that all pages share."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rota.protocol.wording import count, duration
from rota.server.observability.timeline import what_happened

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable")
STATE_MEANINGS = {
    "Empty": "no members",
    "PreparingRebalance": "members join the next generation",
    "CompletingRebalance": "the leader assigns the work",
    "Stable": "every member has its share",
    "Dead": "deleted",
}
TONES = {
    "Empty": "empty",
    "PreparingRebalance": "busy",
    "CompletingRebalance": "busy",
    "Stable": "calm",
    "Dead": "empty",
}
MOST_NAMED = 20
"""Maximum number of named members that joined or left in one generation; the journal has the others."""
_STATIC = files("rota.server.console") / "static"
_MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_TEXT = "text/plain; charset=utf-8"
_HEX = "[0-9a-f]"
_QUOTED = re.compile("`([^`]+)`")
_MEMBER_ID = re.compile(rf"[^\s,;/]*?-({_HEX}{{8}})-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}")
"""Member ids as the coordinator creates them: the client's name, and a UUID whose first eight digits
distinguish them.
"""


@cache
def environment() -> Environment:
    """Create the template environment: all values are escaped unless our own template marks them as markup."""
    env = Environment(
        loader=PackageLoader("rota.server.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "duration": duration,
        "utc": utc,
        "iso": iso,
        "short": short,
        "named": named,
        "quoted": quoted,
        "segment": segment,
    }
    env.globals |= {
        "count": count,
        "query": query,
        "asset": asset,
        "release": version("rota"),
        "tones": TONES,
        "state_meanings": STATE_MEANINGS,
        "most_named": MOST_NAMED,
        "what_happened": what_happened,
    }
    return env


def render(template: str, values: Mapping[str, Any]) -> bytes:
    return environment().get_template(template).render(values).encode()


def utc(at_ms: int) -> str:
    """Format `16:40:12 UTC`; the browser converts it to its own time zone."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%H:%M:%S UTC")


def iso(at_ms: int) -> str:
    """Format a time for machines."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")


def short(name: str, most: int = 30) -> str:
    """Shorten a name: a member's id to its distinguishing form, other long names to their start and end."""
    name = _MEMBER_ID.sub(_shortened, name)
    if len(name) <= most:
        return name
    tail = most // 3
    return f"{name[: most - tail - 1]}…{name[-tail:]}"


def named(text: str) -> Markup:
    """Format text with short members' ids, which the tooltip shows in full."""
    return Markup(_MEMBER_ID.sub(_marked, str(escape(text))))


def quoted(text: str) -> Markup:
    """Format text with code in place of backticks."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(text))))


def segment(name: str) -> str:
    """Return a name as one segment of a path."""
    return quote(name, safe="")


def query(**values: Any) -> str:
    """Return a query string of the given values; empty without any."""
    given = {name: value for name, value in values.items() if value not in (None, "", [], ())}
    return "?" + urlencode(given, doseq=True) if given else ""


def _shortened(found: re.Match[str]) -> str:
    client, digits = found[0][: found.start(1) - found.start()], found[1]
    return f"{client}{digits}"


def _marked(found: re.Match[str]) -> str:
    return f'<code class="id" title="{found[0]}">{escape(short(Markup(found[0]).unescape()))}</code>'


@cache
def static_file(name: str) -> tuple[bytes, str] | None:
    """Return the content and media type of a static file; None if it does not exist."""
    known = {file.name: file for file in _STATIC.iterdir()}
    if name not in known:
        return None
    media_type = next((kind for ending, kind in _MEDIA_TYPES.items() if name.endswith(ending)), _TEXT)
    return known[name].read_bytes(), media_type


@cache
def asset(name: str) -> str:
    """Return the URL of a static file, which differs for each content, so that browsers may cache it forever."""
    found = static_file(name)
    assert found is not None, f"no static file {name}"
    return f"/static/{name}?v={hashlib.sha256(found[0]).hexdigest()[:12]}"
