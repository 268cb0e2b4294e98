"""gRPC's polling thread lives as long as the process.

grpcio counts the channels, servers and calls that exist, and joins its polling thread when the last of them is
deallocated. Where the garbage collector deallocates it, the thread of the event loop waits inside of the collection for
calls that only this loop could end: the process hangs (https://github.com/grpc/grpc/issues/22365). One reference that
is never given back keeps the count above zero.
"""

from __future__ import annotations

from functools import cache

import grpc


@cache
def keep_polling() -> None:
    """Take the reference. Call it before a channel or a server is made; calls after the first do nothing."""
    grpc.aio.init_grpc_aio()
