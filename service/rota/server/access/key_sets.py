"""Issuers' public keys: from a file, a URL, or wherever an OIDC issuer says they are; kept, and fetched again."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from rota.access.claims import Issuer

MAX_AGE_S = 300.0
LEAST_PAUSE_S = 10.0
"""Between two fetches that unknown keys have caused."""
TIMEOUT_S = 5.0
MAX_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)


class KeysUnavailable(Exception):
    """The issuer's keys cannot be had; nothing of it can be checked."""


class KeySet:
    """The keys of one issuer by their ids. While they cannot be fetched, those that are known stay good."""

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at: float | None = None
        self._asked_at: float | None = None
        self._fetching = asyncio.Lock()

    async def key(self, key_id: str | None) -> PyJWK | None:
        """The key, fetched first where the set is old or does not have it; raises `KeysUnavailable`."""
        if self._is_old() or (self._find(key_id) is None and self._may_ask()):
            async with self._fetching:
                if self._is_old() or (self._find(key_id) is None and self._may_ask()):
                    await self._fetch()
        return self._find(key_id)

    def _find(self, key_id: str | None) -> PyJWK | None:
        """By its id. A token without one is meant for the only key there is."""
        if key_id is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(key_id)

    def _is_old(self) -> bool:
        is_old = self._fetched_at is None or time.monotonic() - self._fetched_at >= MAX_AGE_S
        return is_old and (not self._keys or self._may_ask())

    def _may_ask(self) -> bool:
        is_file = bool(self._issuer.jwks) and not _is_url(self._issuer.jwks)
        return is_file or self._asked_at is None or time.monotonic() - self._asked_at >= LEAST_PAUSE_S

    async def _fetch(self) -> None:
        if not self._may_ask():
            raise KeysUnavailable("its keys could not be fetched a moment ago")
        self._asked_at = time.monotonic()
        try:
            self._keys = _read_keys(await self._document())
            self._fetched_at = time.monotonic()
        except Exception as error:
            # Whatever the issuer answers, the keys that are known stay good.
            _log.warning(
                "no keys of an issuer", extra={"issuer": self._issuer.issuer, "why": str(error) or repr(error)}
            )
            if not self._keys:
                raise KeysUnavailable("its keys cannot be fetched") from error

    async def _document(self) -> Mapping[str, Any]:
        where = self._issuer.jwks
        if where and not _is_url(where):
            return _read_file(where.removeprefix("file://"))
        async with await http_client(self._issuer) as client:
            client.headers.update(authorization_of(self._issuer))
            if not where:
                where = self._issuer.issuer.rstrip("/") + "/.well-known/openid-configuration"
                where = str((await ask(client, "GET", where)).get("jwks_uri", ""))
            return await ask(client, "GET", where)


async def http_client(issuer: Issuer) -> httpx.AsyncClient:
    """A client for asking the issuer, with its own CA, which is read now: it may have been changed.

    To read authorities takes 20 ms, so a thread does it.
    """
    verify = await asyncio.to_thread(ssl.create_default_context, cafile=issuer.ca_file or None)
    return httpx.AsyncClient(verify=verify, timeout=TIMEOUT_S, trust_env=False)


def authorization_of(issuer: Issuer) -> dict[str, str]:
    """The header with our bearer token for the issuer, which is read now."""
    if not issuer.bearer_file:
        return {}
    return {"authorization": f"Bearer {Path(issuer.bearer_file).read_text('ascii').strip()}"}


def _is_url(where: str) -> bool:
    return where.startswith(("http://", "https://"))


async def ask(client: httpx.AsyncClient, method: str, url: str, **sent: Any) -> Mapping[str, Any]:
    """The JSON object that a URL answers with, within a time and a size; raises for anything else."""
    data = b""
    async with asyncio.timeout(TIMEOUT_S), client.stream(method, url, **sent) as answer:
        answer.raise_for_status()
        async for chunk in answer.aiter_bytes():
            data += chunk
            if len(data) > MAX_BYTES:
                break
    return _json_object(data)


def _read_file(name: str) -> Mapping[str, Any]:
    """A small file on this machine: read at once."""
    return _json_object(Path(name).read_bytes())


def _json_object(data: bytes) -> Mapping[str, Any]:
    if len(data) > MAX_BYTES:
        raise ValueError("larger than any key set")
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _read_keys(document: Mapping[str, Any]) -> dict[str, PyJWK]:
    """Keys of an unknown kind are left out: they may be for another purpose."""
    keys: dict[str, PyJWK] = {}
    for number, jwk in enumerate(document.get("keys") or ()):
        try:
            if jwk.get("use", "sig") == "sig" and jwk.get("kty") != "oct":
                keys[str(jwk.get("kid", number))] = PyJWK.from_dict(jwk)
        except (PyJWTError, AttributeError, TypeError, ValueError):
            continue
    if not keys:
        raise ValueError("no keys to check signatures with")
    return keys
