"""Assets `replay`, partitioned by (pool, rho) with policies as rows, and `replay_audit`, which plays some of
it again.

A cell (pool, rho, policy) is cached by `cabs_core`: a partition computes the cells that changed and uses the
others again; its table says which.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from cabs_core.base.errors import once
from cabs_core.pipeline.retention import TRACE_FILE
from cabs_dagster import partitions, specs
from cabs_dagster.checks import (
    PLAUSIBLE,
    REPRODUCIBLE,
    TRACE,
    audit_spec,
    checked,
    plausible_result,
    trace_result,
)
from cabs_dagster.columns import declared, written
from cabs_dagster.metadata import guarded, image, nothing_to_do, pool_of, table
from cabs_dagster.names import declare, key, named
from cabs_dagster.resources import CABS, cabs_of
from cabs_dagster.specs import PoliciesConfig

if TYPE_CHECKING:
    from cabs_core.pipeline.stages.replay import ReplaySummary

Findings = Mapping[str, Mapping[str, Any]]
#: the table of a partition, a row a policy
POLICIES = {
    "policy": "Policy, with its preset",
    "utility": "Mean utility over trials and rounds, 0 to 1",
    "se": "Standard error of the utility, over trials and independent queries",
    "regret": "Mean regret per round against the best arm of each query",
    "state": "computed, reused, not played yet, or failed and why",
    "seconds": "Seconds it took to compute",
}
#: columns that every round has; a materialization shows those that were written
ROUNDS = {
    "pool": "string",
    "rho": "double",
    "policy": "string",
    "trial": "int16",
    "round": "int32",
    "action": "int16",
}


class ReplayConfig(PoliciesConfig):
    """Launchpad settings of `replay`."""

    foreign: bool = Field(
        False, description="Play a rho that the pool file does not name. Marts and report leave it out."
    )


@declare(
    lambda: checked(
        "replay",
        is_table=True,
        **specs.common("replay", "replay", "python", "numba", "parquet"),
        deps=[key("pool_file"), key("replay_problem"), key("tuning")],
        code_version=specs.replay_code_version(),
        partitions_def=partitions.pool_by_rho(),
        skippable=True,
        description="Every policy of a pool routed online over the test split, at one cost sensitivity "
        "rho (1/rho is the dollar value of one right answer), in several random orders of the queries.",
        metadata=declared("replay", ROUNDS),
    )
)
def replay(context: dg.AssetExecutionContext, config: ReplayConfig) -> Iterator[Any]:
    """Replay the policies of a partition (pool, rho) and evaluate both checks.

    The checks can also run alone, on the files.

    Raises:
        dg.Failure: none of the policies could be replayed.
    """
    with guarded():
        cabs = cabs_of(context)
        from cabs_core.pipeline.commands.options import chosen_policies
        from cabs_core.pipeline.stages.partition import examine_partition, replay_partition
        from cabs_core.report.plots.results import utility_plot

        pool, rho = partitions.split_key(pool_of(context))
        checks = {check.name for check in context.selected_asset_check_keys}
        asked = cabs.chain(pool).pool
        chain = cabs.chain(pool, config.policies)
        if asked.logged:
            why = (
                "A log cannot be replayed. What policies would have earned on it is estimated by `off_policy`"
            )
            yield from _nothing(context, checks, why)
            return
        if rho not in asked.replay.rhos and not config.foreign:
            why = (
                f"`replay.rhos` of pool {pool} does not name {rho:g}; `foreign: true` in this step's "
                "config plays it all the same"
            )
            yield from _nothing(context, checks, why)
            return
        named = chosen_policies(config.policies, asked)
        policies = [p for p in chain.pool.policies if not named or p in named]
        if not context.selected_asset_keys:
            findings, cells, failed = examine_partition(chain, rho, policies)
            yield from _results(checks, findings, failed, cells)
            return
        made = replay_partition(chain, rho, policies, cabs.options(context, config.force))
        for text in once(made.failed):
            context.log.error(text)
        if not made.made:
            raise dg.Failure("\n".join(dict.fromkeys(made.failed.values())), allow_retries=False)
        computed = sum(not cell.reused for cell in made.made.values())
        missing = [
            policy for policy in asked.policies if policy not in made.made and policy not in made.failed
        ]
        context.log.info(
            f"rho {rho:g}: {computed} of {len(policies)} policies computed, "
            f"{len(made.made) - computed} reused" + (f", {len(missing)} not played yet" if missing else "")
        )
        cells = made.cells
        rows = made.rows(missing)  # the best first
        drawn = [{**row, "margin": cells[row["policy"]].margin} for row in rows[: len(cells)]]
        metadata: dict[str, Any] = {
            "policies": table(rows, POLICIES),
            **image("plot", utility_plot(drawn, f"{pool} at rho {rho:g}"), "svg+xml"),
            "dagster/row_count": sum(cell.rows or 0 for cell in cells.values()),
            **written("replay", next(iter(made.made.values())).folder, [TRACE_FILE]),
        }
        yield dg.MaterializeResult(
            asset_key=key("replay"),
            data_version=dg.DataVersion(made.content),
            metadata=metadata,
            check_results=list(
                _results(checks, {p: c.trace for p, c in cells.items()}, made.failed, cells, missing)
            ),
        )


def _nothing(context: dg.AssetExecutionContext, checks: set[str], why: str) -> Iterator[Any]:
    """Yield an empty materialization, or passed checks, for a partition that is not played.

    Partitions of logs, and of a pool at a rho of another pool, end without rows, so that a backfill succeeds.
    """
    results = [
        dg.AssetCheckResult(asset_key=key("replay"), check_name=n, passed=True, description=why)
        for n in checks
    ]
    if context.selected_asset_keys:
        yield nothing_to_do(context, "replay", why)._replace(check_results=results)
    else:
        yield from results


def _results(
    checks: set[str],
    findings: Findings,
    failed: Mapping[str, str],
    cells: "Mapping[str, ReplaySummary]",
    missing: Sequence[str] = (),
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the checks named in `checks`, `trace` and `plausible`.

    The check `trace` fails if there is no trace, a trace is not sound, or a policy could not be replayed or
    was not played yet.
    The check `plausible` warns of odd figures of a policy.

    Args:
        findings: {policy: what `examine` found on its trace}.
        failed: {policy: why it could not be replayed}.
        cells: {policy: summary of its replay}.
        missing: policies of the pool that were not played yet.
    """
    if TRACE in checks:
        yield trace_result(findings, failed, missing)
    if PLAUSIBLE in checks:
        yield plausible_result(cells)


class AuditConfig(dg.Config):
    """Launchpad settings of `replay_audit`."""

    cells: int = Field(
        6, ge=1, description="How many replays of the pool are played again, one trial of each."
    )
    seed: int = Field(
        0, description="Seed of the sample; the nightly schedule uses the date, so that all get their turn."
    )


@declare(
    lambda: dg.asset(
        required_resource_keys={named(CABS)},
        **specs.common("replay_audit", "replay", "python"),
        code_version=specs.replay_code_version(),
        deps=[key("replay")],
        partitions_def=partitions.pools(),
        check_specs=[audit_spec()],
        description="One trial of a sample of the pool's replays played again; every night, if the "
        "schedule is on.",
    )
)
def replay_audit(context: dg.AssetExecutionContext, config: AuditConfig) -> dg.MaterializeResult:
    """Play trial 0 of a sample of the pool's replays again, and return whether all came out the same.

    Raises:
        dg.Failure: no replay of the pool is up to date.
    """
    with guarded():
        cabs = cabs_of(context)
        from cabs_core.pipeline.stages.replay import play_again

        chain = cabs.chain(pool_of(context))
        if chain.pool.logged:
            text = "the pool's source is a log, which has no replays"
            passed = dg.AssetCheckResult(check_name=REPRODUCIBLE, passed=True, description=text)
            return nothing_to_do(context, "replay_audit", text)._replace(check_results=[passed])
        there = [t for t in chain.replays() if chain.status(t).state == "fresh"]
        if not there:
            raise dg.Failure(
                f"pool {chain.pool.name} has no replays that are up to date: `cabs run --pool "
                f"{chain.pool.name}` first",
                allow_retries=False,
            )
        sample = random.Random(config.seed).sample(there, min(config.cells, len(there)))
        hashes = [play_again(chain, target) for target in sample]
        rows = [
            {"policy": t.policy, "rho": t.rho, "same": then == now, "hash then": then, "hash now": now}
            for t, (then, now) in zip(sample, hashes)
        ]
        differ = [f"{row['policy']} at rho {row['rho']:g}" for row in rows if not row["same"]]
        text = f"{len(rows)} replays are the same"
        if differ:
            text = f"trial 0 differs when played again: {', '.join(differ)}"
        return dg.MaterializeResult(
            metadata={"replays": table(rows)},
            check_results=[
                dg.AssetCheckResult(
                    check_name=REPRODUCIBLE,
                    passed=not differ,
                    severity=dg.AssetCheckSeverity.ERROR,
                    description=text,
                    metadata={"replays": table(rows)},
                )
            ],
        )
