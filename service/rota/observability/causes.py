"""Causes as few words, for labels of metrics: the journal's reasons name members, and there is no end to those."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

OTHER = "other"

_NAMED_BY_ITS_CLIENT = "; client reason: "
_TOPICS = "the topics changed"
"""The server's reason, and that of our leaders; behind it, which topics."""

_Causes = Sequence[tuple[str, re.Pattern[str]]]


def _table(patterns: Mapping[str, str]) -> _Causes:
    return [(cause, re.compile(pattern)) for cause, pattern in patterns.items()]


# The first that matches counts. Ids may hold spaces, so each pattern holds on to the words around them.
_REBALANCES = _table(
    {
        "requested": r"a rebalance was asked for",
        "step_down": r"leader .* was asked to step down",
        "member_expired": r"member .* expired: ",
        "sync_timeout": r"\d+ of the members did not sync ",
        "static_member_returned": r"static member .* came back as ",
        "assignment_failed": r"(leader .*|the server) could not assign: ",
        "assignment_outdated": r"leader .* assigned to .*, which is no member any more$",
        "topics_changed": _TOPICS,
        "leader_rejoined": r"leader .* joined again$",
        "metadata_changed": r"member .* changed its metadata",
        "member_joined": r"member .* joined$",
        "member_removed": r".* was removed$",
        "member_left": r".* left$",
    }
)

_DROPS = _table(
    {
        "handed_over": r"handed over$",
        "lease_lost": r"(the lease |the shard belongs to another)",
        "store_failed": r"a write has an unknown outcome",
        "broken_invariant": r"a broken invariant",
    }
)


def rebalance_cause(reason: str) -> str:
    """Why a rebalance started, in one of a dozen words; `other` for what this release does not know."""
    stated, _, by_client = reason.partition(_NAMED_BY_ITS_CLIENT)
    cause = _first(_REBALANCES, stated)
    return "topics_changed" if cause == "leader_rejoined" and by_client.startswith(_TOPICS) else cause


def drop_cause(reason: str) -> str:
    """Why a replica stopped answering for a shard."""
    return _first(_DROPS, reason)


def _first(causes: _Causes, reason: str) -> str:
    return next((cause for cause, pattern in causes if pattern.match(reason)), OTHER)
