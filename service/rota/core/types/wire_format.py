"""Kafka's primitive fields (big-endian, length-prefixed), read without ever trusting a length."""

from __future__ import annotations

import struct
from collections.abc import Sequence

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
