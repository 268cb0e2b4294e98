"""Keys of issuers: from a URL, from where an OIDC issuer says, rotated, and while the issuer is away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from rota.core.access.document import AccessDocument, Issuer
from rota.server.access import issuers
from rota.server.access.authenticator import Refused
from rota.server.access.issuers import IssuedTokens
from tests.access.guarded import reviewing
from tests.access.issuers import Signer, service_account


class Provider:
    """An identity provider: its configuration and its keys, as an ASGI application."""

    def __init__(self) -> None:
        self.url = ""
        self.jwks = ""
        self.is_away = False
        self.asked: list[str] = []
        self.authorizations: set[bytes] = set()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        self.authorizations.add(dict(scope["headers"]).get(b"authorization", b""))
        configuration = json.dumps({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})
        body = self.jwks if scope["path"] == "/keys" else configuration
        status = 503 if self.is_away else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})


class Named:
    """A policy that names one issuer."""

    def __init__(self, issuer: Issuer) -> None:
        self.document = AccessDocument(issuers=(issuer,))


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    async with reviewing(provider) as url:
        provider.url = url
        yield provider


async def test_an_issuer_is_asked_where_its_keys_are_and_they_are_kept(provider: Provider) -> None:
    signer = Signer(provider.url)
    provider.jwks = signer.jwks()
    tokens = IssuedTokens(Named(Issuer(provider.url, ("rota",))))

    callers = [await tokens.caller_of(signer.token(sub="alice")) for _ in range(3)]

    assert {caller.subject for caller in callers} == {"user:alice"}
    assert provider.asked == ["/.well-known/openid-configuration", "/keys"]


async def test_a_new_key_is_fetched_for_the_first_token_that_has_it(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers, "LEAST_PAUSE_S", 0.0)
    old, new = Signer(provider.url, "k1"), Signer(provider.url, "k2")
    provider.jwks = old.jwks()
    tokens = IssuedTokens(Named(Issuer(provider.url, ("rota",), jwks=f"{provider.url}/keys")))
    await tokens.caller_of(old.token(sub="alice"))

    provider.jwks = new.jwks()

    assert (await tokens.caller_of(new.token(sub="bob"))).subject == "user:bob"
    with pytest.raises(Refused, match="a key that its issuer does not have"):
        await tokens.caller_of(old.token(sub="alice"))


async def test_made_up_keys_do_not_make_us_ask_again_and_again(provider: Provider) -> None:
    signer = Signer(provider.url)
    provider.jwks = signer.jwks()
    tokens = IssuedTokens(Named(Issuer(provider.url, ("rota",), jwks=f"{provider.url}/keys")))
    await tokens.caller_of(signer.token(sub="alice"))

    for number in range(20):
        with pytest.raises(Refused):
            await tokens.caller_of(Signer(provider.url, f"made-up-{number}").token(sub="mallory"))

    assert len(provider.asked) == 1


async def test_while_the_issuer_is_away_known_keys_stay_good(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = Signer(provider.url)
    provider.jwks = signer.jwks()
    tokens = IssuedTokens(Named(Issuer(provider.url, ("rota",), jwks=f"{provider.url}/keys")))
    await tokens.caller_of(signer.token(sub="alice"))
    provider.is_away = True
    monkeypatch.setattr(issuers, "MAX_AGE_S", 0.0)
    monkeypatch.setattr(issuers, "LEAST_PAUSE_S", 0.0)

    assert (await tokens.caller_of(signer.token(sub="alice"))).subject == "user:alice"
    assert len(provider.asked) > 1


async def test_an_issuer_that_was_never_reached_lets_nobody_in(provider: Provider) -> None:
    provider.is_away = True
    tokens = IssuedTokens(Named(Issuer(provider.url, ("rota",), jwks=f"{provider.url}/keys")))

    with pytest.raises(Refused, match="keys cannot be fetched"):
        await tokens.caller_of(Signer(provider.url).token(sub="alice"))


async def test_a_clusters_keys_are_asked_for_with_our_own_token(provider: Provider, tmp_path: Path) -> None:
    bearer = tmp_path / "token"
    bearer.write_text("ours\n")
    signer = Signer(provider.url)
    provider.jwks = signer.jwks()
    issuer = Issuer(provider.url, ("rota",), "kubernetes", f"{provider.url}/keys", bearer_file=str(bearer))

    caller = await IssuedTokens(Named(issuer)).caller_of(signer.token(**service_account("team-a", "worker", "w-0")))

    assert (caller.subject, caller.pod and caller.pod.name) == ("sa:team-a/worker", "w-0")
    assert provider.authorizations == {b"Bearer ours"}


@pytest.mark.parametrize(("skew_s", "is_accepted"), [(-20, True), (-40, False)])
async def test_clocks_may_differ_by_as_much_as_is_said(provider: Provider, skew_s: float, is_accepted: bool) -> None:
    signer = Signer(provider.url)
    provider.jwks = signer.jwks()
    tokens = IssuedTokens(Named(Issuer(provider.url, ("rota",), jwks=f"{provider.url}/keys", leeway_s=30)))
    token = signer.token(sub="alice", lasts_s=skew_s)

    if is_accepted:
        assert (await tokens.caller_of(token)).subject == "user:alice"
    else:
        with pytest.raises(Refused, match="has expired"):
            await tokens.caller_of(token)
