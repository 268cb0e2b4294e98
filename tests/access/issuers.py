"""Issuers of tokens: one that signs, and an API server that reviews, both as real as their callers can see."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.types import Receive, Scope, Send

AUDIENCE = "rota"


class Signer:
    """An issuer with one key."""

    def __init__(self, issuer: str, key_id: str = "k1") -> None:
        self.issuer = issuer
        self.key_id = key_id
        self._key = ec.generate_private_key(ec.SECP256R1())

    def jwks(self) -> str:
        public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(self._key.public_key()))
        return json.dumps({"keys": [{**public, "kid": self.key_id, "use": "sig", "alg": "ES256"}]})

    def token(self, *, lasts_s: float = 600, **claims: Any) -> str:
        now = time.time()
        said = {"iss": self.issuer, "aud": AUDIENCE, "iat": int(now), "exp": int(now + lasts_s), **claims}
        return jwt.encode(said, self._key, algorithm="ES256", headers={"kid": self.key_id})


def service_account(namespace: str, name: str, pod: str = "") -> dict[str, Any]:
    """The claims of a Kubernetes token."""
    bound = {"pod": {"name": pod, "uid": f"uid-of-{pod}"}} if pod else {}
    return {"kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": "1"}, **bound}}


class Reviewer:
    """The part of a Kubernetes API server that reviews tokens, as an ASGI application."""

    def __init__(self) -> None:
        self.accounts: dict[str, str] = {}
        """Which token is which service account's: `namespace:name`."""
        self.asked: list[dict[str, Any]] = []
        self.is_away = False
        self.jwks = ""
        """The keys that it publishes, if any."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200 if self.jwks else 403, "headers": []})
            await send({"type": "http.response.body", "body": self.jwks.encode()})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        asked = json.loads(body)
        self.asked.append(asked)
        document = json.dumps({**asked, "status": self._status(asked["spec"])}).encode()
        headers = [(b"content-type", b"application/json")]
        status = 503 if self.is_away else 201
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": document})

    def _status(self, spec: dict[str, Any]) -> dict[str, Any]:
        account = self.accounts.get(spec["token"])
        if account is None:
            return {"authenticated": False, "error": "invalid bearer token"}
        user = {"username": f"system:serviceaccount:{account}"}
        return {"authenticated": True, "audiences": spec["audiences"], "user": user}
