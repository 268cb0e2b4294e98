"""Requests and replies of the group protocol (protocol.md §3), the same for every transport.

A request names its group by `namespace` and `group_id`. A reply carries its outcome in `error`;
the other fields hold their empty values when `error` is not `NONE`. Times are milliseconds.
"""

from __future__ import annotations

from rota.protocol.messages.base import *
from rota.protocol.messages.groups import *
from rota.protocol.messages.membership import *
from rota.protocol.messages.offsets import *
from rota.protocol.messages.topics import *
