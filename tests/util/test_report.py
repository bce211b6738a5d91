"""Results as text for a terminal and as HTML for a notebook."""

import xml.etree.ElementTree as ElementTree

from kerasfeed.util.report import Graphic, Report, Table, bar, code, coloured, histogram

NOTE = "it goes on and on, " * 20


def test_text_of_users_is_escaped_everywhere():
    row = ["<p>", code("<c>"), coloured("<r>", "red"), histogram([1.0], [1.0]), "<s>\n<d>"]
    page = Report("<t>", [("<n>", "<v> & more")], [Table(["<1>", "<2>", "<3>", "<4>", "<5>"], [row])], "<m>").html
    for text in "tnvpcrsd12345m":
        assert f"<{text}>" not in page
        assert f"&lt;{text}&gt;" in page
    assert "&amp; more" in page


def test_a_page_is_well_formed_and_lists_rows_in_order():
    table = Table(["field", "bar"], [[name, bar(0.5)] for name in "cab"])
    root = ElementTree.fromstring(Report("Rooms", [("scenes", "7")], [table, Table((), [])], "and more").html)
    assert [cell.text for cell in root.iter("code")] == ["c", "a", "b"]
    assert len(list(root.iter("table"))) == 1  # one without rows is left out


def test_a_page_has_only_elements_that_jupyterlab_shows_in_an_untrusted_notebook():
    row = ["x", bar(0.5), histogram([0.0, 1.0], [0.0, 1.0]), coloured("bad", "red"), code("y")]
    root = ElementTree.fromstring(Report("Rooms", [("scenes", "7")], [Table((), [row])]).html)
    assert {element.tag for element in root.iter()} <= {"div", "span", "strong", "code", "table", "tbody", "tr", "td"}


def test_text_columns_have_equal_width_and_right_aligned_numbers():
    table = Table(["field", "mean"], [["points", "0.5"], ["x", "12.25"]], right=["mean"])
    assert Report("Rooms", [("", "7 scenes"), ("each", "3 kB")], [table], "and 2 more").text == (
        "Rooms: 7 scenes, each 3 kB\n\nfield    mean\npoints    0.5\nx       12.25\nand 2 more"
    )


def test_a_long_last_column_is_wrapped_and_not_truncated():
    text = Table((), [["image", f"{NOTE}\nRemedy: crop"], ["x", "short"]]).text
    *lines, remedy, last = text.splitlines()
    assert max(map(len, lines)) <= 118
    assert all(line.startswith(" " * 7) for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == f"image {NOTE.strip()}"
    assert (remedy, last) == ("       Remedy: crop", "x      short")


def test_a_picture_is_never_broken_over_lines():
    assert Table((), [["x" * 100, Graphic("# " * 40, "")]]).text == f"{'x' * 100}  {'# ' * 40}".rstrip()


def test_the_smallest_share_is_visible_and_zero_is_not():
    assert (bar(1e-9).text, bar(1.0).text, bar(0.0)) == ("▏", "█" * 20, Graphic("", ""))
    picture = histogram([0.0, 1e-9, 1.0], [0.0, 1e-9, 1.0])
    assert picture.text == " ▁█"
    assert [f"height:{height}.0px" in picture.html for height in (0, 1, 34)] == [True] * 3
    assert histogram([], []) == Graphic("", "")
