"""User data of strategies: what a member or a leader says beside topics and partitions.

It is a JSON object in the field that Kafka's bytes have for it, and under `user_data` where all is JSON:
`{"capacity": 2.0, "topics_debounce_ms": 5000, "version": 1, "data": "<base64>"}`. `capacity` is for `weighted`,
`topics_debounce_ms` for the coordinator where it assigns, `active` the partitions of which the member has the active
copy; `version` and `data` are the bytes of a strategy of the
user's own.
"""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from typing import Any, Final

from rota.core.assignors.model import TopicPartition, UserData
from rota.core.types.json_object import by_topic, decode_object, partitions_in, positive_number
from rota.core.types.wire_format import MalformedMetadata
from rota.protocol.limits import MAX_TOPICS_DEBOUNCE_MS

UNVERSIONED: Final = -1
_OURS: Final = {"capacity", "topics_debounce_ms", "active", "version", "data"}


def encode_user_data(
    own: UserData | None = None,
    capacity: float = 1.0,
    topics_debounce_ms: int = 0,
    active: Collection[TopicPartition] | None = None,
) -> bytes | None:
    """None where there is nothing to say."""
    values: dict[str, Any] = {} if capacity == 1.0 else {"capacity": capacity}
    if topics_debounce_ms:
        values["topics_debounce_ms"] = topics_debounce_ms
    if active is not None:
        values["active"] = by_topic(active)
    if own is not None:
        values |= user_data_values(own)
    return json.dumps(values).encode() if values else None


def user_data_values(own: UserData) -> dict[str, Any]:
    """As members of a JSON object."""
    return {"version": own.version, "data": b64encode(own.data).decode()}


def user_data_in(data: bytes | None) -> UserData | None:
    """The strategy's own part. Bytes in another form than ours are all its own, and without a version."""
    if not data:
        return None
    try:
        values = decode_object(data)
        return own_user_data(values) if values.keys() <= _OURS else _foreign(data)
    except MalformedMetadata:
        return _foreign(data)


def own_user_data(values: Mapping[str, Any]) -> UserData | None:
    """`version` and `data` of a JSON object; `MalformedMetadata` where they are not as the module says."""
    if "data" not in values:
        return None
    version, text = values.get("version", 0), values["data"]
    if type(version) is not int or version < UNVERSIONED:
        raise MalformedMetadata('"version" of user data must be an integer of at least 0')
    try:
        return UserData(b64decode(text, validate=True), version)
    except (TypeError, ValueError, binascii.Error) as error:
        raise MalformedMetadata('"data" of user data must be base64') from error


def capacity_in(user_data: bytes | None) -> float:
    """The capacity that user data names. It may be anything: 1 where it names none."""
    try:
        return positive_number(decode_object(user_data or b"{}").get("capacity")) or 1.0
    except MalformedMetadata:
        return 1.0


def topics_debounce_in(values: Mapping[str, Any]) -> int:
    """For how long changes of topics collect; `MalformedMetadata` for other values than milliseconds."""
    found = values.get("topics_debounce_ms", 0)
    if type(found) is not int or not 0 <= found <= MAX_TOPICS_DEBOUNCE_MS:
        raise MalformedMetadata(f'"topics_debounce_ms" must be a number from 0 to {MAX_TOPICS_DEBOUNCE_MS}')
    return found


def topics_debounce_of(user_data: bytes | None) -> int:
    """The same, of user data that may be anything: 0 where it names none."""
    try:
        return topics_debounce_in(decode_object(user_data or b"{}"))
    except MalformedMetadata:
        return 0


def active_in(user_data: bytes | None) -> tuple[TopicPartition, ...] | None:
    """The partitions of which the member's copy is active; None where no roles were assigned."""
    try:
        found = decode_object(user_data or b"{}").get("active")
        return None if found is None else partitions_in(found)
    except MalformedMetadata:
        return None


def _foreign(data: bytes) -> UserData:
    return UserData(data, UNVERSIONED)
