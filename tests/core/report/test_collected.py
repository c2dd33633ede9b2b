"""The tables of a page on how a collected table came about."""

from types import SimpleNamespace

from cabs_core.report.collected import collection_of
from cabs_core.report.scale import Scale


def test_a_model_that_was_not_asked_has_no_answers() -> None:
    sums = {"calls": 0.0, "tokens in": 0.0, "tokens out": 0.0, "seconds": 0.0, "usd": 0.0}
    answers = SimpleNamespace(
        rows=0, prompts=0, prompts_in_all=9, paid=0.0, stopped="", repriced=[], counts={"idle": sums}
    )
    measured = {"scores": {}, "judges": {}}
    scores = SimpleNamespace(paid=0.0, limits=[])
    part = collection_of({"answers": answers, "scores": scores, "instrument": measured}, Scale())
    table = part.tables["collection"]
    assert table is not None and table.csv().splitlines()[1].split(",")[:2] == ["idle", "0.0"], table.csv()
