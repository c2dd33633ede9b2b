"""Asset checks: at most three for an asset, each with a table of what was examined in its metadata.

A check is evaluated together with its asset, from what was just made, or later alone, from the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from cabs_core.base.errors import counted, once
from cabs_core.data.validation.catalog import CheckResult, Stage, checks_of_stage
from cabs_core.pipeline.plausibility import oddities
from cabs_core.pipeline.router_findings import LARGE, SLOW_P50, SLOW_P99, verdicts
from cabs_dagster import partitions
from cabs_dagster.metadata import table
from cabs_dagster.names import key, named, step
from cabs_dagster.resources import CABS, TABLES
from cabs_dagster.specs import without_preview_warnings
from dbt_like_sql.runner import SqlModel

if TYPE_CHECKING:
    from cabs_core.pipeline.stages.replay import ReplaySummary
    from cabs_core.pipeline.stages.router_summary import RouterSummary

VALID = "valid"
PLAUSIBLE = "plausible"
TRACE = "trace"
REPRODUCIBLE = "reproducible"
NOT_WORSE = "not_worse"
COMPARABLE = "comparable"
INSTRUMENT = "instrument"
SQL_TESTS = "sql_tests"
SQL_WARNINGS = "sql_tests_warn"
_SEVERITY = {VALID: "ERROR", PLAUSIBLE: "WARN"}
_BLOCKING = (VALID, TRACE)


def _of_data(stage: Stage) -> dict[str, str]:
    """Return {check: its description} of the checks of a table of data, with the expectations of each."""
    texts = {
        VALID: "Checks that everything downstream relies on; a failure stops the chain, in later runs too",
        PLAUSIBLE: "Checks that usually find a mistake, and sometimes something true",
    }
    expected = {
        name: [spec.name for spec in checks_of_stage(stage) if spec.severity == _SEVERITY[name]]
        for name in texts
    }
    return {name: f"{text}: {', '.join(expected[name])}." for name, text in texts.items()}


#: {asset: {check: what it promises}}
_TEXTS = {
    "scores": {
        INSTRUMENT: "Limits of the scores of collected answers: a judge that nobody measured, or that "
        "agrees little with people, favours length, order or its own family; refusals that decide.",
    },
    "outcomes": _of_data("outcomes"),
    "splits": _of_data("splits"),
    "replay": {
        TRACE: "Every policy of the pool was replayed; each trace read back from disk is complete, plays "
        "existing arms, has propensities in (0, 1] and no NaN, and visits each query at most once a trial.",
        PLAUSIBLE: "Every solved round is certified; no policy is worse than random play, plays one arm "
        "only, is far below its better expert (CABS-D) or below bandit feedback (full feedback).",
    },
    "router": {
        "same_decisions": "On the test prompts the bundle decides as the replay did, with the same seeds.",
        "latency": f"A decision from text takes at most {SLOW_P50:g} ms (median) and {SLOW_P99:g} ms (99th "
        "percentile).",
        "size": f"The bundle has at most {LARGE:g} MB.",
    },
    "deployed_router": {
        NOT_WORSE: "On held-out prompts the new router is not worse than the old one, beyond noise; else "
        "the old one stays.",
        COMPARABLE: "Champion and challenger can be compared; they cannot where served traffic repeats the "
        "prompts of the table, and then no router is ever replaced.",
    },
}


def check_specs(asset: str) -> list[dg.AssetCheckSpec]:
    """Return the specs of the checks of an asset that is made pool by pool.

    Args:
        asset: a key of `_TEXTS`. The checks have the partitions of the asset.
    """
    where = partitions.pool_by_rho() if asset == "replay" else partitions.pools()
    with without_preview_warnings("partitioned asset checks"):
        return [
            dg.AssetCheckSpec(
                name, asset=key(asset), partitions_def=where, blocking=name in _BLOCKING, description=text
            )
            for name, text in _TEXTS[asset].items()
        ]


def audit_spec() -> dg.AssetCheckSpec:
    """Return the spec of the check of `replay_audit`, whose results belong to one pool each."""
    with without_preview_warnings("partitioned asset checks"):
        return dg.AssetCheckSpec(
            REPRODUCIBLE,
            asset=key("replay_audit"),
            partitions_def=partitions.pools(),
            description="One trial of a sample of a pool's replays, played again, gives the same order, "
            "actions, propensities and rewards, bit for bit.",
        )


def checked(
    asset: str, *, is_table: bool = False, **spec: Any
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Return a decorator of the step that makes one asset. The checks of the asset can also run alone.

    Args:
        is_table: assets of a team can read the asset as a DataFrame, see `CabsTables`.
        spec: keyword arguments of the asset's `AssetSpec`.
    """
    asset_spec = dg.AssetSpec(**spec)
    if is_table:
        asset_spec = asset_spec.with_io_manager_key(named(TABLES))
    return dg.multi_asset(
        required_resource_keys={named(CABS)},
        name=step(asset),
        specs=[asset_spec],
        check_specs=check_specs(asset),
        can_subset=True,
    )


#: assets with one partition a pool, in the order in which they are made, whose checks can run alone
POOL_ASSETS = tuple(asset for asset in _TEXTS if asset != "replay")


def data_results(
    stage: Stage, checks: Sequence[Mapping[str, Any]], names: set[str]
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of some checks of outcomes or splits, in alphabetical order.

    A check without any expectation in `checks` fails.

    Args:
        checks: the results of the expectations, as the summary of the stage holds them under `checks`.
        names: the checks to evaluate, `valid` and `plausible`.
    """
    for name in sorted(names):
        of_severity = [c for c in checks if c["severity"] == _SEVERITY[name]]
        failed = [c for c in of_severity if not c["passed"]]
        shown = ("passed", "observed", "expected")
        rows = [
            {"expectation": c["name"], **{k: c[k] for k in shown}}
            for c in sorted(of_severity, key=lambda c: c["passed"])
        ]
        metadata: dict[str, Any] = {"expectations": table(rows)}
        for c in failed[:5]:
            metadata[f"examples of {c['name']}"] = dg.MetadataValue.json(c["examples"][:5])
        yield _result(
            stage,
            name,
            _SEVERITY[name],
            "; ".join(CheckResult(**c).failure for c in failed) or f"all {len(of_severity)} expectations met",
            bool(of_severity) and not failed,
            metadata,
        )


def trace_result(
    findings: Mapping[str, Mapping[str, Any]], failed: Mapping[str, str], missing: Sequence[str] = ()
) -> dg.AssetCheckResult:
    """Return the result of the check `trace` of a replay.

    The result is an error if a trace is not sound, a policy could not be replayed, or there is no trace. The
    result is a warning if the only fault is that policies of the pool were not played yet.

    Args:
        findings: {policy: what `examine` found}.
        failed: {policy: why it could not be replayed}.
        missing: policies that were left out of the run and have no replay from before.
    """
    bad = dict(failed) | {p: "; ".join(f["problems"]) for p, f in findings.items() if f["problems"]}
    rows = [
        {
            "policy": policy,
            "verdict": bad.get(policy, "sound"),
            "rounds": findings.get(policy, {}).get("rounds"),
            "smallest propensity": findings.get(policy, {}).get("smallest propensity"),
        }
        for policy in [*bad, *(p for p in findings if p not in bad)]
    ]
    text = "; ".join(once(bad)) or f"{len(findings)} traces are sound"
    if missing:
        text += f"; {len(missing)} policies of the pool were not played yet: {', '.join(missing)}"
    if missing and findings and not bad:
        severity = "WARN"
    else:
        severity = "ERROR"
    passed = bool(findings) and not bad and not missing
    return _result("replay", TRACE, severity, text, passed, {"policies": table(rows)})


def plausible_result(cells: Mapping[str, ReplaySummary]) -> dg.AssetCheckResult:
    """Return the result of the check `plausible` of a replay, a warning if any policy has an odd result.

    Args:
        cells: {policy: summary of its replay} at one rho.
    """
    odd = {policy: "; ".join(oddities(policy, cells)) for policy in cells}
    warned = {policy: text for policy, text in odd.items() if text}
    rows = [
        {"policy": p, "verdict": odd[p] or "nothing odd"}
        | {"utility": cells[p].utility, "random play": cells[p].random_utility}
        for p in sorted(cells, key=lambda p: not odd[p])
    ]
    text = "; ".join(f"{policy}: {text}" for policy, text in warned.items()) or "nothing odd"
    return _result("replay", PLAUSIBLE, "WARN", text, not warned, {"policies": table(rows)})


def deployment_results(deployment: Mapping[str, Any]) -> list[dg.AssetCheckResult]:
    """Return the results of the checks `not_worse` and `comparable` of a deployed router.

    A failure of `not_worse` is a WARN. A failure of `comparable` is an ERROR, because later comparisons would
    fail as well, so that no new router would ever be deployed.

    Args:
        deployment: what `cabs_core.pipeline.stages.deployment.deploy` found.
    """
    comparable = bool(deployment.get("comparable", True))
    if comparable:
        why = "they can be compared"
    else:
        why = deployment["reason"]
    return [
        _result("deployed_router", NOT_WORSE, "WARN", deployment["reason"], deployment["passed"], {}),
        _result("deployed_router", COMPARABLE, "ERROR", why, comparable, {}),
    ]


def router_results(summary: RouterSummary, names: set[str]) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the named checks of a pool's router.

    The check `same_decisions` fails as an ERROR if there is a router; all others fail as a WARN.
    """
    for name, (passed, text) in verdicts(summary).items():
        if name in names:
            if name == "same_decisions" and summary.same:
                severity = "ERROR"
            else:
                severity = "WARN"
            yield _result("router", name, severity, text, passed, {})


def instrument_result(limits: Sequence[str]) -> dg.AssetCheckResult:
    """Return the result of the check `instrument` of collected scores, a warning if anything limits them.

    Args:
        limits: sentences, as `ScoresSummary.limits` holds them.
    """
    text = "; ".join(limits) or "nothing that is known limits the scores"
    return _result("scores", INSTRUMENT, "WARN", text, not limits, {})


def sql_check_specs(asset: dg.AssetKey, model: SqlModel) -> list[dg.AssetCheckSpec]:
    """Return the specs of the checks of an SQL model: one for its tests of each severity.

    Failed tests of severity error stop the models that depend on this one.
    """
    specs = []
    for name, severity in ((SQL_TESTS, "error"), (SQL_WARNINGS, "warn")):
        tests = [test.name for test in model.tests if test.severity == severity]
        if tests:
            text = f"{len(tests)} SQL tests: {', '.join(tests)}"[:1000]
            specs.append(dg.AssetCheckSpec(name, asset=asset, description=text, blocking=severity == "error"))
    return specs


def sql_results(
    asset: dg.AssetKey, results: list[dict[str, Any]], names: set[str]
) -> Iterator[dg.AssetCheckResult]:
    """Yield the results of the named checks of an SQL model.

    Args:
        results: results of the tests, as `Marts.tests` returns them.
        names: the checks to evaluate, `SQL_TESTS` and `SQL_WARNINGS`.
    """
    for name, severity in ((SQL_TESTS, "error"), (SQL_WARNINGS, "warn")):
        if name not in names:
            continue
        tests = [test for test in results if test["severity"] == severity]
        failed = [test for test in tests if not test["passed"]]
        rows = [{"test": t["name"], "passed": t["passed"], "rows that fail": t["failures"]} for t in tests]
        metadata: dict[str, Any] = {"tests": table(rows)}
        for test in failed[:5]:
            metadata[f"sample of {test['name']}"] = dg.MetadataValue.json(test["sample"])
        text = "; ".join(
            f"{t['name']}: {counted(t['failures'], 'row')} against "
            f"{t['description'].rstrip('.') or 'the test'!r}"
            for t in failed
        )
        yield _result(
            asset, name, severity.upper(), text or f"all {len(tests)} tests passed", not failed, metadata
        )


def _result(
    asset: dg.AssetKey | str, name: str, severity: str, text: str, passed: bool, metadata: dict[str, Any]
) -> dg.AssetCheckResult:
    """Return the result of a check.

    Args:
        asset: the asset's key, or the path from which `names.key` makes the key.
        severity: ERROR or WARN.
    """
    return dg.AssetCheckResult(
        asset_key=key(asset) if isinstance(asset, str) else asset,
        check_name=name,
        passed=passed,
        severity=dg.AssetCheckSeverity[severity],
        description=text,
        metadata=metadata,
    )
