"""Keys, the server's signature, and keys that a verifier fetches from a server now and then."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from jwt.utils import base64url_decode

from rota.fencing.errors import InvalidToken
from rota.fencing.keys import InvalidKeys, KeyRing, new_key, public_keys, read_keys
from rota.fencing.published import PublishedKeys
from rota.fencing.signer import Signer
from rota.fencing.tokens import FencingToken, sign, verify
from rota.protocol.fencing_token import fencing_token
from rota.protocol.messages import FenceReply, VerifyFence

NOW = 1_700_000_000
OF_RFC_8037 = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
ITS_THUMBPRINT = "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
"""RFC 8037, appendix A.3."""


@pytest.fixture
def key_pairs(tmp_path: Path) -> KeyRing:
    path = tmp_path / "key.pem"
    path.write_bytes(new_key())
    return read_keys([path])


def test_a_keys_id_is_its_thumbprint() -> None:
    assert list(public_keys({"keys": [OF_RFC_8037]})) == [ITS_THUMBPRINT]


def test_keys_of_other_kinds_are_left_out() -> None:
    x = "A" * 43
    others = [{"kty": "RSA"}, {"kty": "OKP", "crv": "X25519", "x": x}, {"kty": "EC", "crv": "Ed25519", "x": x}]

    assert list(public_keys({"keys": [*others, OF_RFC_8037]})) == [ITS_THUMBPRINT]


def test_a_published_key_says_what_it_is_for(key_pairs: KeyRing) -> None:
    (jwk,) = key_pairs.jwks()["keys"]

    named = {"kty": "OKP", "crv": "Ed25519", "kid": key_pairs.signing_id, "alg": "EdDSA", "use": "sig"}
    assert {name: value for name, value in jwk.items() if name != "x"} == named
    assert list(public_keys(key_pairs.jwks())) == [key_pairs.signing_id]


def test_the_server_signs_what_it_has_confirmed(key_pairs: KeyRing) -> None:
    request = VerifyFence("default", "billing", 7, "writer-1", sign=True)
    reply = FenceReply(generation_id=7, is_leader=True, fencing_token=fencing_token(7) + 2, group_instance_id="writer")
    signer = Signer(lambda: key_pairs, ttl_s=60, clock=lambda: NOW + 0.9)

    signed = signer(request, reply)

    expected = FencingToken("default", "billing", 7, "writer-1", True, NOW, NOW + 60, reply.fencing_token, "writer")
    assert verify(signed.token, key_pairs.public, now=NOW) == expected
    assert b" " not in base64url_decode(signed.token.split(".")[1])
    assert signed.generation_id == reply.generation_id
    assert signer.jwks() == key_pairs.jwks()


def test_a_token_is_good_up_to_its_last_second_and_a_leeway(key_pairs: KeyRing) -> None:
    token = FencingToken("default", "billing", 7, "writer-1", True, NOW, NOW + 60, fencing_token(7))
    text = sign(token, key_pairs)

    assert verify(text, key_pairs.public, now=NOW + 59.9) == token
    assert verify(text, key_pairs.public, now=NOW + 61.9, leeway_s=2.0) == token
    for late in ({"now": NOW + 60.0}, {"now": NOW + 62.0, "leeway_s": 2.0}):
        with pytest.raises(InvalidToken, match="has expired"):
            verify(text, key_pairs.public, **late)


@pytest.mark.parametrize(
    "changes", [{"iss": "other"}, {"generation_id": "7"}, {"iat": 1.5}, {"exp": True}, {"fencing_token": None}]
)
def test_claims_of_another_kind_are_refused(key_pairs: KeyRing, changes: dict[str, object]) -> None:
    token = FencingToken("default", "billing", 7, "writer-1", True, NOW, NOW + 60, fencing_token(7))
    header, claims, _ = sign(token, key_pairs).split(".")
    changed = {**json.loads(base64url_decode(claims)), **changes}
    text = f"{header}.{_encoded(changed)}"

    with pytest.raises(InvalidToken):
        verify(f"{text}.{_base64url(key_pairs.signing.sign(text.encode()))}", key_pairs.public, now=NOW)


# --- keys that are fetched ----------------------------------------------------------------------------


def fetched_by(answers: list[httpx.Response], asked: list[str], clock: Callable[[], float]) -> PublishedKeys:
    """Keys of a server that answers so, one answer after the other."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return answers.pop(0)

    client = httpx.Client(transport=httpx.MockTransport(answer))
    return PublishedKeys("http://rota:8080/", max_age_s=60.0, client=client, clock=clock)


def test_keys_are_fetched_again_once_they_are_old(key_pairs: KeyRing) -> None:
    now, asked = 1_000.0, list[str]()
    answers = [httpx.Response(200, json=key_pairs.jwks()), httpx.Response(200, json={"keys": [OF_RFC_8037]})]
    keys = fetched_by(answers, asked, lambda: now)

    first = [*keys()]
    now += 59.9
    young = [*keys()]
    now += 0.1
    old = [*keys()]

    assert (first, young, old) == ([key_pairs.signing_id], [key_pairs.signing_id], [ITS_THUMBPRINT])
    assert asked == ["http://rota:8080/.well-known/jwks.json"] * 2


@pytest.mark.parametrize("answer", [httpx.Response(503), httpx.Response(200, text="<html>")])
def test_known_keys_stay_good_while_a_server_has_none(key_pairs: KeyRing, answer: httpx.Response) -> None:
    now, asked = 1_000.0, list[str]()
    keys = fetched_by([httpx.Response(200, json=key_pairs.jwks()), answer], asked, lambda: now)
    keys()

    now += 60
    assert [*keys()] == [key_pairs.signing_id]
    now += 59
    assert [*keys()] == [key_pairs.signing_id], "a server that does not answer is not asked for each token"
    assert len(asked) == 2


def test_without_keys_the_url_and_the_reason_are_named() -> None:
    keys = fetched_by([httpx.Response(503)], [], lambda: 0.0)

    with pytest.raises(InvalidKeys, match=r"no keys from http://rota:8080/\.well-known/jwks\.json: .*503"):
        keys()


def _encoded(claims: dict[str, object]) -> str:
    return _base64url(json.dumps(claims).encode())


def _base64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
