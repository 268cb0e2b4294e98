"""The same election without asyncio."""

from __future__ import annotations

import os
import time

from rota.client import sync


def write(term: sync.Term) -> None:
    print("leads", term.fencing_token, time.monotonic(), flush=True)
    term.lost.wait()


def main() -> None:
    session_timeout_ms = int(os.environ["SESSION_MS"])
    with sync.connect(os.environ["ROTA_URL"]) as client:
        client.leader(os.environ["GROUP"], session_timeout=session_timeout_ms / 1000).run(write)
    print("ended", flush=True)


if __name__ == "__main__":
    main()
