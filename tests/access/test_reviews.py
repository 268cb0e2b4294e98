"""Tokens that a Kubernetes API server is asked about: invented ones are not its work, or only a little of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from rota.core.access.budgets import BUDGETS, Budgets, Share
from rota.core.access.document import Issuer
from rota.protocol.calls import CALLS
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.messages import Heartbeat
from rota.server.access import authenticator
from rota.server.access.authenticator import Overloaded, ServerAuthenticator
from rota.server.access.identity import Credentials, Identity
from rota.server.access.issuers import IssuedTokens, ReviewBudget
from rota.server.access.tokens import Tokens
from tests.access.guarded import REVIEWED, reviewing
from tests.access.issuers import Reviewer, Signer
from tests.access.test_issuers_keys import Named

INVENTED = 300
HEARTBEAT = CALLS[Heartbeat].need


class Cluster:
    """An API server, and what a server of Rota makes of its tokens. No second passes."""

    def __init__(self, url: str, reviewer: Reviewer) -> None:
        self.reviewer = reviewer
        self.signer = Signer(REVIEWED)
        self.over_budget = Counter[str]()
        policy = Named(Issuer(REVIEWED, ("rota",), "kubernetes", review=url))
        budget = ReviewBudget(over_budget=lambda name: self.over_budget.update([name]), clock=lambda: 1.0)
        self.authenticator = ServerAuthenticator(policy, Tokens(), IssuedTokens(policy, budget))

    def a_token(self) -> str:
        """A genuine one."""
        token = self.signer.token()
        self.reviewer.accounts[token] = "team-a:worker"
        return token

    async def identify(self, token: str) -> Identity:
        credentials = Credentials(f"Bearer {token}".encode())
        return self.authenticator.known(credentials) or await self.authenticator.identify(credentials)

    async def identify_invented(self) -> Counter[ErrorCode]:
        """How so many callers with tokens of another signer are refused."""
        invented, codes = Signer(REVIEWED), Counter[ErrorCode]()
        tokens = [invented.token(number=number) for number in range(INVENTED)]
        for identity in await asyncio.gather(*map(self.identify, tokens)):
            with pytest.raises(RejectedRequest) as rejected:
                identity.check(HEARTBEAT, "team-a", "g")
            codes[rejected.value.code] += 1
        return codes


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    reviewer = Reviewer()
    async with reviewing(reviewer) as url:
        cluster = Cluster(url, reviewer)
        yield cluster
        await cluster.authenticator.close()


async def test_the_cluster_reviews_no_token_that_it_did_not_sign(cluster: Cluster) -> None:
    cluster.reviewer.jwks = cluster.signer.jwks()
    genuine = cluster.a_token()

    codes = await cluster.identify_invented()

    assert codes == {ErrorCode.UNAUTHENTICATED: INVENTED}
    assert (await cluster.identify(genuine)).caller.subject == "sa:team-a/worker"
    assert [asked["spec"]["token"] for asked in cluster.reviewer.asked] == [genuine]


async def test_reviews_are_bounded_without_the_clusters_keys(cluster: Cluster) -> None:
    """A caller that may come again in a moment is refused so: its token may be genuine."""
    codes = await cluster.identify_invented()

    most = BUDGETS.token_reviews_per_s.per_source
    assert len(cluster.reviewer.asked) == codes[ErrorCode.UNAUTHENTICATED] <= most
    assert codes[ErrorCode.THROTTLED] == cluster.over_budget.total() >= INVENTED - most


async def test_a_token_is_reviewed_once_for_many_calls(cluster: Cluster) -> None:
    token = cluster.a_token()

    identities = await asyncio.gather(*(cluster.identify(token) for _ in range(50)))

    assert {identity.caller.subject for identity in identities} == {"sa:team-a/worker"}
    assert len(cluster.reviewer.asked) == 1


async def test_invented_tokens_push_no_others_out(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticator, "REMEMBERED", 5)
    cluster.reviewer.jwks = cluster.signer.jwks()
    token = cluster.a_token()
    await cluster.identify(token)

    await cluster.identify_invented()

    assert (await cluster.identify(token)).caller.subject == "sa:team-a/worker"
    assert len(cluster.reviewer.asked) == 1


def test_reviews_leave_room_for_other_sources() -> None:
    budgets = Budgets(token_reviews=Share(2, 3), token_reviews_per_s=Share(4, 10))
    now, refused = [1.0], list[str]()
    budget = ReviewBudget(budgets, refused.append, lambda: now[0])

    with budget.one("a"), budget.one("a"):
        with pytest.raises(Overloaded), budget.one("a"):
            pass
        with budget.one("b"), pytest.raises(Overloaded), budget.one("c"):
            pass
    for _ in range(2):
        with budget.one("a"):
            pass
    with pytest.raises(Overloaded), budget.one("a"):
        pass
    now[0] = 2.0
    with budget.one("a"):
        pass
    assert refused == ["token_reviews", "token_reviews", "token_reviews_per_s"]
