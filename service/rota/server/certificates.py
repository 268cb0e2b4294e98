"""From when until when certificates are good, read from their files: Python's `ssl` tells it of a peer's only."""

from __future__ import annotations

import re
import ssl

from rota.access.certificates import read_validity
from rota.observability.certificates import Validity

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def validity_of(chain: bytes) -> Validity:
    """When all certificates of a chain in PEM are good; ValueError where it holds none that can be read."""
    found = [read_validity(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(chain.decode("ascii", "replace"))]
    if not found:
        raise ValueError("no certificate")
    return Validity(max(begins for begins, _ in found), min(ends for _, ends in found))
