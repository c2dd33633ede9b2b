"""The tables over all pools."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cabs_core.base.catalog import BEST_SINGLE
from cabs_core.report.data import PoolData, read_mart
from cabs_core.report.names import condition_name, label
from cabs_core.report.tables import PageTable, TableCell, estimate, number, percent, saving, table_of, words
from cabs_core.report.verdict import summary, verdicts


def tables(
    artifacts_dir: Path, headlines: Mapping[str, str] | None = None
) -> tuple[list[tuple[str, str]], dict[str, PageTable | None]]:
    """([(title, verdict) of every pool], the tables by key).

    Args:
        headlines: {pool: what its report says}; of other pools the verdict is that of the marts alone.

    Raises:
        ResultError: the marts have not been built.
    """
    board = read_mart(artifacts_dir, "mart_policy_leaderboard")
    infos = read_mart(artifacts_dir, "stg_pools").to_dict("records")
    pools, rows = [], []
    for info in infos:
        data = PoolData(info["pool"], artifacts_dir)
        headline = (headlines or {}).get(info["pool"], "")
        withheld = headline.startswith("No verdict: ")
        pool_verdicts = [] if withheld else verdicts(data, None)
        if pool_verdicts:
            headline = headline or summary(pool_verdicts)
        elif data.ranked and not withheld:
            headline = f"No verdict without the policy {BEST_SINGLE}; best is {label(data.best)}"
        elif not withheld:
            headline = f"No ranking: {data.unranked_text()}"
        pools.append((info["title"], headline))
        line: Any = data.board.loc[pool_verdicts[0].router] if pool_verdicts else None
        lead: Any = data.pair(pool_verdicts[0].router, BEST_SINGLE) if pool_verdicts else None
        rows.append(
            [
                TableCell(_marked(info["title"], info), numeric=False, link=f"{info['pool']}/index.html"),
                words(headline),
                words(label(pool_verdicts[0].router) if pool_verdicts else None),
                estimate(line["utility"], line["utility_se"]) if pool_verdicts else number(None),
                estimate(pool_verdicts[0].utility.value, lead["se"], signed=True)
                if lead is not None
                else number(None),
                percent(line["gap_closed"]) if pool_verdicts else number(None),
                saving(line["cost_saved_versus_best_single"]) if pool_verdicts else number(None),
                number(info["queries"], 0),
                number(info["arms"], 0),
            ]
        )
    overview = PageTable(
        "pools",
        "The verdict of every pool",
        [
            "Pool",
            "Verdict",
            "Best router",
            "Its utility",
            "Minus best single model",
            "Regret gap closed",
            "Cost at equal quality",
            "Queries",
            "Models",
        ],
        rows,
        note="± is the standard error; the difference is paired. Regret gap closed: from the reference (0 %) "
        "to LinUCB with full feedback (100 %). Cost: at the mean score of the best single model's most "
        "accurate setting; a dash means that it is never reached.",
    )
    estimated = _estimated(artifacts_dir, {info["pool"] for info in infos})
    return pools, estimated | {
        "pools": overview,
        "leaderboard": _policies(board, [info["pool"] for info in infos]),
    }


def _estimated(artifacts_dir: Path, replayed: set[str]) -> dict[str, PageTable | None]:
    """{"estimated": pools whose source is a log, with links}, if there are any."""
    mart = read_mart(artifacts_dir, "mart_off_policy")
    rows = [
        [
            TableCell(str(pool), numeric=False, link=f"{pool}/index.html"),
            number(part["decisions"].iloc[0], 0),
            number(part["prompts"].iloc[0], 0),
            number(part["policy"].nunique(), 0),
        ]
        for pool, part in mart[~mart["pool"].isin(replayed)].groupby("pool")
    ]
    if not rows:
        return {}
    headers = ["Pool", "Held-out decisions", "Prompts", "Policies"]
    note = "One model answered each prompt, so these pools are not replayed; "
    note += "what policies would have earned is estimated on their pages."
    return {"estimated": PageTable("estimated", "Pools whose source is a log", headers, rows, note=note)}


def _marked(name: str, info: dict[str, Any]) -> str:
    """The name of a pool, with `(synthetic, stress condition)` where they apply."""
    synthetic = "synthetic" if info["synthetic"] and "synthetic" not in name.lower() else ""
    marks = ", ".join(r for r in (synthetic, condition_name(info["condition"])) if r)
    return f"{name} ({marks})" if marks else name


def _policies(board: pd.DataFrame, pools: Sequence[str]) -> PageTable | None:
    """How every policy fares over the pools; what it earns in each stands on the pool's page."""
    real = board[board["rank"].notna()]
    by = real.groupby("policy")
    means = by.agg(
        pools=("rank", "size"), rank=("rank", "mean"), first=("rank", lambda r: int((r == 1).sum()))
    )
    ranked = means.sort_values(["pools", "rank"], ascending=[False, True])
    ranks, gaps = real.set_index(["policy", "pool"])["rank"], board.groupby("policy")["gap_closed"]
    order = [*ranked.index, *(p for p in board["policy"].unique() if p not in ranked.index)]
    columns = {
        "Policy": lambda p: words(label(p)),
        "Pools": lambda p: number(means["pools"].get(p), 0),
        "Mean rank": lambda p: number(means["rank"].get(p), 1),
        "First in": lambda p: number(means["first"].get(p), 0),
        "Regret gap closed": lambda p: percent(gaps.mean().get(p)),
        "least": lambda p: percent(gaps.min().get(p)),
        "most": lambda p: percent(gaps.max().get(p)),
        "Rank in each pool": lambda p: words(_ranks(ranks, p, pools)),
    }
    return table_of(
        "leaderboard",
        "Every policy over the pools",
        order,
        columns,
        "Ranks are in the pools' order above, a dash where a policy was not replayed, each over the rhos "
        "that all policies of the pool have; upper bounds have none. Regret gap closed: mean, least and most "
        "over the pools.",
    )


def _ranks(ranks: pd.Series, policy: str, pools: Sequence[str]) -> str | None:
    """`1, 3, –`: the ranks of a policy in the pools; None for an upper bound."""
    if policy not in ranks.index:
        return None
    rank_by_pool = ranks[policy]
    return ", ".join(f"{rank_by_pool[pool]:.0f}" if pool in rank_by_pool.index else "–" for pool in pools)
