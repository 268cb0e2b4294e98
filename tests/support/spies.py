"""A command that reads what other processes of its user were started with, as `ps e` and `/proc` show it."""

from __future__ import annotations

import sys

# Root can read every process. Without capabilities it can read what any user can read of the user's own processes.
WITHOUT_CAPABILITIES = (
    sys.executable,
    "-c",
    """
import ctypes, os, sys
libc = ctypes.CDLL(None)
if os.getuid() == 0:
    PR_CAPBSET_DROP = 24
    capability = 0
    while libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
os.execv(sys.argv[1], sys.argv[1:])
""",
)
SPY = """
import json, os
def parent_of(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])
pid, seen = os.getpid(), []
for _ in range(%d):
    pid = parent_of(pid)
    for name in ("environ", "mem"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                seen.append([name, "TOKEN" in file.read(0 if name == "mem" else -1).decode(errors="replace")])
        except PermissionError:
            pass
print(json.dumps({"seen": seen, "own": open("/proc/self/environ").read().count("ROTA_TOKEN=")}), flush=True)
"""
"""Prints what it could open of so many of its ancestors, and whether it has a token itself."""
