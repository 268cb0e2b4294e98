"""From when until when certificates are good, read from their files: Python's `ssl` tells it of a peer's only."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime

from rota.observability.certificates import Validity

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17
"""Tags of DER: that of a certificate's first field, which may be left out, and of a time with a year of two digits."""
_VALIDITY = 3
"""After the serial number, the algorithm and the issuer (RFC 5280, 4.1)."""


def validity_of(chain: bytes) -> Validity:
    """When all certificates of a chain in PEM are good; ValueError where it holds none that can be read."""
    found = [_validity(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(chain.decode("ascii", "replace"))]
    if not found:
        raise ValueError("no certificate")
    return Validity(max(each.from_s for each in found), min(each.until_s for each in found))


def _validity(der: bytes) -> Validity:
    try:
        _, certificate = next(_elements(der))
        _, signed = next(_elements(certificate))
        fields = [content for tag, content in _elements(signed) if tag != _VERSION]
        begin, end = _elements(fields[_VALIDITY])
        return Validity(_seconds(*begin), _seconds(*end))
    except (IndexError, StopIteration) as error:
        raise ValueError("no certificate") from error


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements that stand one after the other, each with its tag."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:  # so many bytes hold the length
            end = at + (length & 0x7F)
            length, at = int.from_bytes(der[at:end], "big"), end
        yield tag, der[at : at + length]
        at += length


def _seconds(tag: int, time: bytes) -> float:
    text = time.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
