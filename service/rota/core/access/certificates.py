"""The caller that a client's certificate names: the one rule for all transports (ADR 48).

A kind of name is never taken for another one: only a URI of the subject's alternative names can be a SPIFFE id, and
only a common name can be `cn:NAME`. Other alternative names (DNS, e-mail, addresses) name a host, and no caller,
whatever their text looks like.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass

from cryptography import x509
from cryptography.utils import CryptographyDeprecationWarning

from rota.core.access.rules import CERTIFICATE, Caller

_SPIFFE = "spiffe:"
_SPIFFE_ID = re.compile(r"spiffe://[a-z0-9._-]{1,255}(/(?!\.\.?(/|$))[A-Za-z0-9._-]+)+")
_MAX_CHARS = 2048
"""The longest SPIFFE id, by its standard."""


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The parts of a certificate that identify its subject, and its expiry in seconds since 1970."""

    uris: tuple[str, ...]
    common_names: tuple[str, ...]
    ends_s: int


def caller_of_certificate(certificate: PeerCertificate) -> Caller | None:
    """The caller that a certificate names, until the certificate expires; None if it names no caller, or several.

    A certificate with a SPIFFE id must have no other URI, as the standard demands: an issuer may have meant either.
    Its common name then counts for nothing. Without a SPIFFE id the certificate must have exactly one common name.
    """
    uris, names = certificate.uris, certificate.common_names
    if any(uri.lower().startswith(_SPIFFE) for uri in uris):
        subject = uris[0] if len(uris) == 1 and len(uris[0]) <= _MAX_CHARS and _SPIFFE_ID.fullmatch(uris[0]) else ""
    else:
        subject = f"cn:{names[0]}" if len(names) == 1 and names[0] and names[0].isprintable() else ""
    return Caller(subject, CERTIFICATE, expires_at_ms=certificate.ends_s * 1000) if subject else None


def read_certificate(der: bytes) -> PeerCertificate:
    """The content of a certificate; ValueError if it cannot be read, or if an extension is there twice."""
    try:
        with warnings.catch_warnings():
            # A serial number that breaks the standard identifies no caller.
            warnings.simplefilter("ignore", CryptographyDeprecationWarning)
            read = x509.load_der_x509_certificate(der)
            names = [each.value for each in read.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
            alternative = [each.value for each in read.extensions if each.oid == x509.OID_SUBJECT_ALTERNATIVE_NAME]
            uris = [uri for each in alternative for uri in each.get_values_for_type(x509.UniformResourceIdentifier)]
            return PeerCertificate(tuple(uris), tuple(map(str, names)), int(read.not_valid_after_utc.timestamp()))
    except (x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError("an extension cannot be read") from error
