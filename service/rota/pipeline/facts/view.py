"""The state of a group between two lines, as far as the facts need it; folded like `rota.core.group.state`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from rota.pipeline.facts.fact import Event

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"


class GroupView:
    """One group. `state` is plain JSON, so that it can be carried from one slice of the journal to the next."""

    remembers: ClassVar[tuple[str, ...]] = ("group_instance_id", "client_id", "host", "session_timeout_ms")
    """The part that is kept of a member's own words; its metadata may be large."""

    def __init__(self, namespace: str, group_id: str, state: dict[str, Any] | None = None) -> None:
        self.namespace = namespace
        self.group_id = group_id
        self.state = state or {
            "epoch": 0,
            "now": EMPTY,
            "settled": EMPTY,
            "generation_id": 0,
            "leader_id": "",
            "protocol_type": "",
            "protocol_name": "",
            "size": 0,
            "members": {},
            "seq": 0,
        }

    # --- questions --------------------------------------------------------------------------------

    @property
    def now(self) -> str:
        """The group's state."""
        return str(self.state["now"])

    @property
    def settled(self) -> str:
        """The state that a new owner would find."""
        return str(self.state["settled"])

    @property
    def generation_id(self) -> int:
        return int(self.state["generation_id"])

    @property
    def leader_id(self) -> str:
        """Of the last completed generation; empty once it has gone."""
        return str(self.state["leader_id"])

    @property
    def size(self) -> int:
        """How many members the last completed generation had."""
        return int(self.state["size"])

    @property
    def members(self) -> dict[str, Any]:
        """By member id, in the order of joining: what each said of itself, and whether that is settled."""
        found: dict[str, Any] = self.state["members"]
        return found

    @property
    def last_seq(self) -> int:
        """The number of the group's line before."""
        return int(self.state["seq"])

    @property
    def key(self) -> dict[str, str]:
        """The columns that name the group."""
        return {"namespace": self.namespace, "group_id": self.group_id}

    # --- folding ----------------------------------------------------------------------------------

    def forget_unsettled(self) -> None:
        """As a new owner does: a join phase that was under way never was."""
        state = self.state
        settled = {member_id: image for member_id, image in self.members.items() if image["settled"]}
        state["members"] = {m: {**image, **(image["was"] or {}), "was": None} for m, image in settled.items()}
        state["now"] = state["settled"]

    def take(self, event: Event) -> None:
        """Take a line in."""
        state, payload = self.state, event.payload
        match event.kind:
            case "rebalance_started":
                state["now"] = PREPARING
            case "member_joined":
                if state["now"] == EMPTY:
                    state["protocol_type"] = payload["protocol_type"]
                self.members[payload["member"]["member_id"]] = self._image(payload["member"], settled=False)
            case "member_updated":
                self._update(payload)
            case "member_left" | "member_expired" | "member_removed":
                self._dismiss(payload["member_id"])
            case "member_fenced":
                self._rename(payload["member_id"], payload["new_member_id"])
            case "generation_completed":
                self._complete(payload)
            case "assignment_synced":
                state["now"] = state["settled"] = STABLE
                state["generation_id"] = payload["generation_id"]
            case "assignment_failed":
                state["settled"] = PREPARING
            case "generation_raised":
                state["settled"] = EMPTY if state["settled"] == EMPTY else PREPARING
                state["generation_id"] = payload["generation_id"]
            case "group_emptied" | "group_deleted":
                state["now"] = state["settled"] = EMPTY if event.kind == "group_emptied" else DEAD
                state.update(generation_id=payload["generation_id"], leader_id="", size=0, protocol_name="", members={})
        if state["now"] == DEAD and event.kind != "group_deleted":
            state["now"] = state["settled"] = EMPTY
        state["seq"] = event.seq
        state["epoch"] = event.epoch

    def _update(self, payload: dict[str, Any]) -> None:
        member_id = payload["member"]["member_id"]
        former = self.members.get(member_id)
        settled = former is None or former["settled"]
        image = self._image(payload["member"], settled=settled)
        if former is not None and settled and not payload["settle"]:
            image["was"] = former["was"] or {name: former[name] for name in self.remembers}
        self.members[member_id] = image

    def _dismiss(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is not None and member["settled"]:
            self.state["settled"] = PREPARING
        if self.leader_id == member_id:
            self.state["leader_id"] = ""

    def _rename(self, member_id: str, new_id: str) -> None:
        if self.members.get(member_id, {}).get("settled") and self.settled == COMPLETING:
            self.state["settled"] = PREPARING
        self.state["members"] = {(new_id if m == member_id else m): image for m, image in self.members.items()}
        if self.leader_id == member_id:
            self.state["leader_id"] = new_id

    def _image(self, member: dict[str, Any], *, settled: bool) -> dict[str, Any]:
        return {**{name: member[name] for name in self.remembers}, "settled": settled, "was": None}

    def _unseen(self) -> dict[str, Any]:
        """A member of which no line says more than its id."""
        return {**dict.fromkeys(self.remembers), "settled": True, "was": None}

    def _complete(self, payload: dict[str, Any]) -> None:
        # Where the journal's beginning was pruned, members are there that no line before this one named.
        ids = payload["member_ids"]
        for member_id in self.members.keys() - set(ids):
            del self.members[member_id]
        for member_id in ids:
            if member_id not in self.members:
                self.members[member_id] = self._unseen()
        for image in self.members.values():
            image["settled"], image["was"] = True, None
        self.state.update(
            now=COMPLETING,
            settled=COMPLETING,
            generation_id=payload["generation_id"],
            leader_id=payload["leader_id"],
            protocol_type=payload["protocol_type"],
            protocol_name=payload["protocol_name"],
            size=len(payload["member_ids"]),
        )
