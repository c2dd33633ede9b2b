"""Jobs: one a part of the chain that shares a partitioning. The chain's order is the planner's business."""

from __future__ import annotations

import dagster as dg

from cabs_dagster.stages import POOL_STAGES

PREPARE, REPLAY, MARTS, REPORT, LEADERBOARD = (
    "prepare_pool",
    "replay_policies",
    "build_marts",
    "report_pool",
    "build_leaderboard",
)
STAGES = {PREPARE: list(POOL_STAGES), REPLAY: ["replay"], MARTS: ["staging", "marts"], REPORT: ["report"]}


_prefix = dg.AssetSelection.key_prefixes
JOBS = [
    dg.define_asset_job(
        PREPARE,
        selection=dg.AssetSelection.assets(*POOL_STAGES),
        description="Outcomes, splits, embeddings, oracles, replay problem, tuning and decision latency of one pool.",
        tags={"cabs/stage": "prepare"},
    ),
    dg.define_asset_job(
        REPLAY,
        selection=_prefix(["replay"]),
        description="Replays of one pool at one rho, and the checks of their results.",
        tags={"cabs/stage": "replay"},
    ),
    dg.define_asset_job(
        MARTS,
        selection=_prefix(["staging"]) | _prefix(["marts"]),
        description="All SQL models over the replays of all pools.",
        tags={"cabs/stage": "marts"},
    ),
    dg.define_asset_job(
        REPORT,
        selection=dg.AssetSelection.assets("report"),
        description="The report of one pool.",
        tags={"cabs/stage": "report"},
    ),
    dg.define_asset_job(
        LEADERBOARD,
        selection=dg.AssetSelection.assets("leaderboard"),
        description="The page that shows all pools.",
        tags={"cabs/stage": "report"},
    ),
]
