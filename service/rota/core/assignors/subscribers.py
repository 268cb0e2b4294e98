"""The subscribers of each topic, by rank."""

from __future__ import annotations

from collections.abc import Sequence

from rota.core.assignors.model import MemberSubscription
from rota.core.assignors.numbering import Numbering


def subscribers_of_topics(numbering: Numbering, members: Sequence[MemberSubscription]) -> dict[str, list[int]]:
    """The ranks of each topic's subscribers, ascending."""
    subscribers: dict[str, list[int]] = {topic: [] for topic in numbering.numbers}
    for rank, member in enumerate(members):
        for topic in dict.fromkeys(member.topics):
            if topic in subscribers:
                subscribers[topic].append(rank)
    return subscribers


def candidates_of_topics(
    numbering: Numbering, members: Sequence[MemberSubscription]
) -> tuple[dict[str, int], list[tuple[int, ...]]]:
    """The different sets of subscribers, and for each topic the index of its own."""
    indexes: dict[tuple[int, ...], int] = {}
    subscribers = subscribers_of_topics(numbering, members)
    of_topics = {topic: indexes.setdefault(tuple(found), len(indexes)) for topic, found in subscribers.items()}
    return of_topics, list(indexes)
