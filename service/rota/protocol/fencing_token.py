"""The fencing token: one number made of a generation and a count of takeovers, in the order of both (ADR 43).

A static member that comes back under a new member id keeps the generation (KIP-345). So the generation alone would be
the same token for the member and for its successor. The token also counts the takeovers of the group in its generation:

    token = generation_id * 2**20 + takeover

A member that was never taken over has 0; each successor has the next number. Tokens are below 2**51, so JSON carries
them.
"""

from __future__ import annotations

from typing import Final

TAKEOVER_BITS: Final = 20
LAST_TAKEOVER: Final = 2**TAKEOVER_BITS - 1
"""The highest number that fits. A successor that would get it gets no share: its group rebalances."""
NO_TOKEN: Final = -1
"""The token of a member that is in no generation."""
MAX_TOKEN: Final = 2 ** (31 + TAKEOVER_BITS) - 1


def fencing_token(generation_id: int, takeover: int = 0) -> int:
    """The token of the member that has this number of the takeovers in the generation."""
    return NO_TOKEN if generation_id < 0 else generation_id << TAKEOVER_BITS | takeover


def generation_of(token: int) -> int:
    """The generation that a token belongs to."""
    return -1 if token < 0 else token >> TAKEOVER_BITS


def takeover_of(token: int) -> int:
    """The number among its generation's takeovers; 0 for a member that took no other member's place."""
    return 0 if token < 0 else token & LAST_TAKEOVER
