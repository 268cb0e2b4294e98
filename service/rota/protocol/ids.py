"""Identifiers: which characters and lengths the protocol admits, and the shard of a group and of topics."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from zlib import crc32

from rota.protocol.errors import ErrorCode, RejectedRequest

NAME_PATTERN = r"[A-Za-z0-9._:-]{1,249}"
NAME_RULE = "must be 1 to 249 of A-Z a-z 0-9 . _ - :"
NAMESPACE_PATTERN = r"[A-Za-z0-9._-]{1,249}"
NAMESPACE_RULE = "must be 1 to 249 of A-Z a-z 0-9 . _ -"
_PRINTABLE = r"[^\x00-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
MEMBER_ID_PATTERN = _PRINTABLE + "{0,512}"
MEMBER_ID_RULE = "is not one that a coordinator gave out"
CLIENT_ID_PATTERN = _PRINTABLE + "{0,255}"
CLIENT_ID_RULE = "must be at most 255 printable characters"

NO_SHARD = -1
"""Where the journal keeps what belongs to no shard: what administrators did to API tokens."""


def _checking(
    field: str, pattern: str, rule: str, code: ErrorCode = ErrorCode.INVALID_REQUEST
) -> Callable[[str], None]:
    matches = re.compile(pattern).fullmatch

    def check(value: str) -> None:
        if not matches(value):
            raise RejectedRequest(code, f"{field} {rule}")

    return check


check_namespace = _checking("namespace", NAMESPACE_PATTERN, NAMESPACE_RULE)
check_group_id = _checking("group_id", NAME_PATTERN, NAME_RULE, ErrorCode.INVALID_GROUP_ID)
check_topic = _checking("topic", NAME_PATTERN, NAME_RULE)
check_instance_id = _checking("group_instance_id", NAME_PATTERN, NAME_RULE)
check_member_id = _checking("member_id", MEMBER_ID_PATTERN, MEMBER_ID_RULE)
check_client_id = _checking("client_id", CLIENT_ID_PATTERN, CLIENT_ID_RULE)


@lru_cache(maxsize=10_000)
def shard_of(namespace: str, group_id: str, shard_count: int) -> int:
    """The shard that owns a group: `crc32(namespace + "/" + group_id) % shard_count`.

    Without a group's id: the shard that owns all topics of the namespace.
    """
    return crc32(f"{namespace}/{group_id}".encode()) % shard_count
