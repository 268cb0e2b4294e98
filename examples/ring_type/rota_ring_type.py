"""A protocol type of another package: members own arcs of a hash ring, as large as their weight says.

A member joins with `{"protocol_type": "ring", "protocols": [{"name": "server:arcs", "metadata": …}]}`, where the
metadata is the JSON `{"weight": 2}`, and is assigned `{"arcs": [[0, 43690]]}`: from the first to before the last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate, pairwise

from rota.core.types import Generation, MalformedMetadata, ProtocolType, ServerSide, TopicFacts

RING_SIZE = 2**16


def weight_of(metadata: bytes) -> float:
    """1 by default. Raises `MalformedMetadata` for anything but a weight."""
    try:
        values = json.loads(metadata) if metadata else {}
        weight = float(values.get("weight", 1))
    except (AttributeError, TypeError, ValueError) as error:
        raise MalformedMetadata(f"no weight: {error}") from error
    if not 0 < weight < float("inf"):
        raise MalformedMetadata("a weight must be above 0")
    return weight


def assign(generation: Generation, _topics: Mapping[str, TopicFacts]) -> dict[str, bytes]:
    """Arcs in joining order, so that remaining members keep most of their own. No topics: the core does it at once."""
    weights = [weight_of(member.metadata) for member in generation.members]
    ends = [round(RING_SIZE * total / sum(weights)) for total in accumulate(weights, initial=0)]
    return {
        member.member_id: json.dumps({"arcs": [arc]}).encode()
        for member, arc in zip(generation.members, pairwise(ends), strict=True)
    }


def read_arcs(assignment: bytes) -> Mapping[str, object]:
    try:
        return {"arcs": json.loads(assignment)["arcs"]}
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedMetadata(f"no arcs: {error!r}") from error


RING = ProtocolType(
    name="ring",
    read_metadata=lambda metadata: {"weight": weight_of(metadata)},
    read_assignment=read_arcs,
    server=ServerSide(assigns=lambda name: name == "server:arcs", assign=assign, check=weight_of),
)
