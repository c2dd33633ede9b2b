"""Answers that the reports of pools give, for the leaderboard, for exporting and for deploying.

A report gives no answer if `Chain.older_figures` says that its figures are of older data.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from cabs_core.base.errors import NO_ANSWER, ProvenanceError
from cabs_core.base.paths import VERDICT
from cabs_core.data.pools.registry import active_pools
from cabs_core.pipeline.artifacts import Chain
from cabs_core.pipeline.artifacts.store import ArtifactStore


def verdicts(store: ArtifactStore, chains: Mapping[str, Chain] | None = None) -> dict[str, str]:
    """Return {pool: answer of its report} of the pools that have outcomes.

    A pool without a pool file, or with figures of older data, has the reason in place of an answer. Any other
    pool is left out if it has no report or a damaged one.

    Args:
        chains: {pool: chain} of all active pools. None: they are read from their files.
    """
    if chains is None:
        chains = {pool_file.pool.name: Chain(store, pool_file) for pool_file in active_pools()[0]}
    verdicts = {}
    for pool in store.children(("outcomes",)):
        if pool not in chains:
            verdicts[pool] = f"{NO_ANSWER}there is no pool file of this name"
            continue
        older = chains[pool].older_figures()
        if older:
            verdict = f"{NO_ANSWER}{older}"
        else:
            verdict = _of_report(store, pool)
        if verdict:
            verdicts[pool] = verdict
    return verdicts


def _of_report(store: ArtifactStore, pool: str) -> str:
    """Return the verdict of a pool's report, followed by its answer to the goal if the pool has one.

    The text is empty if there is no report or if the record of the report is damaged.
    """
    try:
        record = store.record(("reports", pool))
    except ProvenanceError:  # a damaged page is made again
        return ""
    if record is None:
        return ""
    said = [str(record.summary.get(name, "")) for name in ("verdict", "goal")]
    return ". ".join(filter(None, said))


@dataclass(frozen=True)
class Standing:
    """Advice of a pool's report on a router that is exported or deployed.

    Attributes:
        recommended: the recommended option: keep, switch, rules or router. None if the report recommends
            nothing or if there is no report.
        text: the answer in words, or why there is none.
    """

    recommended: str | None
    text: str


def standing(chain: Chain, policy: str | None = None) -> Standing:
    """Return the advice of the pool's report, which the page, `cabs run` and `cabs export` give, too.

    Args:
        policy: policy of the router in question. If the report judged another one, the text says so.
    """
    pool = chain.pool.name
    parts = ("reports", pool)
    older = chain.older_figures()
    if older is not None:
        return Standing(None, f"the report has no answer: {older}")
    if not _of_report(chain.store, pool):
        return Standing(None, f"there is no report yet: `cabs run --pool {pool}` makes one")
    content = json.loads((chain.store.folder(parts) / VERDICT).read_text(encoding="utf-8"))
    text = f"the report says: {content['headline']}. {content['why']}".strip()
    answer = content.get("answer") or {}
    judged = ((answer.get("details") or {}).get("router") or {}).get("policy")
    if policy is not None and judged is not None and policy != judged:
        text += f" This router plays {policy}, and the report judged {judged}."
    return Standing(answer.get("recommended"), text)
