"""CSV texts for people hold no formula and no control character of a stranger."""

import csv
import io

import pytest

from cabs_core.base.csv_cells import csv_text, safe_cell


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\n=1", "＝1+1"])
def test_a_text_that_begins_like_a_formula_gets_an_apostrophe(text):
    assert safe_cell(text) == f"'{text}"


@pytest.mark.parametrize("value", ["-1.5", "+2", "1=1", "", "*star", -2, 0.5, None])
def test_a_number_and_a_plain_text_stay_as_they_are(value):
    assert safe_cell(value) == value


@pytest.mark.parametrize("control", ["\r", "\x1b", "\x00", "\x7f", "\x9b", "\u2028"])
def test_a_control_character_is_written_as_an_escape(control):
    cell = safe_cell(f"a{control}=1")
    assert control not in cell
    assert cell.startswith("a\\x")


def test_a_text_with_line_breaks_quotes_and_commas_reads_back_as_one_cell():
    text = 'first, "quoted"\nsecond\tline'
    rows = list(csv.reader(io.StringIO(csv_text(["id", "=prompt"], [[1, text], [2, "=cmd"]]))))
    assert rows == [["id", "'=prompt"], ["1", text], ["2", "'=cmd"]]
