"""A page places its panels in pixels: no text is cut off, nothing overlaps, equal axes are shared."""

from __future__ import annotations

import drawn
import pytest

from pslab.lab.plots.page.axes import Axis, categories, text_px
from pslab.lab.plots.page.page import FACET, GAP, HEIGHT, NARROW, Line, Page
from pslab.lab.plots.page.paper import caption_of, paper
from pslab.lab.plots.page.theme import looks

X, Y = Axis("training time (s)", 0, 10), Axis("test accuracy (%)", 40, 100)


def line(label: str, end: float = 90, **how: object) -> Line:
    rank = sum(map(ord, label)) % 7
    return Line(label, looks([{"name": each} for each in range(7)])[rank], [0, 5, 10], [40, 70, end], **how)


def page(rows: int = 1, columns: int = 1, names: int = 2, **how: object) -> Page:
    made = Page([[X] * columns] * rows, [[Y] * columns] * rows, **how)
    for row in range(rows):
        for column in range(columns):
            made.add(row, column, *(line(f"policy {rank}", 90 - rank) for rank in range(names)))
    return made


def box(figure, row_column: int = 1) -> tuple[float, float, float, float]:
    """left, right, top, bottom of a panel, in px."""
    rank = "" if row_column == 1 else row_column
    x, y = figure.layout[f"xaxis{rank}"].domain, figure.layout[f"yaxis{rank}"].domain
    wide, high = figure.layout.width, figure.layout.height
    return x[0] * wide, x[1] * wide, (1 - y[1]) * high, (1 - y[0]) * high


def test_panels_have_their_heights():
    _, _, top, bottom = box(page().finish("t"))
    assert bottom - top == pytest.approx(HEIGHT, abs=1)
    figure = page(3, 2).finish("t")
    assert [box(figure, rank)[3] - box(figure, rank)[2] for rank in range(1, 7)] == pytest.approx([FACET] * 6, abs=1)
    assert box(figure, 2)[0] - box(figure, 1)[1] == pytest.approx(GAP, abs=1)
    assert box(figure, 3)[2] - box(figure, 1)[3] == pytest.approx(GAP, abs=1)


def test_title_of_a_low_panel_is_wrapped_and_has_room():
    tall = Axis("a title of the y axis that is far longer than its panel is high", 0, 1)
    figure = Page([[X]], [[tall]], heights=[30]).finish("t")
    title = next(note for note in figure.layout.annotations if note.textangle == -90)
    lines = title.text.count("<br>") + 1
    assert lines > 2
    assert title.x * figure.layout.width - 14 * lines / 2 > 0
    assert box(figure)[0] > 14 * lines + 20


def test_headings_of_rows_that_are_too_long_to_be_turned_stand_above():
    figure = page(2, 1, heights=[30, 30], sides=["a heading of many words", "b"]).finish("t")
    heading = next(note for note in figure.layout.annotations if "heading" in note.text)
    assert heading.textangle == 0
    assert (1 - heading.y) * figure.layout.height < box(figure)[2]
    assert drawn.outside(figure) == []


def test_two_panels_of_one_column_have_their_names_below():
    figure = page(1, 2, names=3, width="column").finish("t")
    assert drawn.legend(figure) == ["policy 0", "policy 1", "policy 2"]
    assert box(figure)[1] - box(figure)[0] > NARROW
    assert not page(1, 2, names=3).finish("t").layout.showlegend


def test_titles_of_neighbouring_panels_do_not_run_into_each_other():
    iteration = Axis("iteration (4 pushes, 256 samples)", 0, 10)
    figure = Page([[iteration, X]], [[Y, Y]], width="column").finish("t")
    rows = [note for note in figure.layout.annotations if note.text in f"{iteration.title} {X.title}"]
    assert " ".join(note.text for note in rows) == f"{iteration.title} {X.title}"
    ends = [(note.x * 336 - text_px(note.text) / 2, note.x * 336 + text_px(note.text) / 2) for note in rows]
    assert max(end for _, end in ends[:-1]) < ends[-1][0]
    assert len({note.y for note in rows[:-1]}) == len(rows) - 1 >= 2
    assert drawn.outside(figure) == []


def test_names_of_places_that_are_too_narrow_are_turned_and_have_room():
    sizes = categories(["40\u202f000", "1\u202f000\u202f000", "16\u202f000\u202f000"], "keys")
    figure = Page([[sizes, sizes]], [[Y, Y]], width="column", heights=[60]).finish("t")
    assert figure.layout.xaxis.tickangle == figure.layout.xaxis2.tickangle == -90
    title = next(note for note in figure.layout.annotations if note.text == "keys")
    assert (1 - title.y) * figure.layout.height - box(figure)[3] > text_px("16\u202f000\u202f000")
    assert Page([[sizes, sizes]], [[Y, Y]]).finish("t").layout.xaxis.tickangle == 0


def test_headings_of_rows_end_with_their_panels_where_names_stand_beside():
    figure = page(2, 1, sides=["a very long name of one of my own networks"] * 2, width="column").finish("t")
    headings = [note for note in figure.layout.annotations if "<b>" in note.text and note.name != "title"]
    assert len(headings) > 2
    assert all(note.x * 336 + text_px(note.text) <= box(figure)[1] + 1 for note in headings)


def test_bands_are_paler_where_they_are_many():
    opacities = []
    for count in (2, 4):
        made = Page([[X]], [[Y]])
        made.add(0, 0, *(line(f"c{rank}", low=[40, 60, 80], high=[40, 80, 95]) for rank in range(count)))
        opacities.append({float(each.fillcolor.split(",")[-1][:-1]) for each in drawn.bands(made.finish("t"))})
    assert opacities == [{0.15}, {0.09}]


def test_level_is_a_dotted_line_in_every_panel_of_that_axis():
    made = Page([[X, X]], [[Y, Axis("loss", 0, 2)]])
    made.level(97, "97 %", Y)
    figure = made.finish("t")
    assert [(shape.y0, shape.yref) for shape in figure.layout.shapes] == [(97, "y")]
    assert "97 %" in drawn.texts(figure)
    assert next(note for note in figure.layout.annotations if note.text == "97 %").bgcolor  # read where curves cross it
    shorter = Page([[X, X], [X]], [[Y, Y], [Y]])
    shorter.level(97, "97 %", Y)
    assert [shape.yref for shape in shorter.finish("t").layout.shapes] == ["y", "y2", "y3"]  # none where no panel is
    outside = Page([[X]], [[Y]])
    outside.level(10, "10 %", Y)
    assert not outside.finish("t").layout.shapes


def test_label_of_a_level_stands_where_no_curve_crosses_it():
    look = looks([{"name": "a"}])[0]
    for x, y, place in (([0, 10], [99, 99], (0, "bottom")), ([0, 3, 3.1, 10], [72, 72, 99, 99], (0.5, "bottom")),
                        ([0, 10], [72, 72], (0, "top"))):  # fmt: skip
        made = Page([[X]], [[Y]])
        made.add(0, 0, Line("a", look, x, y))
        made.level(70, "70 %", Y)
        (note,) = (note for note in made.finish("t").layout.annotations if note.text == "70 %")
        assert (note.x, note.yanchor) == place


def test_numbers_under_a_narrow_panel_do_not_touch():
    sizes = Axis("bytes", 0, 25, ticks=tuple((at, f"{at} MB") for at in (0, 5, 10, 15, 20, 25)))
    shown = [len(Page([[sizes] * count], [[Y] * count]).finish("t").layout.xaxis.tickvals) for count in (1, 5)]
    assert shown == [6, 3]


def test_sign_at_the_end_of_a_curve_stays_within_its_panel():
    made = page()
    made.lines[0, 0] = [Line("a", looks([{"name": "a"}])[0], x, [50, 60], sign="✖1/2") for x in ([0, 1], [0, 10])]
    assert [each.textposition for each in made.finish("t").data if each.mode == "text"] == ["top right", "top left"]


def test_the_label_of_a_tick_at_the_right_end_lies_within_the_figure():
    figure = Page([[Axis("bytes", 0, 3, ticks=((0.0, "0 B"), (3.0, "300 MB")))]], [[Y]]).finish("t")
    assert figure.layout.width * (1 - figure.layout.xaxis.domain[1]) >= 19  # half of the label


def test_long_lines_have_about_ten_markers():
    made = Page([[X]], [[Y]])
    made.add(0, 0, Line("long", looks([{"a": 1}])[0], range(200), range(200)))
    sizes = drawn.lines(made.finish("t"))["long"].marker.size
    assert 9 <= sum(size > 0 for size in sizes) <= 13
    assert sizes[-1] > 0


def test_caption_is_apart_and_paper_drops_the_title():
    figure = page(2, 1, heads=["head"]).finish("A title", ["what they share", ""])
    assert caption_of(figure) == ["what they share"]
    assert "what they share" not in drawn.texts(figure)
    bare = paper(figure)
    assert drawn.texts(bare) == drawn.texts(figure)[1:]
    assert caption_of(bare) == ["what they share"]
    assert bare.layout.height < figure.layout.height
    assert {7, 8} >= drawn.sizes(bare) > set()
    assert drawn.sizes(figure) - drawn.sizes(bare) == {9}
    assert box(bare)[3] - box(bare)[2] == pytest.approx(FACET, abs=0.5)
    assert drawn.outside(bare) == []
    assert "A title" in drawn.texts(figure)
