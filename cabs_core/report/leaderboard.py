"""Tables of the leaderboard, the page over all pools."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cabs_core.base.catalog.roles import BEST_SINGLE
from cabs_core.base.errors import NO_ANSWER
from cabs_core.report import findings
from cabs_core.report.data import PoolData, read_mart
from cabs_core.report.names import condition_name, label
from cabs_core.report.tables import (
    MakeCell,
    PageTable,
    TableCell,
    estimate,
    number,
    percent,
    saving,
    table_of,
    words,
)


def tables(
    artifacts_dir: Path, headlines: Mapping[str, str] | None = None
) -> tuple[list[tuple[str, str]], dict[str, PageTable | None]]:
    """Make the tables of the leaderboard.

    Args:
        headlines: {pool: headline of its report}. The answer of a pool without a report is the best policy
            of its marts.

    Returns:
        ([(title, answer) of every replayed pool], {key: table, or None if the table is empty}).

    Raises:
        ResultError: the marts have not been built.
    """
    board = read_mart(artifacts_dir, "mart_policy_leaderboard")
    infos = read_mart(artifacts_dir, "stg_pools").to_dict("records")
    records: list[tuple[Any, ...]] = []
    for info in infos:
        data = PoolData(info["pool"], artifacts_dir)
        headline = (headlines or {}).get(info["pool"], "") or _best_of_marts(data)
        if headline.startswith(NO_ANSWER):
            router = ""
        else:
            router = next(iter(data.routers), "")
        lead = data.pair(router, BEST_SINGLE) if router else None
        line = data.board.loc[router] if router else {}
        records.append((info, headline, router, line, {} if lead is None else lead))
    columns: dict[str, MakeCell] = {
        "Pool": lambda r: TableCell(_marked(r[0]), numeric=False, link=f"{r[0]['pool']}/index.html"),
        "Answer": lambda r: words(r[1]),
        "Best router": lambda r: words(label(r[2]) if r[2] else None),
        "Its utility": lambda r: estimate(r[3].get("utility"), r[3].get("utility_se")),
        "Minus best single model": lambda r: estimate(r[4].get("difference"), r[4].get("se"), signed=True),
        "Regret gap closed": lambda r: percent(r[3].get("gap_closed")),
        "Cost at equal quality": lambda r: saving(r[3].get("cost_saved_versus_best_single")),
        "Queries": lambda r: number(r[0]["queries"], 0),
        "Models": lambda r: number(r[0]["arms"], 0),
    }
    overview = table_of(
        "pools",
        "The answer of every pool",
        records,
        columns,
        "± is the standard error; the difference is paired. Regret gap closed: from the reference (0 %) "
        "to LinUCB with full feedback (100 %). Cost: at the mean score of the best single model's most "
        "accurate setting; a dash means that it is never reached.",
    )
    names = [info["pool"] for info in infos]
    answers = [(info["title"], headline) for info, headline, *_ in records]
    made = {
        "pools": overview,
        "leaderboard": _policies(board, names),
        "estimated": _estimated(artifacts_dir, names),
    }
    return answers, made


def _best_of_marts(data: PoolData) -> str:
    """Return the best policy of a pool in words, or the reason why the pool has no ranking."""
    if not data.ranked:
        return f"No ranking: {data.unranked_text()}"
    return findings.best_policy(data)


def _estimated(artifacts_dir: Path, replayed: Sequence[str]) -> PageTable | None:
    """Table of the pools with off-policy estimates that were not replayed, or None if there are none.

    A row has the name of the pool with a link to its page, and the numbers of held-out decisions, prompts and
    policies.

    Args:
        replayed: names of the pools to leave out, as the table of replayed pools has them.
    """
    mart = read_mart(artifacts_dir, "mart_off_policy")
    columns: dict[str, MakeCell] = {
        "Pool": lambda r: TableCell(str(r[0]), numeric=False, link=f"{r[0]}/index.html"),
        "Held-out decisions": lambda r: number(r[1]["decisions"].iloc[0], 0),
        "Prompts": lambda r: number(r[1]["prompts"].iloc[0], 0),
        "Policies": lambda r: number(r[1]["policy"].nunique(), 0),
    }
    return table_of(
        "estimated",
        "Pools whose source is a log",
        mart[~mart["pool"].isin(replayed)].groupby("pool"),
        columns,
        "One model answered each prompt, so what policies would have earned is estimated on their pages.",
    )


def _marked(info: dict[str, Any]) -> str:
    """Return the title of a pool, followed in brackets by `synthetic` and the stress condition, if any.

    `synthetic` is left out if the pool is not synthetic, or if the title has the word already.
    """
    name: str = info["title"]
    if info["synthetic"] and "synthetic" not in name.lower():
        synthetic = "synthetic"
    else:
        synthetic = ""
    marks = ", ".join(mark for mark in (synthetic, condition_name(info["condition"])) if mark)
    if not marks:
        return name
    return f"{name} ({marks})"


def _policies(board: pd.DataFrame, pools: Sequence[str]) -> PageTable | None:
    """Table of every policy's ranks and regret gap closed over all pools.

    The gap is the regret of the reference policy beyond that of LinUCB with full feedback.

    Args:
        board: rows of `mart_policy_leaderboard` of all pools.
        pools: names of the pools, in the order in which ranks are listed.
    """
    real = board[board["rank"].notna()]
    by = real.groupby("policy")
    means = by.agg(
        pools=("rank", "size"), rank=("rank", "mean"), first=("rank", lambda r: int((r == 1).sum()))
    )
    ranked = means.sort_values(["pools", "rank"], ascending=[False, True])
    ranks = real.set_index(["policy", "pool"])["rank"]
    gaps = board.groupby("policy")["gap_closed"]
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
    """Return the ranks of a policy in the pools, such as `1, 3, –`; None if the policy has no ranks."""
    if policy not in ranks.index:
        return None
    rank_by_pool = ranks[policy]
    return ", ".join(f"{rank_by_pool[pool]:.0f}" if pool in rank_by_pool.index else "–" for pool in pools)
