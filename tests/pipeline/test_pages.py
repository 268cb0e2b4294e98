"""The report as a page: links, plots with names, both colour schemes, and nothing that axe finds."""

from __future__ import annotations

import csv
import re
from collections import Counter
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from markdown_it import MarkdownIt

from rota.pipeline.pages import Bars, Chart, Link, Page, Section, group_link
from rota.server.observability.timeline import printable
from tests.support.browser import open_browser

GROUP = group_link("default", "orders <b>&</b>")
WIDE, NARROW = 1280, 390


def a_page() -> Page:
    long = "member orders-2f6c7e0a-1d4b-4c59-9a0e-0a4f5b1c2d3e expired: no heartbeat within its session timeout"
    bars = Bars(["08:00", "08:30", "09:00"], {"member_joined": [1, 0, 2], "member_expired": [0, 3, 0]}, "rebalances")
    levels = [("(actual)", 40.0, 12.0), ("sticky", 14.0, 12.0)]
    rows = [(GROUP, 1_234, "14 h", long), (group_link("default", "elsewhere"), 2, "3 s", "-")]
    columns = ("group", "rebalances", "longest", "reason")
    return Page(
        "Rota: what the groups went through",
        {"period": "2026-11-24 00:17 to 2026-11-24 07:29 UTC", "rebalances": "1,236"},
        [
            Section("right-now", "Right now", "No group was stuck.", columns, ()),
            Section("worst", "Worst", "The longest first.", columns, rows, Chart("bars", bars)),
            Section("strategies", "Strategies", "Of all groups.", ("strategy",), [("sticky",)]).with_chart(
                Chart("levels", levels, "units moved", "the least possible")
            ),
            Section("group-details", "Groups, one by one", "", (), ()),
            Section(GROUP.anchor, GROUP.text, "Now Stable.", columns, rows[:1], of="group-details"),
        ],
    )


def test_a_group_leads_to_its_section_where_there_is_one() -> None:
    html = a_page().html()

    assert f'<a href="#{GROUP.anchor}">default/orders &lt;b&gt;&amp;&lt;/b&gt;</a>' in html
    assert f'<section id="{GROUP.anchor}">' in html
    assert '<td class="n">default/elsewhere</td>' in html


def test_groups_with_odd_names_have_anchors_of_their_own() -> None:
    names = ["a/b", "a.b", "a b", "a.2fb", "ä"]

    anchors = {group_link("n", name).anchor for name in names}

    assert len(anchors) == len(names)
    assert all(anchor.isascii() and " " not in anchor for anchor in anchors)


def test_each_plot_has_a_name_that_says_what_it_shows() -> None:
    html = a_page().html()

    assert html.count("<svg") == 2
    assert 'role="img" aria-label="Worst: rebalances, at most 3 at 08:30 UTC"' in html
    assert 'role="img" aria-label="Strategies: units moved, (actual) 40, sticky 14"' in html


def test_a_section_of_a_group_has_no_file_of_its_own(tmp_path: Path) -> None:
    paths = a_page().write(tmp_path)
    names = {path.name for path in paths}
    markdown = (tmp_path / "report.md").read_text()

    assert names == {"index.html", "report.md", "right-now.csv", "worst.csv", "strategies.csv"}
    assert (tmp_path / "worst.csv").read_text().splitlines()[1].startswith("default/orders <b>&</b>,1234,14 h,")
    assert "### default/orders &lt;b&gt;&amp;&lt;/b&gt;" in markdown
    assert "## Right now\n\nNo group was stuck.\n\n## Worst" in markdown


def test_a_link_is_its_text_wherever_there_is_no_page() -> None:
    assert f"{Link('default/g', 'group-g')!s}" == "default/g"


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
async def test_axe_finds_nothing_and_no_page_is_too_wide(
    tmp_path: Path, scheme: Literal["light", "dark"], width: int
) -> None:
    a_page().write(tmp_path)

    async with open_browser() as browser:
        context = await browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        page = await context.new_page()
        await page.goto((tmp_path / "index.html").as_uri())
        found: Any = await Axe().run(page)
        beyond = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        ground = await page.evaluate("getComputedStyle(document.body).backgroundColor")

    assert [f"{one['id']}: {one['nodes'][0]['html']}" for one in found.response["violations"]] == []
    assert beyond == 0
    assert (ground == "rgb(255, 255, 255)") is (scheme == "light")


# --- texts of callers -------------------------------------------------------------------------------

FORMULAS = ("=", "+", "-", "@", "\t=", "\r=", "\n=", "＝", "＋", "－", "＠")
LEADS = ("", " ", "   ", "\u00a0", "\u3000", "\u200b ", "\ufeff", "x;", "x; ", "x,y;")
BODIES = ('HYPERLINK("http://evil";"open")', "cmd|' /C calc'!A0", "SUM(1,1)", "1+1", "IMPORTXML(A1)")
MARKUP = (
    "<img src=x onerror=alert(1)>",
    "a\n# heading",
    "a\r\n\r\n| b | c |",
    "| --- |",
    "a|b",
    "a\\|b",
    "[text](http://evil)",
    "![](http://evil/x.png)",
    "<http://evil>",
    "http://evil/?a=1",
    "www.evil.example",
    "`code` and ``code``",
    "**strong** __strong__ *em* _em_",
    "~~struck~~",
    "&lt;b&gt;&#60;b&#62;",
    "&copy;",
    "\u2028line\u2029paragraph\x0bpage\x0c",
    "\x1b]8;;http://evil\x07open\x1b]8;;\x07",
    "\u202egnp.exe",
)


def written(tmp_path: Path, *cells: Any) -> Path:
    """The folder of a report with one row of these cells, which are its title, its sentence and a fact as well."""
    said = str(cells[0])
    section = Section("section", said, said, ("first", "second", "third")[: len(cells)], [cells])
    Page(said, {"fact": said}, [section]).write(tmp_path)
    return tmp_path


def test_no_cell_of_a_csv_begins_a_formula(tmp_path: Path) -> None:
    """Whether the spreadsheet splits at commas, semicolons or tabs."""
    texts = [f"{lead}{sign}{body}" for lead in LEADS for sign in FORMULAS for body in BODIES]
    for text in texts:
        with (written(tmp_path, text, 7) / "section.csv").open(newline="", encoding="utf-8") as file:
            raw = file.read()
        for delimiter in ",;\t":
            cells = [cell for row in csv.reader(StringIO(raw), delimiter=delimiter) for cell in row]
            assert [cell for cell in cells if re.match(r"[\s\"]*[=+\-@＝＋－＠]", cell)] == [], text
        assert raw.count("\n") == 2, text


def test_numbers_of_a_csv_stay_numbers(tmp_path: Path) -> None:
    for cells in ((-1, 2.5, None), ("-3.25", "+4", "-"), (True, -0.5, "plain text")):
        raw = (written(tmp_path, *cells) / "section.csv").read_text()

        assert raw.splitlines()[1] == ",".join("" if cell is None else str(cell) for cell in cells)


def test_texts_are_only_texts_in_markdown(tmp_path: Path) -> None:
    """By a parser of Markdown with tables: one heading a title, one row a row, and the text as it was."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for text in (*MARKUP, *(f"{one}{other}" for one in MARKUP for other in MARKUP)):
        markdown = (written(tmp_path, text, 7) / "report.md").read_text()
        html = parser.render(markdown)

        assert not re.search(r"://|www\.", markdown)  # What GitHub makes a link of.
        tags = Counter(re.findall(r"<(\w+)", html))
        assert tags == {
            **dict.fromkeys(("h1", "h2", "ul", "li", "strong", "p", "table", "thead", "tbody"), 1),
            "tr": 2,
            "th": 2,
            "td": 2,
        }, text
        assert unescape(html).count(printable(text)) >= 5, text
