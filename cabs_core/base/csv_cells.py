"""CSV texts that people open in a spreadsheet or read in a terminal.

Prompts, answers and names of models come from strangers. A cell that begins like a formula would be run by a
spreadsheet, and a control character would move the cursor of a terminal.

This module stands in `base`, since a router serves without the libraries that `data.tables` needs.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from cabs_core.base.errors import printable

#: first characters of a text that spreadsheets take for a formula, or skip before one; the last four are the
#: full-width forms, which some spreadsheets read as the first four
_FORMULA_STARTS = tuple("=+-@\t\n＝＋－＠")


def safe_cell(value: Any) -> Any:
    """Return the value as a cell that is no formula and holds no control character but newlines and tabs.

    Only texts change. Other control characters, such as the carriage return, become escapes. A text that
    begins like a formula, or with a newline or tab, gets a leading apostrophe, unless it is a number.

    Examples:
        >>> safe_cell("=1+1"), safe_cell("-1.5"), safe_cell("model\\x1b[2J"), safe_cell(-2)
        ("'=1+1", '-1.5', 'model\\\\x1b[2J', -2)
    """
    if not isinstance(value, str):
        return value
    text = printable(value)
    if text.startswith(_FORMULA_STARTS) and not _is_number(text):
        return f"'{text}"
    return text


def csv_text(header: Iterable[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Return a CSV text with one header row, in which every cell is a `safe_cell`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([safe_cell(name) for name in header])
    for row in rows:
        writer.writerow([safe_cell(value) for value in row])
    return out.getvalue()


def _is_number(text: str) -> bool:
    """Return True if `float` can read the text, as it can `1e5` and `nan`."""
    try:
        float(text)
    except ValueError:
        return False
    return True
