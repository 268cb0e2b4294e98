"""The causes of rebalances and of dropped shards as codes, of which there are few: sentences name members.

The coordinator writes the code of a rebalance beside its sentence. Only lines of releases that wrote no code are read
by the patterns below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rota.protocol.causes import Cause
from rota.protocol.texts import TOPICS_CHANGED, is_of_topics

OTHER = "other"
_NO_MEMBER_IS_LEFT = "nobody is left"
"""The sentence of a group that became empty in a join phase, in lines without codes."""
_DEPARTURES = (Cause.MEMBER_LEFT, Cause.MEMBER_EXPIRED, Cause.MEMBER_REMOVED)
"""Each is also the kind of the line by which a member goes."""

_NAMED_BY_ITS_CLIENT = "; client reason: "

_Causes = Sequence[tuple[str, re.Pattern[str]]]


def _table(patterns: Mapping[str, str]) -> _Causes:
    return [(cause, re.compile(pattern)) for cause, pattern in patterns.items()]


# The first that matches counts. Ids may hold spaces, so each pattern holds on to the words around them.
_REBALANCES = _table(
    {
        Cause.REQUESTED: r"a rebalance was asked for",
        Cause.STEP_DOWN: r"leader .* was asked to step down",
        Cause.MEMBER_EXPIRED: r"member .* expired: no heartbeat within its session timeout of \d+ ms$",
        Cause.SYNC_TIMEOUT: r"\d+ of the members did not sync ",
        Cause.STATIC_MEMBER_RETURNED: r"static member .* came back as ",
        Cause.ASSIGNMENT_FAILED: r"(leader .*|the server) could not assign: ",
        Cause.ASSIGNMENT_OUTDATED: r"leader .* assigned to .*, which is no member any more$",
        Cause.LEADER_REJOINED: r"leader .* joined again$",
        Cause.TOPICS_CHANGED: rf"{TOPICS_CHANGED}(: |$)",
        Cause.RETURN_DELAY_OVER: r"what waited for departed members is given out",
        Cause.GENERATION_RAISED: r"(member .* has held generation \d+|.*no generation up to \d+ is granted)",
        Cause.METADATA_CHANGED: r"member .* changed its metadata",
        Cause.MEMBER_JOINED: r"member .* joined$",
        Cause.MEMBER_REMOVED: r".* was removed$",
        Cause.MEMBER_LEFT: r".* left$",
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


def rebalance_cause(reason: str, payload: Mapping[str, Any], last_gone: str = "") -> str:
    """The code of a line that says why a group rebalances, or is empty; of a later release it may be any code.

    `last_gone`: the kind of the line by which the last member went, which old lines of empty groups do not repeat.
    """
    code: str = payload.get("cause", "")
    if code:
        return code
    if reason == _NO_MEMBER_IS_LEFT:
        return last_gone if last_gone in _DEPARTURES else OTHER
    stated, _, by_client = reason.partition(_NAMED_BY_ITS_CLIENT)
    cause = _first(_REBALANCES, stated)
    return Cause.TOPICS_CHANGED if cause == Cause.LEADER_REJOINED and is_of_topics(by_client) else cause


def drop_cause(reason: str) -> str:
    """Why a replica stopped answering for a shard."""
    return _first(_DROPS, reason)


def _first(causes: _Causes, reason: str) -> str:
    return next((cause for cause, pattern in causes if pattern.match(reason)), OTHER)
