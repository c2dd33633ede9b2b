"""The page on the paper is complete: options that depart from the printed algorithms, pools with figures of
the paper."""

from __future__ import annotations

import re
from pathlib import Path

from cabs_core.algorithms.policies import cabs_c, cabs_d
from cabs_core.algorithms.policies.cabs_c import CabsCOptions
from cabs_core.algorithms.policies.cabs_d import CabsDLinearOptions
from cabs_core.data.pools.find import list_pools

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"


def test_the_table_of_departures_is_complete() -> None:
    section = PAGE.read_text(encoding="utf-8").split("### What `practical` changes")[1].split("### ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.M)
    practical, printed = CabsCOptions(), CabsCOptions(**cabs_c.LITERAL)
    departures = [n for n in CabsCOptions.model_fields if getattr(practical, n) != getattr(printed, n)]
    mixture, both = CabsDLinearOptions(), CabsDLinearOptions(**cabs_d.LITERAL)
    departures += [
        n for n in cabs_d.LITERAL if n != "cabs_preset" and getattr(mixture, n) != getattr(both, n)
    ]
    assert sorted(listed) == sorted(departures)
    assert f"[{len(departures) == 11 and 'eleven'} departures]" in PAGE.read_text(encoding="utf-8")


def test_the_page_names_every_pool_that_has_figures_of_the_paper() -> None:
    section = PAGE.read_text(encoding="utf-8").split("## Which pool gives which of the paper's tables?")[1]
    named = re.findall(r"^\| [^|]+ \| `(\w+)` \|", section.split("\n## ")[0], re.M)
    shipped = [pool_file.pool for pool_file in list_pools()[0] if pool_file.shipped]
    assert sorted(named) == sorted(pool.name for pool in shipped if pool.paper_benchmark)
