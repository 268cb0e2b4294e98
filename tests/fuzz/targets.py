"""All targets by their names."""

from __future__ import annotations

from tests.fuzz.campaign import Target
from tests.fuzz.certificates import CERTIFICATES
from tests.fuzz.core import CORE
from tests.fuzz.http1 import HTTP1
from tests.fuzz.http2 import HTTP2
from tests.fuzz.issuer_answers import ISSUERS
from tests.fuzz.journal import JOURNAL
from tests.fuzz.jwts import JWTS
from tests.fuzz.peer_answers import PEER_ANSWERS
from tests.fuzz.peers import PEERS
from tests.fuzz.redis_answers import REDIS

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (HTTP1, HTTP2, JWTS, CERTIFICATES, JOURNAL, PEERS, CORE, REDIS, PEER_ANSWERS, ISSUERS)
}
