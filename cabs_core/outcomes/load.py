"""From a pool file to outcomes: read the source, then apply the pool's options in one fixed order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from cabs_core.errors import DataError
from cabs_core.outcomes.raw import RawOutcomes
from cabs_core.outcomes.table import Outcomes
from cabs_core.pools import ModelPool, PoolFile


def load_outcomes(pool_file: PoolFile) -> Outcomes:
    """Outcomes of a pool, from whatever source it names.

    Order of the options: choose and rename models, keep tasks, costs from prices, drop incomplete queries,
    rescale costs. `Outcomes.report` says what was done.

    Raises:
        PoolError, DataError: with the place, the value, what was expected and what to do.
    """
    pool = pool_file.pool
    return apply_pool(read_source(pool_file), pool)


def read_source(pool_file: PoolFile) -> RawOutcomes:
    """Every model and query of the pool's source, before the pool's options."""
    kind = pool_file.pool.source.kind
    if kind == "file":
        from cabs_core.outcomes.sources.file import read_file

        return read_file(pool_file)
    if kind == "synthetic":
        from cabs_core.outcomes.sources.synthetic import synthetic_raw

        return synthetic_raw(pool_file.pool.source)
    from cabs_core.outcomes.sources import read_remote

    source = pool_file.pool.source
    if source.mirror:  # a relative folder is beside the pool file, wherever the process runs
        folder = pool_file.path.parent / Path(source.mirror).expanduser()
        source = source.model_copy(update={"mirror": str(folder)})
    return read_remote(source)


def apply_pool(raw: RawOutcomes, pool: ModelPool) -> Outcomes:
    """Apply the pool's options to the outcomes of its source."""
    names = pool.source_names()
    if names is not None:
        raw = raw.select_models(names)
    elif len(raw.arms) < 2:
        raise DataError(f"{raw.origin} holds one model, {raw.arms[0]!r}: there is nothing to route between")
    if pool.tasks:
        raw = raw.select_tasks(pool.tasks)
    if pool.prices:
        raw = replace(raw, costs=priced(raw, pool))
    outcomes = raw.complete(pool.missing)
    return _rescale(outcomes, pool)


def priced(raw: RawOutcomes, pool: ModelPool) -> np.ndarray:
    """`[n, K]` USD = (input tokens x input price + output tokens x output price) / 1e6.

    Raises:
        DataError: a model without a price, or a token count that its price needs is missing.
    """
    without = [arm for arm in raw.arms if arm not in pool.prices]
    if without:
        raise DataError(
            f"pool {pool.name!r}: prices lacks {', '.join(without)}; expected USD per 1M tokens for every "
            "model. A missing price is never taken as 0"
        )
    costs = np.zeros_like(raw.scores)
    for j, arm in enumerate(raw.arms):
        price = pool.prices[arm]
        for tokens, usd, side in (
            (raw.input_tokens, price.input, "input"),
            (raw.output_tokens, price.output, "output"),
        ):
            if usd == 0:
                continue
            column = np.full(len(costs), np.nan) if tokens is None else tokens[:, j]
            unknown = np.flatnonzero(np.isnan(column) & ~np.isnan(raw.scores[:, j]))
            if len(unknown):
                raise DataError(
                    f"{raw.origin}: the number of {side} tokens of query {str(raw.query_ids[unknown[0]])!r}, model "
                    f"{arm!r} is missing ({len(unknown)} queries), but prices.{arm}.{side} is {usd:g}: map "
                    f"source.columns.{side}_tokens, or set that price to 0 if it is not charged"
                )
            costs[:, j] += column * usd / 1e6
    return costs


def _rescale(outcomes: Outcomes, pool: ModelPool) -> Outcomes:
    means = outcomes.costs.mean(axis=0)
    factors = np.ones(len(outcomes.arms))
    if pool.rescale_mean_cost:
        for arm, wanted in pool.rescale_mean_cost.items():
            if arm not in outcomes.arms:
                raise DataError(
                    f"pool {pool.name!r}: rescale_mean_cost names {arm!r}; the pool has {outcomes.arms}"
                )
            j = outcomes.arms.index(arm)
            if means[j] <= 0:
                raise DataError(
                    f"pool {pool.name!r}: the costs of {arm!r} are all 0, so they cannot be rescaled to mean "
                    f"{wanted:g}"
                )
            factors[j] = wanted / means[j]
    elif pool.rescale_grand_mean_cost is not None:
        if means.mean() <= 0:
            raise DataError(
                f"pool {pool.name!r}: all costs are 0, so they cannot be rescaled to a grand mean of "
                f"{pool.rescale_grand_mean_cost:g}"
            )
        factors[:] = pool.rescale_grand_mean_cost / means.mean()
    if (factors == 1).all():
        return outcomes
    report = {
        **outcomes.report,
        "cost_factors": {a: float(f) for a, f in zip(outcomes.arms, factors, strict=True)},
    }
    return replace(outcomes, costs=outcomes.costs * factors, report=report)
