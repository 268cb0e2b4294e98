"""API tokens: their form, the digests that are kept of them, when they are rejected."""

from __future__ import annotations

import pytest

from rota.core.access.tokens import RANDOM_BYTES, MalformedToken, TokenRecord, is_ours, mint, parse, refusal_of

TEXT = mint(bytes(range(RANDOM_BYTES)))


def a_record(**fields: object) -> TokenRecord:
    presented = parse(TEXT)
    return TokenRecord(presented.token_id, "ci", presented.digest, **fields)  # type: ignore[arg-type]


def test_a_token_has_a_prefix_an_id_a_secret_and_a_checksum() -> None:
    prefix, token_id, secret = TEXT.split("_")

    assert (prefix, len(token_id), len(secret)) == ("rota", 10, 49)
    assert is_ours(TEXT)
    assert parse(TEXT).token_id == token_id


def test_what_is_kept_does_not_contain_the_secret() -> None:
    assert TEXT.split("_")[2][:43] not in repr(a_record())


@pytest.mark.parametrize(
    "text",
    ["", "rota_", TEXT[:-1], TEXT + "0", TEXT.replace("rota_", "rotb_"), TEXT[:-1] + ("0" if TEXT[-1] != "0" else "1")],
)
def test_a_slip_of_the_pen_is_found_without_looking_anything_up(text: str) -> None:
    with pytest.raises(MalformedToken) as refused:
        parse(text)
    assert not text or text not in str(refused.value)


def test_a_token_is_accepted_until_it_expires_or_is_revoked() -> None:
    presented = parse(TEXT)

    assert refusal_of(a_record(expires_at_ms=1_000), presented, 999) == ""
    assert refusal_of(a_record(expires_at_ms=1_000), presented, 1_000) == "token 'ci' has expired"
    assert refusal_of(a_record(revoked_at_ms=5), presented, 6) == "token 'ci' was revoked"


def test_nobody_learns_whether_the_id_or_the_secret_is_wrong() -> None:
    other = parse(mint(bytes(range(8)) + b"\x07" * 32))

    assert other.token_id == parse(TEXT).token_id
    assert refusal_of(a_record(), other, 0) == refusal_of(None, other, 0) == "the token is not known"
