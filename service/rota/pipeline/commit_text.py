"""Committed offsets read from the text of thousands of journal lines at once, with no Python object for any of them.

A server writes each commit by one template (`rota.storage.rows`):

    {"member_id": "m-1", "offsets": [["orders", 3, 1042, null, ""], ["orders", 4, 77, 12, "a note"]]}

Without backslashes, each quote begins or ends a text. So the places of all quotes, found by NumPy in one pass, say
where everything else must be; each byte beside the texts is compared with the template.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from rota.pipeline.tables import OFFSET_LISTS

_HEAD_QUOTES, _QUOTES = 6, 4
"""Before the first offset, and of each offset: around its topic and its metadata."""
_PADDING = 64
"""Bytes behind the text that may be looked at: more than the longest part of the template and three numbers have."""


def offsets_by_template(payloads: pa.StringArray) -> tuple[pa.ListArray | None, Any]:
    """What the payloads of commits say, line by line, if all are just as the template has them; and which may be.

    The others may be valid all the same: with escapes in a text, another number of values, or no offset at all.
    """
    text = _Text(payloads)
    quotes = np.flatnonzero(text.bytes == ord('"'))
    firsts = np.searchsorted(quotes, text.starts)
    offsets, rest = np.divmod(np.diff(firsts, append=len(quotes)) - _HEAD_QUOTES, _QUOTES)
    fits = (rest == 0) & (offsets >= 1) & ~text.with_escapes()
    if not fits.all():
        return None, fits
    theirs = np.ones(len(quotes), bool)
    theirs[(firsts[:, None] + np.arange(_HEAD_QUOTES)).ravel()] = False
    topics, topic_ends, notes, note_ends = quotes[theirs].reshape(-1, _QUOTES).T
    members, ends = quotes[firsts + 3], np.cumsum(offsets)
    fits &= text.has(b'{"member_id": "', text.starts) & text.has(b'", "offsets": [[', members)
    fits &= (topics[ends - offsets] == members + 16) & (note_ends[ends - 1] + 4 == text.ends)
    fits &= text.has(b"]]}", note_ends[ends - 1] + 1)
    partitions, numbers, good = text.numbers(topic_ends + 1, notes)
    next_topics = np.append(topics[1:], 0)
    next_topics[ends - 1] = 0
    good &= (next_topics == 0) | ((next_topics == note_ends + 5) & text.has(b"], [", note_ends + 1))
    fits[np.repeat(np.arange(len(fits)), offsets)[~good]] = False
    if not fits.all():
        return None, fits
    fields = [text.between(topics + 1, topic_ends), pa.array(partitions.astype(np.int32)), pa.array(numbers)]
    values = pa.StructArray.from_arrays(fields, fields=list(OFFSET_LISTS.value_type))
    return pa.ListArray.from_arrays(pa.array(np.append(0, ends).astype(np.int32)), values), fits


class _Text:
    """The text of all lines in a row, as bytes and, at any place, as numbers of up to eight bytes."""

    def __init__(self, lines: pa.StringArray) -> None:
        _, places, data = lines.buffers()
        bounds = np.frombuffer(places, np.int32)[lines.offset : lines.offset + len(lines) + 1].astype(np.int64)
        begin, end = (int(bounds[0]), int(bounds[-1])) if len(lines) else (0, 0)
        self._padded = np.zeros(end - begin + _PADDING, np.uint8)
        if end > begin:
            self._padded[: end - begin] = np.frombuffer(data, np.uint8)[begin:end]
        self.bytes = self._padded[: end - begin]
        self.starts, self.ends = bounds[:-1] - begin, bounds[1:] - begin
        self._words = np.ndarray(len(self._padded) - 7, "<u8", self._padded, strides=(1,))

    def with_escapes(self) -> Any:
        """Which lines have backslashes, or bytes that JSON does not allow in a text."""
        lines = np.zeros(len(self.starts), bool)
        found = self.bytes == ord("\\")
        if found.any() or self.bytes.min(initial=0xFF) < ord(" "):
            odd = np.flatnonzero(found | (self.bytes < ord(" ")))
            lines[np.searchsorted(self.ends, odd, side="right")] = True
        return lines

    def has(self, part: bytes, places: Any) -> Any:
        """At which of these places this part of the template is."""
        found = (self._words[places] ^ _word(part[:8])) & _word(b"\xff" * len(part[:8])) == 0
        return found & self.has(part[8:], places + 8) if part[8:] else found

    def numbers(self, places: Any, ends: Any) -> tuple[Any, Any, Any]:
        """The partitions and offsets of `, 3, 1042, null, ` from these places to these ends, and which are just so."""
        partitions, after_partitions = self._integers(places + 2)
        offsets, after_offsets = self._integers(after_partitions + 2)
        fits = self.has(b", ", places) & self.has(b", ", after_partitions) & (partitions < 2**31)
        after = after_offsets + 8
        if not (without_epoch := self.has(b", null, ", after_offsets)).all():
            _, after_epochs = self._integers(after_offsets + 2)
            with_epoch = self.has(b", ", after_offsets) & self.has(b", ", after_epochs)
            fits &= without_epoch | with_epoch
            after = np.where(without_epoch, after, after_epochs + 2)
        return partitions, offsets, fits & (after == ends)

    def _integers(self, places: Any) -> tuple[Any, Any]:
        """The numbers of up to 16 digits at these places, and where each ends; far outside where there is none."""
        values, widths = self._digits(places)
        longer = np.flatnonzero(widths == 8)
        if len(longer):
            more, digits = self._digits(places[longer] + 8)
            values[longer] = values[longer] * 10**digits + np.where(digits > 0, more, 0)
            widths[longer] += digits
        # A number has no leading zero.
        widths[(widths > 1) & (self._padded[places] == ord("0"))] = 0
        return values, np.where(widths > 0, places + widths, 0)

    def _digits(self, places: Any) -> tuple[Any, Any]:
        """The number that the digits at these places make, up to eight of them, and how many there are."""
        found = self._words[places] ^ _word(b"0" * 8)
        # The upper half of a byte is zero for digits only; with 6 more, a byte above 9 has it, too.
        others = (found | (found + _word(b"\x06" * 8))) & _word(b"\xf0" * 8)
        widths = np.bitwise_count((others & (~others + np.uint64(1))) - np.uint64(1)) >> 3
        found <<= np.uint64(64) - 8 * np.maximum(widths, 1).astype(np.uint64)
        # Neighbours are added, in pairs, then in fours, then in eights: the first digit is in the lowest byte.
        for factor, bits, kept in (
            (10, 8, 0x00FF00FF00FF00FF),
            (100, 16, 0x0000FFFF0000FFFF),
            (10_000, 32, 0xFFFFFFFF),
        ):
            found = (found * np.uint64(factor) + (found >> np.uint64(bits))) & np.uint64(kept)
        return found.astype(np.int64), widths.astype(np.int64)

    def between(self, begins: Any, ends: Any) -> pa.StringArray:
        """The texts from each of `begins` to the one of `ends`; these come in order."""
        places = np.column_stack((begins, ends)).ravel().astype(np.int32)
        buffers = [None, pa.py_buffer(places), pa.py_buffer(self._padded)]
        texts_and_gaps = pa.StringArray.from_buffers(len(places) - 1, *buffers[1:])
        return texts_and_gaps.take(pa.array(np.arange(0, len(places), 2, dtype=np.int32)))


def _word(text: bytes) -> Any:
    """Up to eight bytes as they are read at a place: the first is the lowest."""
    return np.uint64(int.from_bytes(text, "little"))
