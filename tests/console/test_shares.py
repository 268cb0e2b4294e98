"""The assignment map and the story of leaders, from bytes and lines of the journal."""

from __future__ import annotations

import json
import re

import pytest

from rota.core.assignors.model import TopicPartition
from rota.core.types.consumer import Assignment, encode_assignment
from rota.core.types.permits import PermitShare, encode_share
from rota.server.console.drawing import draw
from rota.server.console.group import reigns
from rota.server.console.shares import in_words, share_map
from rota.server.observability.generations import Generation


def plain(**topics: list[int]) -> bytes:
    return json.dumps({"topics": topics}).encode()


def kafka(*held: tuple[str, int]) -> bytes:
    return encode_assignment(Assignment(tuple(TopicPartition(*one) for one in held)))


def test_units_are_in_the_order_in_which_people_count() -> None:
    drawn = share_map("consumer", {"a": plain(t10=[1, 0], t2=[10, 9]), "b": kafka(("t2", 2))})

    assert drawn is not None
    assert drawn.units == (("t2", 2), ("t2", 9), ("t2", 10), ("t10", 0), ("t10", 1))
    assert [(row.member_id, row.held) for row in drawn.rows] == [("a", (1, 2, 3, 4)), ("b", (0,))]
    assert [(topic.name, topic.first, topic.count) for topic in drawn.topics] == [("t2", 0, 3), ("t10", 3, 2)]


def test_what_a_member_did_not_hold_before_has_moved() -> None:
    former = {"a": plain(t=[0, 1, 2]), "gone": plain(t=[3])}

    drawn = share_map("consumer", {"a": plain(t=[0, 3]), "b": plain(t=[1, 2])}, former)

    assert drawn is not None
    assert (drawn.moved, [sorted(row.gained) for row in drawn.rows]) == (3, [[3], [1, 2]])


def test_skew_is_largest_share_over_mean_with_idle_members() -> None:
    even = share_map("consumer", {"a": plain(t=[0, 1]), "b": plain(t=[2, 3])})
    uneven = share_map("consumer", {"a": plain(t=[0, 1, 2]), "b": plain(t=[3]), "c": b""})

    assert even is not None
    assert uneven is not None
    assert (even.skew, even.idle) == (1.0, 0)
    assert (uneven.skew, uneven.most, uneven.fewest, uneven.idle) == (2.25, 3, 0, 1)


def test_bytes_that_mean_nothing_to_us_make_no_map() -> None:
    assert share_map("consumer", {"a": b"\xff\xff"}) is None
    assert share_map("my-own", {"a": b"anything"}) is None
    assert share_map("worker", {"a": b'{"version":1,"run":{"copy":[-1,0]},"revoke":{}}'}) is not None


@pytest.mark.parametrize(("units", "cell"), [(12, 18), (200, 9), (1_400, 3)])
def test_a_drawing_has_a_cell_for_each_unit_and_all_of_it_inside(units: int, cell: int) -> None:
    drawn = share_map("consumer", {"a": plain(topic=list(range(units))), "b": b""})
    assert drawn is not None

    drawing = draw(drawn)

    assert drawing is not None
    assert (len(drawing.cells), drawing.cell) == (units, cell)
    assert max(one.x + drawing.cell for one in drawing.cells) <= drawing.width
    assert max(one.y for one in drawing.cells) < drawing.height


def test_units_without_an_owner_have_a_row_of_their_own_and_count_for_no_member() -> None:
    should = [("t", 0), ("t", 2), ("u", 0)]
    drawn = share_map("consumer", {"a": plain(t=[0, 1])}, unowned=should)
    assert drawn is not None
    drawing = draw(drawn)

    assert [drawn.units[unit] for unit in drawn.unowned] == [("t", 2), ("u", 0)]
    assert (drawn.most, drawn.fewest, drawn.idle, drawn.moved) == (2, 2, 0, 0)
    assert drawing is not None
    assert [row.text for row in drawing.rows] == ["a", "no owner"]
    assert [cell.kind for cell in drawing.cells] == ["", "", "unowned", "unowned"]
    assert drawing.cells[2].title == "t 2: no owner"


def test_thousands_of_units_are_pixels_with_moved_ones_apart() -> None:
    before = {"a": plain(topic=list(range(1_000))), "b": plain(topic=list(range(1_000, 2_000)))}
    now = {"a": plain(topic=list(range(1_001))), "b": plain(topic=list(range(1_001, 2_000)))}
    drawn = share_map("consumer", now, before)
    assert drawn is not None

    drawing = draw(drawn)

    assert drawing is not None
    assert drawing.cells == ()
    assert [(one.path.count("M"), one.kind) for one in drawing.stripes] == [(1_000, ""), (1, "moved"), (999, "")]
    assert drawing.stripes[1].title == "a: 1 of 2000, new here"
    at_px = [float(place) for one in drawing.stripes for place in re.findall(r"M([\d.]+) ", one.path)]
    assert len(set(at_px)) == 2_000
    assert max(at_px) + drawing.cell <= drawing.width
    assert [one.text for one in drawing.numbers][:3] == ["0", "100", "200"]


def generation(number: int, leader_id: str) -> Generation:
    return Generation(number, f"reason {number}", completed_at_ms=number * 1_000, leader_id=leader_id)


def test_a_leader_leads_until_another_one_does() -> None:
    story = [generation(1, "a"), generation(2, "a"), generation(3, ""), generation(4, "b"), Generation(5)]

    shown = reigns(story)

    assert [(one.leader_id, one.first_generation, one.last_generation) for one in shown] == [
        ("b", 4, 4),
        ("a", 1, 2),
    ]
    assert [(one.since_ms, one.until_ms) for one in shown] == [(4_000, None), (1_000, 3_000)]
    assert shown[1].why == "reason 1"


def test_permits_are_units_too() -> None:
    held = [encode_share(PermitShare(number, 7, 2, 0, 1, "a")) for number in (0, 1, None)]

    drawn = share_map("permits", {"a": held[0], "b": held[1], "c": held[2]}, {"a": held[0], "gone": held[1]})

    assert drawn is not None
    assert drawn.units == (("permit", 0), ("permit", 1))
    assert (drawn.idle, drawn.moved, in_words(drawn.units)) == (1, 1, "permit 0-1")
