"""Rates: a token bucket, and one that the callers of a namespace share in fair turns."""

from __future__ import annotations

BURST_S = 2
"""A bucket holds so many seconds' worth."""
ACTIVE_MS = 2_000
"""A caller has a share of a bucket until it has asked nothing for so long."""
MOST_SHARES = 10_000
"""Beyond so many callers, the others get what these leave."""


class Bucket:
    """A token bucket: fills by `per_s`, holds `BURST_S` seconds' worth, and may be overdrawn by one request."""

    __slots__ = ("at_ms", "level", "per_s")

    def __init__(self, per_s: float, now_ms: int) -> None:
        self.per_s = per_s
        self.level = per_s * BURST_S
        self.at_ms = now_ms
        """When it was filled last."""

    def has_some(self, now_ms: int) -> bool:
        """Fill it up to now; whether anything is left."""
        if now_ms != self.at_ms:
            self.level = min(self.per_s * BURST_S, self.level + max(0, now_ms - self.at_ms) * self.per_s / 1000)
            self.at_ms = now_ms
        return self.level > 0

    def spend(self, amount: float) -> None:
        """Take so much, whether there is so much or not."""
        self.level -= amount

    def take(self, amount: float, now_ms: int) -> bool:
        """Take so much, unless it is empty. Overdrawing lets a large request through at all, and the next ones wait."""
        if not self.has_some(now_ms):
            return False
        self.spend(amount)
        return True

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing was asked of it for `ACTIVE_MS`."""
        return now_ms - self.at_ms > ACTIVE_MS


class Turns:
    """A bucket that callers share: each has an equal share of the rate for certain, and whatever the others leave.

    Shares take from the whole as well, so all callers together get no more than the rate. What a caller takes beyond
    its share is not held against it later.
    """

    __slots__ = ("_shares", "_swept_ms", "_whole")

    def __init__(self, per_s: int, now_ms: int) -> None:
        self._whole = Bucket(per_s, now_ms)
        self._shares: dict[str, Bucket] = {}
        self._swept_ms = now_ms

    def has_some(self, caller: str, now_ms: int) -> bool:
        """Whether the caller could take something now."""
        share = self._share(caller, now_ms)
        return (share is not None and share.has_some(now_ms)) or self._whole.has_some(now_ms)

    def spend(self, caller: str, amount: float, now_ms: int) -> None:
        """Take so much for the caller, whether there is so much or not."""
        share = self._share(caller, now_ms)
        if share is not None and share.has_some(now_ms):
            share.spend(amount)
        self._whole.has_some(now_ms)
        self._whole.spend(amount)

    def take(self, caller: str, amount: float, now_ms: int) -> bool:
        """Take so much for the caller, unless its share and the whole are empty.

        Buckets are filled once a millisecond, for requests may come far more often.
        """
        whole, share = self._whole, self._shares.get(caller)
        if share is None or share.at_ms != now_ms:
            share = self._share(caller, now_ms)
            if share is not None:
                share.has_some(now_ms)
        if whole.at_ms != now_ms:
            whole.has_some(now_ms)
        if share is not None and share.level > 0:
            share.level -= amount
        elif whole.level <= 0:
            return False
        whole.level -= amount
        return True

    def _share(self, caller: str, now_ms: int) -> Bucket | None:
        if now_ms - self._swept_ms > ACTIVE_MS:
            self._swept_ms = now_ms
            self._shares = {name: share for name, share in self._shares.items() if not share.is_idle(now_ms)}
        share = self._shares.get(caller)
        if share is None and len(self._shares) < MOST_SHARES:
            share = self._shares[caller] = Bucket(self._whole.per_s / (len(self._shares) + 1), now_ms)
        if share is not None:
            share.per_s = self._whole.per_s / len(self._shares)
        return share
