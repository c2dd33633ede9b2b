"""The policy that validation chose: its lead is known even if the error of the lead is not."""

from __future__ import annotations

import math

from cabs_core.router.build import ChosenPolicy


def chosen(lead_se: float) -> ChosenPolicy:
    """Return a choice between two policies, of which `ridge` was chosen."""
    other = {"policy": "knn", "utility": 0.6, "se": 0.01, "lead": -0.1, "lead_se": 0.02, "n": 50}
    row = {"policy": "ridge", "utility": 0.8, "se": 0.01, "lead": 0.1, "lead_se": lead_se, "n": 50}
    return ChosenPolicy("ridge", 300.0, [other, row])


def test_choice_with_a_known_error_has_evidence() -> None:
    assert chosen(0.02).evidence() == {"mean": 0.1, "se": 0.02, "n": 50}
    assert chosen(0.02).lead == 0.1


def test_choice_on_prompts_of_one_group_has_a_lead_and_no_evidence() -> None:
    assert chosen(math.nan).evidence() == {}
    assert chosen(math.nan).lead == 0.1
