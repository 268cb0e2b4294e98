"""The demo's own server, a separate process that ends with its parent."""

from __future__ import annotations

import asyncio
import signal
import sys

from rota.demo.children import set_when_orphaned
from rota.protocol.limits import Limits
from rota.server.lifecycle import ServerFailed, serve
from rota.server.observability.logs import configure_logging
from rota.server.settings import Address, Settings


async def run(store_url: str) -> None:
    """Serve on any free port, which the log names, until SIGTERM or the end of standard input."""
    stopped = asyncio.Event()
    set_when_orphaned(stopped)
    # One second is enough for all workers to join the first generation.
    limits = Limits(initial_rebalance_delay_ms=1_000)
    settings = Settings(store=store_url, http=Address("127.0.0.1", 0), grpc=None, redis=None, workers=1, limits=limits)
    await serve(settings, stop=stopped)


def main() -> None:
    """The process that `rota demo` starts if no server is running."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging("json")
    try:
        asyncio.run(run(sys.argv[1]))
    except ServerFailed as failed:
        sys.exit(str(failed))


if __name__ == "__main__":
    main()
