"""Refuses tables of battles, in which a row says which of two models won. That is no score of an answer.

A table of battles is recognised by the names of its columns.
"""

import re

from cabs_core.base.errors import DataError
from cabs_core.data.tables.table import Table

#: Plain names of the two columns that hold the models of a battle
_PAIRS = (
    ("modela", "modelb"),
    ("model1", "model2"),
    ("leftmodel", "rightmodel"),
    ("chosenmodel", "rejectedmodel"),
    ("modelchosen", "modelrejected"),
    ("winnermodel", "losermodel"),
)
#: plain names of two columns that hold models or answers of a battle in a table without a column of models
_PAIRS_ALONE = (("left", "right"), ("chosen", "rejected"), ("responsea", "responseb"), ("answera", "answerb"))


def plain(name: str) -> str:
    """Return a name in lower case with the characters a to z and 0 to 9 alone.

    Examples:
        >>> plain("response.statusCode") == plain("Response_Status_Code")
        True
    """
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def refuse_battles(table: Table) -> None:
    """Raise an error for a table of battles between two models, by the names of its columns.

    Raises:
        DataError: two columns have the names of one of the known pairs. Pairs such as `left` and `right`
            count only in a table without a column `model`.
    """
    names = {plain(name): name for name in table.columns}
    for left, right in (*_PAIRS, *(() if "model" in names else _PAIRS_ALONE)):
        if left in names and right in names:
            raise DataError(
                f"{table.path}: a row compares a pair of models ({names[left]}, {names[right]}): who won "
                "says nothing about how good an answer is. A log or a table needs a row for each model's "
                "answer with a score of its own; score the answers of both, or have a judge do it (source "
                "kind collect)"
            )
