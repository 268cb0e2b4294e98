"""Bearer tokens: JWTs of an issuer, signed fencing tokens and API tokens, forged and genuine with strange claims."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rota.core.access.tokens import RANDOM_BYTES, mint
from rota.fencing.errors import InvalidToken
from rota.fencing.tokens import TOKEN_TYPE, verify
from rota.server.access.authenticator import ServerAuthenticator
from rota.server.access.files import AccessFile
from rota.server.access.identity import Credentials
from rota.server.access.issuers import IssuedTokens
from rota.server.access.tokens import Tokens
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import as_json, mutated, mutated_document

ISSUER, AUDIENCE, KEY_ID = "https://login.example", "rota", "k1"
SUBJECT = "worker"
_ACCESS = """
[[issuers]]
issuer = "{issuer}"
audiences = ["rota"]
jwks = "{jwks}"
"""
_HEADERS: tuple[dict[str, Any], ...] = (
    {},
    {"alg": "none"},
    {"alg": "HS256"},
    {"alg": "ES384"},
    {"alg": ["ES256"]},
    {"alg": None},
    {"kid": None},
    {"kid": ["k1"]},
    {"kid": "../../etc/passwd"},
    {"jku": "http://127.0.0.1:9/keys", "x5u": "http://127.0.0.1:9/cert"},
    {"jwk": {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}},
    {"b64": False, "crit": ["b64"]},
    {"crit": "x"},
    {"zip": "DEF"},
    {"cty": "JWT", "typ": 7},
)


class TokenFuzzer:
    """Shows each token to what the server asks for its caller."""

    cpu_s = staticmethod(time.thread_time)

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        self._runner = runner
        # Of a fixed number, so that a seed makes the same cases again.
        self._key = ec.derive_private_key(20_261_123, ec.SECP256R1())
        self._fence_key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        keys = {"keys": [{**public, "kid": KEY_ID, "use": "sig", "alg": "ES256"}]}
        (folder / "keys.json").write_text(json.dumps(keys))
        (folder / "access.toml").write_text(_ACCESS.format(issuer=ISSUER, jwks=folder / "keys.json"))
        policy = AccessFile(folder / "access.toml")
        self._authenticator = ServerAuthenticator(policy, Tokens(), IssuedTokens(policy))

    def play(self, random: Random) -> None:
        case: Callable[[Random], None] = random.choice((self._forged, self._forged, self._genuine, self._fence))
        case(random)

    def _forged(self, random: Random) -> None:
        """A token in which something has changed since its issuer signed it proves nothing."""
        token = self._issued({"sub": SUBJECT})
        changed = random.choice((_with_other_header, _with_other_claims, _with_other_bytes))(random, token)
        subject = self._subject_of(b"Bearer " + changed)
        if subject != "anonymous" and _meaning(changed) != _meaning(token):
            raise Broken(f"{subject} by {changed!r}")
        self._subject_of(random.choice((b"Bearer ", b"bearer  ", b"Basic ", b"")) + _with_other_bytes(random, changed))
        self._subject_of(b"Bearer " + mutated(random, mint(b"r" * RANDOM_BYTES).encode()))

    def _genuine(self, random: Random) -> None:
        """Whatever an issuer signs, the answer is a caller with a text for a name, or an anonymous one."""
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 600, "nbf": now, "sub": SUBJECT, "groups": ["a", "b"]}
        self._subject_of(b"Bearer " + self._signed(as_json(mutated_document(random, claims))))

    def _fence(self, random: Random) -> None:
        """`verify` raises `InvalidToken` and nothing else, and takes no token for genuine that has changed."""
        claims = {"iss": "rota", "namespace": "n", "group_id": "g", "sub": "m", "generation_id": 1, "is_leader": True}
        claims |= {"iat": 0, "exp": 2**40, "fencing_token": 1 << 20, "group_instance_id": None}
        is_genuine = random.random() < 0.5
        token = genuine = self._fencing_token(mutated_document(random, claims) if is_genuine else claims)
        if not is_genuine:
            token = random.choice((_with_other_header, _with_other_claims, _with_other_bytes))(random, genuine)
        try:
            read = verify(token.decode("utf-8", "replace"), {"f": self._fence_key.public_key()})
        except InvalidToken:
            return
        if _meaning(token) != _meaning(genuine):
            raise Broken(f"{read!r} for {token!r}")

    def _fencing_token(self, claims: Any) -> bytes:
        header = as_json({"alg": "EdDSA", "typ": TOKEN_TYPE, "kid": "f"})
        signed = b".".join(map(_base64url, (header, as_json(claims))))
        return signed + b"." + _base64url(self._fence_key.sign(signed))

    def _issued(self, claims: dict[str, Any]) -> bytes:
        now = int(time.time()) // 3_600 * 3_600
        said = {"iss": ISSUER, "aud": AUDIENCE, "exp": now + 7_200, "iat": now, **claims}
        return self._signed(as_json(said))

    def _signed(self, body: bytes) -> bytes:
        return jwt.api_jws.encode(body, self._key, algorithm="ES256", headers={"kid": KEY_ID}).encode()

    def _subject_of(self, authorization: bytes) -> str:
        identity = self._runner.run(self._authenticator.identify(Credentials(authorization)))
        subject, groups = identity.caller.subject, identity.caller.groups
        if type(subject) is not str or not subject or not all(type(group) is str for group in groups):
            raise Broken(f"{subject!r} with {groups!r} by {authorization!r}")
        return subject


def _with_other_header(random: Random, token: bytes) -> bytes:
    header, *rest = token.split(b".")
    said = json.loads(_from_base64url(header)) | random.choice(_HEADERS)
    if random.random() < 0.5:
        said = mutated_document(random, said)
    return b".".join([_base64url(as_json(said)), *rest])


def _with_other_claims(random: Random, token: bytes) -> bytes:
    header, claims, signature = token.split(b".")
    said = mutated_document(random, json.loads(_from_base64url(claims)))
    return b".".join([header, _base64url(as_json(said)), random.choice((signature, b""))])


def _with_other_bytes(random: Random, token: bytes) -> bytes:
    return mutated(random, token)


def _meaning(token: bytes) -> Any:
    """The claims. Base64 and a signature have more than one spelling."""
    try:
        return json.loads(_from_base64url(token.split(b".")[1]))
    except (ValueError, IndexError, RecursionError):
        return None


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _from_base64url(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))


@contextmanager
def opened() -> Iterator[TokenFuzzer]:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        yield TokenFuzzer(Path(folder), runner)


JWTS = Target("jwts", "bearer tokens: JWTs, API tokens, fencing tokens, forged or with strange claims", opened)
