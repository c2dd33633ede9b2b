"""A figure of a report from the rows that it is the mean of: for `cabs trace` and the job `trace_figure`.

rho is in score units per USD.
"""

from dataclasses import dataclass

import pandas as pd

from cabs_core.base.errors import ResultError, counted
from cabs_core.pipeline.artifacts import Chain, Target
from cabs_core.pipeline.stages.replay import trace_again
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence, load_evidence
from cabs_core.report.rows import FIGURES, figure_in_mart, figure_of, rows_of


@dataclass(frozen=True)
class TracedFigure:
    """A figure of one policy at one rho.

    Attributes:
        rows: one a round, see `rows_of`. value: the figure from the rows; in_mart: as the report shows it.
        mart: model and column that hold it. text: all of it in sentences.
        sql: computes quality, USD per 1,000 requests and the number of rounds from the files alone.
    """

    rows: pd.DataFrame
    value: float
    in_mart: float
    mart: str
    text: list[str]
    sql: str


def evidence_of(chain: Chain) -> tuple[PoolData, Evidence]:
    """The marts of a pool and the replays behind them.

    Raises:
        ResultError: no replay is in the marts, or the problem that they are of is gone.
    """
    name, store = chain.pool.name, chain.store
    artifacts = store.root
    if store.remote:
        for parts in (("marts",), ("replay", name), ("replay_problem", name)):
            artifacts = store.mirror(parts)
    data = PoolData(name, artifacts)
    evidence = load_evidence(data, again=lambda policy, rho: trace_again(chain, policy, rho))
    if evidence is None:
        raise ResultError(
            f"the problem that the marts are of is gone: `cabs run --pool {name}` makes all anew"
        )
    return data, evidence


def traced_figure(chain: Chain, figure: str, policy: str, rho: float) -> TracedFigure:
    """Compute a figure again from its rows.

    Raises:
        ResultError: no such figure, policy or rho, or the problem that the marts are of is gone.
    """
    if figure not in FIGURES:
        raise ResultError(f"there is no figure {figure!r:.60}; expected one of {', '.join(FIGURES)}")
    data, evidence = evidence_of(chain)
    rows = rows_of(evidence, policy, rho)
    value, in_mart = figure_of(rows, figure), figure_in_mart(data, figure, policy, rho)
    column, factor, mart_column, unit = FIGURES[figure]
    mean = f"mean of {column}" if factor == 1 else f"{factor:,.0f} x mean of {column}"
    mart = f"mart_utility_by_rho.{mart_column}"
    text = [
        f"{figure} of {policy} at rho {rho:g}: {value:.6g} ({unit}), the {mean} over "
        f"{counted(len(rows), 'round')} of {counted(rows['trial'].nunique(), 'trial')} and "
        f"{counted(rows['query_id'].nunique(), 'prompt')}"
    ]
    if estimated := int((rows["observed"] < 1).sum()):
        text.append(f"{estimated:,} of these answers are not in the table: estimates, right on average only")
    text.append(f"{mart} (dbt_like_sql/marts/mart_utility_by_rho.sql): {in_mart:.6g}")
    return TracedFigure(rows, value, in_mart, mart, text, _sql(chain, policy, rho))


def _sql(chain: Chain, policy: str, rho: float) -> str:
    """docs/results.md, with the places of this replay."""
    replay = chain.store.location(Target("replay", chain.pool, rho, policy).parts)
    outcomes = chain.store.location(chain.stage("outcomes").parts)
    return f"""SELECT avg(o.score) AS quality, 1000 * avg(o.cost) AS usd_per_1000, count(*) AS rounds
FROM '{replay}/rounds.parquet' AS r
JOIN '{replay}/queries.parquet' AS q USING (query_index)
CROSS JOIN '{replay}/run.parquet' AS n
JOIN '{outcomes}/outcomes.parquet' AS o
  ON o.query_id = q.query_id AND o.model = n.arms[r.action + 1]
"""
