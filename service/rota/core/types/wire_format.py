"""The forms of metadata and assignments: Kafka's primitive fields (big-endian, length-prefixed), and JSON objects.

Both are read from bytes that are not trusted.
"""

from __future__ import annotations

import binascii
import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from rota.core.assignors.model import TopicPartition, UserData
from rota.protocol.limits import MAX_TOPICS_DEBOUNCE_MS

_NULL = -1
_STRING_MAX_BYTES = 0x7FFF


class MalformedMetadata(ValueError):
    """The bytes are not what their protocol type says they should be."""


class Reader:
    """Reads fields one after the other; whatever would go past the end is `MalformedMetadata`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise MalformedMetadata("a string that must be there is null")
        return text

    def nullable_string(self) -> str | None:
        length = self.int16()
        if length == _NULL:
            return None
        try:
            text = self._take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedMetadata(f"a string is not UTF-8: {error.reason}") from error
        if "\0" in text:
            raise MalformedMetadata("a string has NUL, which no store can hold")
        return text

    def nullable_bytes(self) -> bytes | None:
        length = self.int32()
        return None if length == _NULL else self._take(length)

    def array_size(self, item_min_bytes: int) -> int:
        """How many items follow; so many that the bytes cannot hold them are refused before anything is allocated."""
        size = self.int32()
        if size < 0:
            raise MalformedMetadata("an array that must be there is null")
        if size * item_min_bytes > len(self._data) - self._at:
            raise MalformedMetadata(f"an array says {size} items, for which there are not enough bytes")
        return size

    def int32_array(self) -> tuple[int, ...]:
        size = self.array_size(item_min_bytes=4)
        return struct.unpack(f">{size}i", self._take(4 * size))

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise MalformedMetadata(f"{length} bytes expected at {self._at} of {len(self._data)}")
        taken = self._data[self._at : end]
        self._at = end
        return taken


def int16(value: int) -> bytes:
    return value.to_bytes(2, "big", signed=True)


def int32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def string(text: str) -> bytes:
    """Raises `ValueError` if the text is longer than the format can say."""
    data = text.encode()
    if len(data) > _STRING_MAX_BYTES:
        raise ValueError(f"a string has {len(data)} bytes, the format allows {_STRING_MAX_BYTES}")
    return int16(len(data)) + data


def nullable_string(text: str | None) -> bytes:
    return int16(_NULL) if text is None else string(text)


def nullable_bytes(data: bytes | None) -> bytes:
    return int32(_NULL) if data is None else int32(len(data)) + data


def int32_array(values: Sequence[int]) -> bytes:
    return struct.pack(f">i{len(values)}i", len(values), *values)


# --- JSON objects ---------------------------------------------------------------------------------

# A JSON object from untrusted bytes.


Content = TypeVar("Content", bound=msgspec.Struct)


def decode_object(data: bytes) -> dict[str, Any]:
    """Raises `MalformedMetadata` for anything else, and for text that no store can hold: lone surrogates and NUL."""
    try:
        values = json.loads(data.decode())
        # Only an escape can bring such a character along.
        if b"\\u" in data:
            again = json.dumps(values, ensure_ascii=False).encode()
            if b"\\u0000" in again.replace(b"\\\\", b""):
                raise MalformedMetadata("a text has NUL")
    except (ValueError, RecursionError) as error:
        raise MalformedMetadata(f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise MalformedMetadata("not a JSON object")
    return values


def read_object(data: bytes, kind: type[Content]) -> Content:
    """A JSON object as a struct, which declares its fields and their bounds; `MalformedMetadata` for anything else."""
    try:
        return msgspec.convert(decode_object(data), kind)
    except msgspec.ValidationError as error:
        raise MalformedMetadata(str(error)) from None


def encode_object(values: Mapping[str, Any]) -> bytes:
    """The JSON text without spaces."""
    return json.dumps(values, separators=(",", ":")).encode()


def names_in(values: Mapping[str, Any], key: str, default: object = ()) -> tuple[str, ...]:
    """The list of names under this key; raises `MalformedMetadata` for anything else."""
    names = values.get(key, default)
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise MalformedMetadata(f'"{key}" must be a list of names')
    return tuple(names)


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Sorted numbers by topic, or by connector."""
    numbers: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions)):
        numbers.setdefault(topic, []).append(partition)
    return numbers


def partitions_in(numbers: object) -> tuple[TopicPartition, ...]:
    """The reverse of `by_topic`; raises `MalformedMetadata` for anything else."""
    if not isinstance(numbers, dict):
        raise MalformedMetadata("partitions must be lists of numbers by topic")
    found: list[TopicPartition] = []
    for topic, of_topic in numbers.items():
        if not isinstance(of_topic, list) or not all(type(number) is int for number in of_topic):
            raise MalformedMetadata(f"the partitions of {topic!r} must be a list of numbers")
        found += [TopicPartition(topic, number) for number in of_topic]
    return tuple(found)


def positive_number(value: object) -> float | None:
    """A value as a finite number above 0; None if it is none. JSON has integers that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0 < number < float("inf") else None


# --- user data of strategies ----------------------------------------------------------------------

# User data of strategies: what a member or a leader says beside topics and partitions.
#
# It is a JSON object in the field that Kafka's bytes have for it, and under `user_data` where all is JSON:
# `{"capacity": 2.0, "topics_debounce_ms": 5000, "version": 1, "data": "<base64>"}`. `capacity` is for `weighted`,
# `topics_debounce_ms` for the coordinator where it assigns, `active` the partitions of which the member has the active
# copy; `version` and `data` are the bytes of a strategy of the
# user's own.


UNVERSIONED: Final = -1
_OURS: Final = {"capacity", "topics_debounce_ms", "active", "version", "data"}


def encode_user_data(
    own: UserData | None = None,
    capacity: float = 1.0,
    topics_debounce_ms: int = 0,
    active: Collection[TopicPartition] | None = None,
) -> bytes | None:
    """None if there is nothing to say."""
    values: dict[str, Any] = {} if capacity == 1.0 else {"capacity": capacity}
    if topics_debounce_ms:
        values["topics_debounce_ms"] = topics_debounce_ms
    if active is not None:
        values["active"] = by_topic(active)
    if own is not None:
        values |= user_data_values(own)
    return json.dumps(values).encode() if values else None


def user_data_values(own: UserData) -> dict[str, Any]:
    """Return the user data as fields of a JSON object."""
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
    """The capacity that user data names. It may be anything: 1 if it names none."""
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
    """The same, of user data that may be anything: 0 if it names none."""
    try:
        return topics_debounce_in(decode_object(user_data or b"{}"))
    except MalformedMetadata:
        return 0


def active_in(user_data: bytes | None) -> tuple[TopicPartition, ...] | None:
    """The partitions of which the member's copy is active; None if no roles were assigned."""
    try:
        found = decode_object(user_data or b"{}").get("active")
        return None if found is None else partitions_in(found)
    except MalformedMetadata:
        return None


def _foreign(data: bytes) -> UserData:
    return UserData(data, UNVERSIONED)
