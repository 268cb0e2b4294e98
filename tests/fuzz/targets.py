"""All targets by their names."""

from __future__ import annotations

from tests.fuzz.campaign import Target
from tests.fuzz.certificates import CERTIFICATES
from tests.fuzz.core import CORE
from tests.fuzz.http1 import HTTP1
from tests.fuzz.http2 import HTTP2
from tests.fuzz.journal import JOURNAL
from tests.fuzz.jwts import JWTS
from tests.fuzz.peers import PEERS

TARGETS: dict[str, Target] = {
    target.name: target for target in (HTTP1, HTTP2, JWTS, CERTIFICATES, JOURNAL, PEERS, CORE)
}
