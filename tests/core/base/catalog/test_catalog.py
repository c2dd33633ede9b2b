"""The catalog's records: names, tables, and records of plug-ins that are not what they should be."""

import warnings
from importlib.metadata import EntryPoint

import pytest

from cabs_core.algorithms.policies.registry import policy_class
from cabs_core.base.catalog import plugins
from cabs_core.base.catalog.policies import (
    all_policies,
    asset_name,
    families,
    policies,
    policy_description,
    policy_label,
    policy_table,
    random_key,
    split_name,
)
from cabs_core.base.catalog.policy_record import PRESET_TEXT, PolicyRecord

TOY = PolicyRecord("toy", family="static", path="toy:Toy", title="Toy", description="a toy.")


@pytest.mark.parametrize("name", all_policies())
def test_every_name_is_told_everywhere(name):
    base, preset = split_name(name)
    record = policies()[base]
    assert asset_name(name).replace("__", "@") == name
    assert policy_label(name).startswith(record.title)
    assert policy_description(name).startswith("Replay of ") and policy_description(name).endswith(".")
    assert base in families()[record.family]
    assert preset in PRESET_TEXT and preset in ("default", *policy_class(name).PRESETS)
    assert random_key(name)


def test_titles_are_unique():
    assert len({record.title for record in policies().values()}) == len(policies())


def test_table_for_sql_has_every_policy_and_preset_once():
    rows = policy_table()
    assert len({(r["base_policy"], r["preset"]) for r in rows}) == len(rows)
    assert len(rows) == len(all_policies())
    assert {r["base_policy"] for r in rows} == {*policies()}
    by_name = {(r["base_policy"], r["preset"]): r for r in rows}
    assert by_name["lin_ucb", "default"]["start"] == "nothing"
    assert by_name["lin_ucb", "warm"]["start"] == "labels"
    assert by_name["oracle_best", "default"]["kind"] == "upper bound"
    assert by_name["ridge", "default"]["kind"] == "static"


class Points:
    """Entry points whose values are given."""

    def __init__(self, values):
        self.values = values

    def __call__(self, group):
        for name, value in self.values.items():
            point = EntryPoint(name, f"somewhere:{name}", group)
            object.__setattr__(point, "load", lambda value=value: value if not callable(value) else value())
            yield point


def fail():
    raise ImportError("no module named toy")


def test_a_plug_in_is_added_after_the_built_in_records():
    records = plugins.records(
        "g", (TOY,), points=Points({"more": (PolicyRecord("other", "a", "b:C", "Other", "x."),)})
    )
    assert list(records) == ["toy", "other"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (fail, "ImportError: no module named toy"),
        ("text", "expected a PolicyRecord, found str"),
        (TOY, "the name 'toy' is taken"),
        (PolicyRecord("Toy__2", "a", "b:C", "T", "x."), "the name 'Toy__2' does not match"),
    ],
)
def test_a_faulty_plug_in_is_left_out_and_named(value, message):
    with pytest.warns(UserWarning, match=r"entry point 'bad' \(somewhere:bad\) is left out") as caught:
        records = plugins.records("g", (TOY,), points=Points({"bad": value}))
    assert list(records) == ["toy"] and message in str(caught[0].message)


def test_no_plug_in_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(plugins.records("g", (TOY,), points=Points({}))) == ["toy"]
