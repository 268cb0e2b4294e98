"""Identifiers: which characters and lengths the protocol admits, and which shard a group lives in."""

from __future__ import annotations

import re
from functools import lru_cache
from zlib import crc32

from rota.protocol.errors import ErrorCode, RejectedRequest

NAME_PATTERN = r"[A-Za-z0-9._:-]{1,249}"
NAMESPACE_PATTERN = r"[A-Za-z0-9._-]{1,249}"
_NAME = re.compile(NAME_PATTERN)
_NAMESPACE = re.compile(NAMESPACE_PATTERN)
_MEMBER_ID_MAX_CHARS = 512
_CLIENT_ID_MAX_CHARS = 255

NO_SHARD = -1
"""Where the journal keeps what belongs to no shard: what administrators did to API tokens."""


def check_namespace(namespace: str) -> None:
    """1 to 249 of `A-Z a-z 0-9 . _ -`; `INVALID_REQUEST` otherwise."""
    if not _NAMESPACE.fullmatch(namespace):
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "namespace must be 1 to 249 of A-Z a-z 0-9 . _ -")


def check_group_id(group_id: str) -> None:
    """1 to 249 of `A-Z a-z 0-9 . _ - :`; `INVALID_GROUP_ID` otherwise."""
    if not _NAME.fullmatch(group_id):
        raise RejectedRequest(ErrorCode.INVALID_GROUP_ID, "group_id must be 1 to 249 of A-Z a-z 0-9 . _ - :")


def check_topic(topic: str) -> None:
    """Same characters as a group id; `INVALID_REQUEST` otherwise."""
    if not _NAME.fullmatch(topic):
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "topic must be 1 to 249 of A-Z a-z 0-9 . _ - :")


def check_instance_id(group_instance_id: str) -> None:
    """Same characters as a group id; `INVALID_REQUEST` otherwise."""
    if not _NAME.fullmatch(group_instance_id):
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "group_instance_id must be 1 to 249 of A-Z a-z 0-9 . _ - :")


def check_client_id(client_id: str) -> None:
    """At most 255 printable characters; `INVALID_REQUEST` otherwise."""
    if len(client_id) > _CLIENT_ID_MAX_CHARS or not client_id.isprintable():
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "client_id must be at most 255 printable characters")


def check_member_id(member_id: str) -> None:
    """A member id is ours, so only its size and printability are checked."""
    if len(member_id) > _MEMBER_ID_MAX_CHARS or not member_id.isprintable():
        raise RejectedRequest(ErrorCode.INVALID_REQUEST, "member_id is not one that a coordinator gave out")


@lru_cache(maxsize=10_000)
def shard_of(namespace: str, group_id: str, shard_count: int) -> int:
    """The shard that owns a group (or a topic): `crc32(namespace + "/" + group) % shard_count`."""
    return crc32(f"{namespace}/{group_id}".encode()) % shard_count
