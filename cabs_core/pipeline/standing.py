"""The verdict that a pool's report gives on held-out prompts, for the leaderboard and for deploying.

A report yields no verdict where `Chain.older_figures` says that its figures are of older data. rho is in
score units per USD.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cabs_core.base.errors import ProvenanceError, held_out_queries
from cabs_core.base.paths import VERDICT
from cabs_core.data.pools.registry import active_pools
from cabs_core.pipeline.artifacts import Chain
from cabs_core.pipeline.artifacts.store import ArtifactStore

#: begins what is said of a pool whose report yields no verdict now
WITHHELD = "No verdict: "


def verdicts(store: ArtifactStore, chains: Mapping[str, Chain] | None = None) -> dict[str, str]:
    """Return {pool: verdict of its report, or why there is none now} of all pools that have outcomes.

    Args:
        chains: of all active pools; None: they are read from their files.
    """
    if chains is None:
        chains = {pool_file.pool.name: Chain(store, pool_file) for pool_file in active_pools()[0]}
    verdicts = {}
    for pool in store.children(("outcomes",)):
        if pool not in chains:
            verdicts[pool] = f"{WITHHELD}there is no pool file of this name"
        elif older := chains[pool].older_figures():
            verdicts[pool] = f"{WITHHELD}{older}"
        elif verdict := _of_report(store, pool):
            verdicts[pool] = verdict
    return verdicts


def _of_report(store: ArtifactStore, pool: str) -> str:
    try:
        record = store.record(("reports", pool))
    except ProvenanceError:  # a damaged page is made again
        return ""
    if record is None:
        return ""
    said = [str(record.summary.get(name, "")) for name in ("verdict", "goal")]
    return ". ".join(filter(None, said))


@dataclass(frozen=True)
class HeldOut:
    """What prompts that played no part in making or choosing a router say of it.

    Attributes:
        decision: deploy, keep or unsure, of the pool's report; empty where there is none. text: in words.
    """

    decision: str
    text: str


def held_out(chain: Chain, rho: float, policy: str | None = None) -> HeldOut:
    """The report's verdict for what a right answer is worth, 1 / rho.

    Args:
        policy: of the router that is asked about, which may be another than the report's.
    """
    pool, parts = chain.pool.name, ("reports", chain.pool.name)
    if older := chain.older_figures():
        return HeldOut("", f"no verdict on held-out prompts: {older}")
    if not _of_report(chain.store, pool):
        return HeldOut("", f"no verdict on held-out prompts yet: `cabs run --pool {pool}` makes one")
    content = json.loads((chain.store.folder(parts) / VERDICT).read_text(encoding="utf-8"))
    if content.get("logged"):
        return HeldOut("", f"on held-out decisions: {content['verdict']}. {content['why']}")
    case = next((v for v in content["by_value"] if v["rho"] == rho), None)
    if case is None:
        return HeldOut("", f"no verdict on held-out prompts at rho {rho:g}, which the report did not play")
    return HeldOut(case["decision"], _in_words(case, policy))


_DECISIONS = {"deploy": "deploy", "keep": "keep the single model", "unsure": "not enough data to tell"}


def _in_words(case: dict[str, Any], policy: str | None) -> str:
    from cabs_core.report.scale import Scale  # noqa: PLC0415  (pandas, which most commands do without)

    gap = case["utility"]
    interval = "" if gap["low"] is None else f" ({gap['low']:+.4f} to {gap['high']:+.4f}, 95 %)"
    text = (
        f"on {held_out_queries(case['queries'], case['independent'])}: {_DECISIONS[case['decision']]}; "
        f"{case['router']} against always {case['model']}: {gap['value']:+.4f}{interval} "
        f"{Scale(case['against']).counted} a request, its cost deducted"
    )
    differs = policy is not None and policy != case["router"]
    return f"{text}. This router plays {policy}, another than the report compares" if differs else text
