"""Which caller a client's certificate names, read from its DER: the one rule for all transports (ADR 48).

A kind of name is never taken for another one: only a URI of the subject's alternative names can be a SPIFFE id, and
only a common name can be `cn:NAME`. Other alternative names (DNS, e-mail, addresses) say where a host is; they name
no caller, whatever their text looks like.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterator
from dataclasses import dataclass

from rota.access.caller import Caller

CERTIFICATE = "certificate"
"""The `method` of callers that a certificate names."""
_SPIFFE = "spiffe:"
_SPIFFE_ID = re.compile(r"spiffe://[a-z0-9._-]{1,255}(/(?!\.\.?(/|$))[A-Za-z0-9._-]+)+")
_MAX_CHARS = 2048
"""Of a SPIFFE id, by its standard."""

_OID = 0x06
_VERSION, _EXTENSIONS, _URI = 0xA0, 0xA3, 0x86
_UTC_TIME = 0x17
_TEXTS = {0x0C: "utf-8", 0x13: "ascii", 0x16: "ascii", 0x1C: "utf-32-be", 0x1E: "utf-16-be"}
"""The kinds of text that a name may have. Others, such as T.61, have no agreed meaning and are rejected."""
_COMMON_NAME, _ALTERNATIVE_NAMES = bytes.fromhex("550403"), bytes.fromhex("551d11")
_VALIDITY, _SUBJECT = 3, 4
"""Positions after the serial number, the algorithm and the issuer (RFC 5280, 4.1)."""


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The parts of a certificate that identify its subject, and its expiry in seconds since 1970."""

    uris: tuple[str, ...]
    common_names: tuple[str, ...]
    ends_s: int


def caller_of_certificate(certificate: PeerCertificate) -> Caller | None:
    """The caller that a certificate names, until the certificate expires; None where it names none, or several.

    A certificate with a SPIFFE id must have no other URI, as the standard demands: an issuer may have meant either.
    Its common name then counts for nothing. Without a SPIFFE id the certificate must have exactly one common name.
    """
    uris, names = certificate.uris, certificate.common_names
    if any(uri.lower().startswith(_SPIFFE) for uri in uris):
        return _caller(certificate, uris[0]) if len(uris) == 1 and _is_spiffe_id(uris[0]) else None
    is_named = len(names) == 1 and names[0].isprintable() and names[0]
    return _caller(certificate, f"cn:{names[0]}") if is_named else None


def read_certificate(der: bytes) -> PeerCertificate:
    """What a certificate says; ValueError where it cannot be read, or says a thing twice."""
    fields, (_, ends_s) = _fields(der), read_validity(der)
    try:
        return PeerCertificate(_uris(fields), _common_names(fields[_SUBJECT][1]), ends_s)
    except IndexError as error:
        raise ValueError("no certificate") from error


def read_validity(der: bytes) -> tuple[int, int]:
    """From when until when a certificate is valid, in seconds since 1970; ValueError where it cannot be read."""
    try:
        begins, ends = _elements(_fields(der)[_VALIDITY][1])
        return _seconds(*begins), _seconds(*ends)
    except IndexError as error:
        raise ValueError("no certificate") from error


def _caller(certificate: PeerCertificate, subject: str) -> Caller:
    return Caller(subject, CERTIFICATE, expires_at_ms=certificate.ends_s * 1000)


def _is_spiffe_id(uri: str) -> bool:
    return len(uri) <= _MAX_CHARS and _SPIFFE_ID.fullmatch(uri) is not None


# --- the parts of a certificate ----------------------------------------------------------------------

_Element = tuple[int, bytes]
"""A tag and its content."""


def _fields(der: bytes) -> list[_Element]:
    """The fields that are signed, without the version, which may be left out."""
    try:
        [(_, certificate)] = _elements(der)
        (_, signed), *_ = _elements(certificate)
        elements = list(_elements(signed))
    except (IndexError, ValueError) as error:
        raise ValueError("no certificate") from error
    return [(tag, content) for tag, content in elements if tag != _VERSION]


def _common_names(subject: bytes) -> tuple[str, ...]:
    parts = [list(_elements(pair)) for _, several in _elements(subject) for _, pair in _elements(several)]
    return tuple(_text(*value) for (_, kind), value in parts if kind == _COMMON_NAME)


def _uris(fields: list[_Element]) -> tuple[str, ...]:
    found = [content for tag, content in fields if tag == _EXTENSIONS]
    if not found:
        return ()
    [(_, extensions)] = _elements(found[0])
    parts = [list(_elements(extension)) for _, extension in _elements(extensions)]
    named = [part[-1] for part in parts if part[0] == (_OID, _ALTERNATIVE_NAMES)]
    if not named:
        return ()
    [(_, names)] = named
    [(_, each)] = _elements(names)
    return tuple(content.decode("ascii") for tag, content in _elements(each) if tag == _URI)


def _text(tag: int, content: bytes) -> str:
    if tag not in _TEXTS:
        raise ValueError("a name in an unknown encoding")
    return content.decode(_TEXTS[tag])


def _elements(der: bytes) -> Iterator[_Element]:
    """The elements that stand one after the other."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:  # so many bytes hold the length
            end = at + (length & 0x7F)
            length, at = int.from_bytes(der[at:end], "big"), end
        if length > len(der) - at:
            raise ValueError("an element that is longer than what holds it")
        yield tag, der[at : at + length]
        at += length


def _seconds(tag: int, time: bytes) -> int:
    text = time.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    if not re.fullmatch(r"\d{14}Z", text):
        raise ValueError("a time in an unknown form")
    year, *rest = (int(part) for part in (text[:4], *(text[at : at + 2] for at in range(4, 14, 2))))
    return timegm((year, *rest))
