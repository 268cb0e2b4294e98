"""An object store that speaks S3's protocol: moto's server, a process of its own.

It must be one: delta-rs keeps Python's lock while it waits for an answer.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port

BUCKET = "tables"
_START_S = 60.0
"""The first request has it load all that it can be."""


@contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """Runs until the block ends; gives the environment in which delta-rs finds it. `s3://tables/` is there."""
    port = free_port()
    server = "from moto.server import main; main()"
    command = [sys.executable, "-c", server, "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "s3.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _make_bucket(f"http://127.0.0.1:{port}/{BUCKET}", time.monotonic() + _START_S)
            yield {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "tester",
                "AWS_SECRET_ACCESS_KEY": "tester",
            }
        finally:
            process.terminate()
            process.wait()


def _make_bucket(url: str, until: float) -> None:
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
        except OSError:
            assert time.monotonic() < until, "the object store does not start"
            time.sleep(0.05)
        else:
            return
