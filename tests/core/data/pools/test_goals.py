"""Goals in users' words: what is read and what is refused."""

from __future__ import annotations

import pytest

from cabs_core.base.errors import PoolError
from cabs_core.data.pool_files.goals import Goal, parse_goal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("value_per_right_answer: 0.02", {"value_per_right_answer": 0.02}),
        ("{quality: 0.95, of: gpt-4o}", {"quality": 0.95, "of": "gpt-4o"}),
        (
            "budget_per_month: 500, requests_per_month: 100000",
            {"budget_per_month": 500, "requests_per_month": 100000},
        ),
        ("value_per_right_answer: $0.02", {"value_per_right_answer": 0.02}),
        (
            "{budget_per_month: '$1,500 USD', requests_per_month: 1e6}",
            {"budget_per_month": 1500, "requests_per_month": 10**6},
        ),
        ("latency: 800ms, share: 0.9", {"latency": 0.8, "share": 0.9}),
        ("quality: 0.8, latency: 2s", {"quality": 0.8, "latency": 2.0}),
        (
            "budget_per_month: 1234567.89, requests_per_month: 1e6",
            {"budget_per_month": 1234567.89, "requests_per_month": 10**6},
        ),
    ],
)
def test_goals_are_read(text, expected):
    goal = parse_goal(text)
    assert {k: v for k, v in goal.model_dump(exclude_none=True).items() if k in expected} == expected
    assert parse_goal(goal.text) == goal


@pytest.mark.parametrize(
    "model", ["gpt-4o", "a, b", "a: b", "{a}", "1.5", "null", "it's", 'say "hi"', "llama\u00e9", "# 1", " "]
)
def test_the_text_of_a_goal_is_read_as_the_same_goal_whatever_its_model_is_called(model):
    goal = Goal(quality=0.95, of=model, latency=2)
    assert parse_goal(goal.text) == goal


def test_an_ordinary_name_of_a_model_needs_no_quotes():
    assert Goal(quality=0.95, of="openai/gpt-4o").text == "quality: 0.95, of: openai/gpt-4o"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "says nothing"),
        ("share: 0.5", "says nothing"),
        ("of: gpt-4o, latency: 2s", "no quality"),
        ("budget_per_month: 5", "give both"),
        ("latency: soon", "2s or 800ms"),
        ("quality: 1.5", "at most 1"),
        ("cheap", "goal"),
        ("value_per_right_answer: €3", "valid number"),
        ("budget_per_month: 1, requests_per_month: 1.5", "valid integer"),
        ("rho: 3", "rho"),
        ("a: [", "no list"),
        ("quality: 2001-13-01", "no list"),
    ],
)
def test_no_goals(text, words):
    with pytest.raises(PoolError, match=words):
        parse_goal(text)


def test_the_best_model_and_per_cent_are_understood():
    goal = parse_goal("quality: 95%, of: best")
    assert (goal.quality, goal.of) == (0.95, "best")
    assert parse_goal("latency: 2s, share: 90 %").share == 0.9
