"""Templates to bytes, with the words and marks that all pages share."""

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
from starlette.datastructures import QueryParams

from rota.observability.timeline import what_happened
from rota.protocol.wording import count, duration

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
"""Of the members that joined or left in one generation; the rest is shown as a number, and is in the journal."""
_STATIC = files("rota.console") / "static"
_MEDIA_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_TEXT = "text/plain; charset=utf-8"
_HEX = "[0-9a-f]"
_QUOTED = re.compile("`([^`]+)`")
_MEMBER_ID = re.compile(rf"[^\s,;/]*?-({_HEX}{{8}})-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}")
"""As the coordinator creates them: the client's name, and a UUID whose first eight digits distinguish them."""


@cache
def environment() -> Environment:
    """Everything that goes into a page is escaped unless a template of ours says that it is markup."""
    env = Environment(
        loader=PackageLoader("rota.console"),
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
    """`16:40:12 UTC`; the browser writes it in its own time zone."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime("%H:%M:%S UTC")


def iso(at_ms: int) -> str:
    """For machines."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")


def short(name: str, most: int = 30) -> str:
    """A member's id in the form that distinguishes it; of other long names the beginning and the end."""
    name = _MEMBER_ID.sub(_shortened, name)
    if len(name) <= most:
        return name
    tail = most // 3
    return f"{name[: most - tail - 1]}…{name[-tail:]}"


def named(text: str) -> Markup:
    """Words in which members' ids are short, and complete in the tooltip."""
    return Markup(_MEMBER_ID.sub(_marked, str(escape(text))))


def quoted(text: str) -> Markup:
    """Words in which what stands between backticks is code."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(text))))


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def query(**values: Any) -> str:
    """A query string of the given values; empty without any."""
    given = {name: value for name, value in values.items() if value not in (None, "", [], ())}
    return "?" + urlencode(given, doseq=True) if given else ""


def page_number(parameters: QueryParams, lines: int, size: int) -> tuple[int, int]:
    """The page that a URL names, of so many. Nonsense in it is the first page, and too high a number the last."""
    text, pages = parameters.get("page", ""), max(1, -(-lines // size))
    return (min(pages, max(1, int(text))) if text.isdecimal() and len(text) < 7 else 1), pages


def _shortened(found: re.Match[str]) -> str:
    client, digits = found[0][: found.start(1) - found.start()], found[1]
    return f"{client}{digits}"


def _marked(found: re.Match[str]) -> str:
    return f'<code class="id" title="{found[0]}">{escape(short(Markup(found[0]).unescape()))}</code>'


@cache
def static_file(name: str) -> tuple[bytes, str] | None:
    """The content and media type of one of our own files; None if there is none of that name."""
    known = {file.name: file for file in _STATIC.iterdir()}
    if name not in known:
        return None
    media_type = next((kind for ending, kind in _MEDIA_TYPES.items() if name.endswith(ending)), _TEXT)
    return known[name].read_bytes(), media_type


@cache
def asset(name: str) -> str:
    """The URL of a static file, another one for each content, so that browsers may keep it for ever."""
    found = static_file(name)
    assert found is not None, f"no static file {name}"
    return f"/static/{name}?v={hashlib.sha256(found[0]).hexdigest()[:12]}"
