"""A stand-in for curl on machines without it: just the options that our documents use.

A fresh machine has Python and make, nothing else; the README's blocks must run there, too.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import httpx


def put_curl_on_path(folder: Path) -> str:
    """The folder to put in front of PATH: empty where the machine has a curl of its own."""
    if shutil.which("curl") is None:
        script = folder / "curl"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" "$@"\n')
        script.chmod(0o755)
    return str(folder)


def main(arguments: list[str]) -> int:
    """`curl -sS [--json BODY] [--retry N] URL`: print the answer's body, whatever its status."""
    body, url, timeout_s, retries = None, "", 60.0, 0
    rest = iter(arguments)
    for argument in rest:
        if argument == "--json":
            body = next(rest)
        elif argument == "--max-time":
            timeout_s = float(next(rest))
        elif argument == "--retry":
            retries = int(next(rest))
        elif argument == "--retry-delay":
            next(rest)
        elif argument not in ("-s", "-sS", "--retry-connrefused"):
            url = argument
    headers = {"Content-Type": "application/json", "Accept": "application/json"} if body is not None else {}
    method = "GET" if body is None else "POST"
    with httpx.Client(transport=httpx.HTTPTransport(retries=retries), timeout=timeout_s) as http:
        sys.stdout.write(http.request(method, url, content=body, headers=headers).text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
