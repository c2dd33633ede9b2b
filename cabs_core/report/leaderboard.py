"""The tables over all pools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from cabs_core.catalog import BEST_SINGLE
from cabs_core.report.data import PoolData, read_mart
from cabs_core.report.names import condition_name, label
from cabs_core.report.tables import Cell, Table, estimate, number, percent, saving, words
from cabs_core.report.verdict import summary, verdicts


def tables(
    artifacts_dir: Path, said_by: Mapping[str, str] | None = None
) -> tuple[list[tuple[str, str]], dict[str, Table]]:
    """([(title, verdict) of every pool], the tables by key).

    Args:
        said_by: {pool: what its report says}; of other pools the verdict is that of the marts alone.

    Raises:
        ResultError: the marts have not been built.
    """
    board = read_mart(artifacts_dir, "mart_policy_leaderboard")
    infos = read_mart(artifacts_dir, "stg_pools").to_dict("records")
    pools, rows = [], []
    for info in infos:
        data = PoolData(info["pool"], artifacts_dir)
        said = (said_by or {}).get(info["pool"], "")
        withheld = said.startswith("No verdict: ")
        found = [] if withheld else verdicts(data, None)
        if found:
            said = said or summary(found)
        elif data.ranked and not withheld:
            said = f"No verdict without the policy {BEST_SINGLE}; best is {label(data.best)}"
        elif not withheld:
            said = f"No ranking: {data.unranked_text()}"
        pools.append((info["title"], said))
        line: Any = data.board.loc[found[0].router] if found else None
        lead: Any = data.pair(found[0].router, BEST_SINGLE) if found else None
        rows.append(
            [
                Cell(_marked(info["title"], info), numeric=False, link=f"{info['pool']}/index.html"),
                words(said),
                words(label(found[0].router) if found else None),
                estimate(line["utility"], line["utility_se"]) if found else number(None),
                estimate(found[0].utility.value, lead["se"], signed=True)
                if lead is not None
                else number(None),
                percent(line["gap_closed"]) if found else number(None),
                saving(line["cost_saved_versus_best_single"]) if found else number(None),
                number(info["queries"], 0),
                number(info["arms"], 0),
            ]
        )
    overview = Table(
        "pools", "The verdict of every pool",
        ["Pool", "Verdict", "Best router", "Its utility", "Minus best single model", "Regret gap closed", "Cost at equal quality", "Queries", "Models"],
        rows, note="± is the standard error; the difference is paired. Regret gap closed: from the reference (0 %) to LinUCB with full feedback "
        "(100 %). Cost: at the mean score of the best single model's most accurate setting; a dash means that it is never reached.",
    )  # fmt: skip
    shown = {p["pool"]: _marked(p["pool"], p) for p in infos}
    estimated = _estimated(artifacts_dir, {info["pool"] for info in infos})
    return pools, estimated | {
        "pools": overview,
        "leaderboard": _ranks(board, shown),
        "gaps": _gaps(board, shown),
    }


def _estimated(artifacts_dir: Path, replayed: set[str]) -> dict[str, Table]:
    """{"estimated": pools whose source is a log, with links}, if there are any."""
    mart = read_mart(artifacts_dir, "mart_off_policy")
    rows = [
        [
            Cell(str(pool), numeric=False, link=f"{pool}/index.html"),
            number(part["decisions"].iloc[0], 0),
            number(part["prompts"].iloc[0], 0),
            number(part["policy"].nunique(), 0),
        ]
        for pool, part in mart[~mart["pool"].isin(replayed)].groupby("pool")
    ]
    if not rows:
        return {}
    headers = ["Pool", "Held-out decisions", "Prompts", "Policies"]
    note = "One model answered each prompt, so these pools are not replayed; what policies would have earned is estimated on their pages."
    return {"estimated": Table("estimated", "Pools whose source is a log", headers, rows, note=note)}


def _marked(name: str, info: dict[str, Any]) -> str:
    """The name of a pool, with `(synthetic, stress condition)` where they apply."""
    synthetic = "synthetic" if info["synthetic"] and "synthetic" not in name.lower() else ""
    said = ", ".join(r for r in (synthetic, condition_name(info["condition"])) if r)
    return f"{name} ({said})" if said else name


def _order(board: pd.DataFrame) -> tuple[list[str], pd.DataFrame]:
    ranks = board[board["rank"].notna()].groupby("policy")["rank"].agg(["mean", "count"])
    order = ranks.sort_values(["count", "mean"], ascending=[False, True]).index.tolist()
    return order + [p for p in board["policy"].unique() if p not in order], ranks


def _ranks(board: pd.DataFrame, pools: dict[str, str]) -> Table:
    order, ranks = _order(board)
    by = board.set_index(["policy", "pool"])
    rows = []
    for policy in order:
        row = [words(label(policy)), number(ranks["mean"].get(policy), 1)]
        for pool in pools:
            r = by.loc[(policy, pool)] if (policy, pool) in by.index else None
            row += [number(None), number(None)] if r is None else [
                number(r["rank"], 0), estimate(r["utility"], r["utility_se"], bold=r["rank"] == 1)]  # fmt: skip
        rows.append(row)
    return Table(
        "leaderboard", "Rank and utility of every policy in every pool", ["Policy", "Mean rank", *["Rank", "Utility"] * len(pools)],
        rows, [("", 2), *((name, 2) for name in pools.values())],
        note="Bold: best real router of the pool. Mean rank over the policy's pools, in each at the rhos that all its policies have; upper bounds have no rank.",
    )  # fmt: skip


def _gaps(board: pd.DataFrame, pools: dict[str, str]) -> Table:
    order, _ = _order(board)
    by = board.set_index(["policy", "pool"])
    rows = []
    for policy in order:
        row = [words(label(policy))]
        for pool in pools:
            r = by.loc[(policy, pool)] if (policy, pool) in by.index else None
            row += [number(None), number(None)] if r is None else [
                percent(r["gap_closed"]), saving(r["cost_saved_versus_best_single"])]  # fmt: skip
        rows.append(row)
    return Table(
        "gaps", "Regret gap closed and cost at equal quality in every pool", ["Policy", *["Gap closed", "Cost at equal quality"] * len(pools)], rows,
        [("", 1), *((name, 2) for name in pools.values())],
        note="Gap closed: from the pool's reference (0 %) to LinUCB with full feedback (100 %). Cost: against the best single model at "
        "its most accurate setting; a dash means that this score is never reached.",
    )  # fmt: skip
