"""Mistakes in tables and pool files through `cabs pool add`, as a stranger makes and reads them."""

from __future__ import annotations

import pytest

from tests.faults import provoked, terms

#: {mistake: what the text must name: the place, the value, what to do}
NAMED = {
    "text in the scores": ("table.csv, row 43", "column 'correct'", "'B+'", "write 0"),
    "a score out of range": ("row 43", "is 7", "(1 such row)", "other 1,799 scores", "correct the row"),
    "stars without score_range": ("row 2", "1,194 such rows", "set score_range: [1, 5]"),
    "a negative cost": ("row 43", "column 'usd'", "-0.002"),
    "all costs are 0": ("large on '", "(0)", "is a price missing?"),
    "costs are per million": ("large on '", "prices of a million tokens?", "check costs_in_range"),
    "a row twice": ("row 1802", "row 9", "Leave one of the two rows out"),
    "one model": ("'large'", "Add the rows of another model"),
    "twenty questions": ("prompts", "a few hundred are the least"),
    "gaps in half of the rows": ("large 300, small 300, medium 300", "missing: predict"),
    "every model answers alike": ("large: scores spread by 0 around",),
    "two models with the same scores": ("large-copy has the scores of large",),
    "an encoder that does not exist": ("encoder 'mini-lm'", "Hugging Face"),
    "score_range is too wide": ("all scores lie between 0 and 1", "-1000 to 1000"),
    "score_range is words": ("line 21: score_range", "such as [1, 5]", "'1-5'"),
    "a goal of an unknown model": ("goal.of", "'gpt-4'", "It has: large, medium, small"),
    "a goal in per cent": ("quality is 95", "0.95 for 95 %"),
    "a tab in the pool file": ("line 2", "indent with spaces"),
    "Windows-1252": ("not UTF-8 text, line ", "Combien coûte", "CSV UTF-8"),
    "UTF-16": ("UTF-16 text",),
    "a comma too many": ("row 8", "Expected 4 columns, got 5", "double quotes"),
    "an Excel file with the name of a CSV": ("a spreadsheet", "save the table as CSV"),
    "no header": ("does the first line hold the names of the columns?",),
    "a CSV called .parquet": ("no parquet file",),
    "cabs pool add table.csv": ("is a table", "write a pool file"),
    "export --pool my_pool": ("has not been run yet", "`cabs run --pool my_pool`"),
    "check --pool my_pool": ("run `cabs run --pool my_pool` first",),
    "report my_pool --goal 95 %": ("unknown field", "quality: 0.95, of: best"),
    "route": ("there is no router at", "cabs export"),
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    return provoked(tmp_path_factory.mktemp("mistakes"))


@pytest.mark.slow
def test_every_mistake_is_named_with_its_place_and_what_to_do(said: list[tuple[str, str, str]]) -> None:
    lacking = []
    for mistake, words in NAMED.items():
        texts = [text for _, name, text in said if name.startswith(mistake)]
        assert texts, mistake
        lacking += [(mistake, word, texts[0]) for word in words if word not in texts[0]]
    assert not lacking


@pytest.mark.slow
def test_nothing_breaks_and_no_term_of_the_field_is_unexplained(said: list[tuple[str, str, str]]) -> None:
    for heading, mistake, text in said:
        assert "could not be computed" not in text and "Traceback" not in text, (mistake, text)
        assert "(1 such rows" not in text, text
        if heading.startswith("pool add, missing"):
            assert not terms(text), (mistake, terms(text), text)
