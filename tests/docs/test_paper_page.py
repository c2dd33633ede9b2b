"""The page on the paper names every option in which the default preset departs
from the printed algorithms."""

from __future__ import annotations

import re
from pathlib import Path

from cabs_core.algorithms.policies.cabs import LITERAL_D, CabsC, CabsCOptions, CabsDOptions

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"


def test_the_table_of_departures_is_complete() -> None:
    section = PAGE.read_text(encoding="utf-8").split("### What `practical` changes")[1].split("### ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.M)
    practical, printed = CabsCOptions(), CabsCOptions(**CabsC.PRESETS["literal"])
    departures = [n for n in CabsCOptions.model_fields if getattr(practical, n) != getattr(printed, n)]
    mixture, both = CabsDOptions(), CabsDOptions(**LITERAL_D)
    departures += [n for n in LITERAL_D if n != "cabs_preset" and getattr(mixture, n) != getattr(both, n)]
    assert sorted(listed) == sorted(departures)
    assert f"[{len(departures) == 11 and 'eleven'} departures]" in PAGE.read_text(encoding="utf-8")
