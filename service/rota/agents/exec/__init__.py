"""Runs a program as long as its group grants it: `rota lead` and `rota work`, in which no process outlives its grant.

    rota lead ── the wrapper: the member of the group; sends every renewal to the guardian
      └─ guardian: the parent of the command; holds the deadline, so that it needs no other process to act at it
           └─ the command, in a process group of its own, with all that it has started

Each of the two ends everything when the other has ended or hangs. `guardian.py` describes how.
"""
