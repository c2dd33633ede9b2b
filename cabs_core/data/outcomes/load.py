"""Loading of outcomes: read a pool's source, then apply the pool's options in one fixed order."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name

import numpy as np

from cabs_core.base.catalog.sources import sources
from cabs_core.base.errors import DataError, listed
from cabs_core.base.units import PRICED_TOKENS
from cabs_core.data.outcomes.apart import split_rows_text
from cabs_core.data.outcomes.gaps import predict_missing
from cabs_core.data.outcomes.logged import completed
from cabs_core.data.outcomes.raw import RawOutcomes
from cabs_core.data.outcomes.table import Outcomes
from cabs_core.data.pool_files import ModelPool, PoolFile
from cabs_core.data.pool_files.table import TablePool


def load_outcomes(pool_file: PoolFile, inputs: Mapping[str, Path] | None = None) -> Outcomes:
    """Return the outcomes of a pool, read from its source.

    The options are applied in this order: choose and rename models, keep tasks, costs from prices and
    constants, drop or complete incomplete queries, rescale costs, later versions of models.
    `Outcomes.report` records their effects.

    Args:
        pool_file: the pool.
        inputs: for prompts to collect, the folders of answers and scores.

    Raises:
        PoolError, DataError: the source cannot be read, or it does not fit the pool's options. The message
            names the place, the value, what was expected and what to do.

    Examples:
        >>> from cabs_core import find_pool, load_outcomes
        >>> outcomes = load_outcomes(find_pool("demo"))
        >>> outcomes.scores.shape == (len(outcomes), len(outcomes.arms))
        True
    """
    pool = pool_file.pool
    return apply_pool(read_source(pool_file, inputs), pool)


def read_source(pool_file: PoolFile, inputs: Mapping[str, Path] | None = None) -> RawOutcomes:
    """Return every model and query of the pool's source, before the pool's options.

    Raises:
        DataError: nothing was collected yet, or the source cannot be read.
    """
    record = sources()[pool_file.pool.source.kind]
    read = resolve_name(record.path)
    if record.collected and inputs is None:
        name = pool_file.pool.name
        raise DataError(
            f"pool {name}: nothing is collected yet: `cabs collect --pool {name} --dry-run` says what it "
            "would cost"
        )
    if record.collected:
        argument: object = inputs
    elif record.name in ("file", "logs"):
        argument = pool_file
    else:
        argument = pool_file.source()
    raw: RawOutcomes = read(argument)
    return raw


def apply_pool(raw: RawOutcomes, pool: ModelPool) -> Outcomes:
    """Return the outcomes of a source with the pool's options applied, in the order of `load_outcomes`.

    Raises:
        DataError: the source does not fit the options.
    """
    outcomes = _rescale(_chosen(raw, pool), pool)
    if not isinstance(pool, TablePool) or not pool.later_models:
        return outcomes
    later = _chosen(raw, pool.model_copy(update={"models": pool.later_names()}))
    return with_later(outcomes, later)


def with_later(outcomes: Outcomes, later: Outcomes) -> Outcomes:
    """Return the queries that both have, with the models' later versions in fields beside the outcomes.

    Arms, scores and costs stay as in `outcomes`. Scores, costs and latencies of `later` become the fields
    `later_scores`, `later_costs` and `later_latencies`, with one column for each arm. Later costs are
    multiplied by the factors that rescaled the earlier ones. The report counts the queries that `later` lacks
    (`queries_without_later`).

    Args:
        outcomes: outcomes of the models before the change.
        later: outcomes of their later versions, in the same order of the models.

    Raises:
        DataError: the two have no query in common.
    """
    place = {query: row for row, query in enumerate(later.query_ids.tolist())}
    both = np.array([query in place for query in outcomes.query_ids.tolist()], dtype=bool)
    if not both.any():
        raise DataError("no query has outcomes of all models before and after the change (later_models)")
    factors = outcomes.report.get("cost_factors", {})
    kept = outcomes.take(both)
    rows = [place[query] for query in kept.query_ids.tolist()]
    return replace(
        kept,
        later_scores=later.scores[rows],
        later_costs=later.costs[rows] * [factors.get(arm, 1.0) for arm in kept.arms],
        later_latencies=None if later.latencies is None else later.latencies[rows],
        report={**kept.report, "queries_without_later": int((~both).sum())},
    )


def _chosen(raw: RawOutcomes, pool: ModelPool) -> Outcomes:
    """Return the outcomes of the pool's models and tasks with costs.

    Missing cells are predicted for a log and for `missing: predict`. Otherwise incomplete queries are dropped
    or refused.

    Raises:
        DataError: the pool names no models, and the source has only one; the source lacks a model or task
            that the pool names; costs cannot be computed (`_with_costs`); an incomplete query is refused; or
            no query is complete.
    """
    names = pool.source_names()
    if names is not None:
        raw = raw.merge_models(pool.names_in_source()).select_models(names)
    elif len(raw.arms) < 2:
        raise DataError(
            f"{raw.origin} holds one model, {raw.arms[0]!r}: there is nothing to choose between. Add the "
            "rows of another model"
        )
    if pool.tasks:
        raw = raw.select_tasks(pool.tasks)
    raw = _with_costs(raw, pool)
    if pool.logged:
        return completed(raw, pool)
    if np.isnan(raw.scores).any():
        reason = split_rows_text(raw)
        if reason:
            raw = replace(raw, report={**raw.report, "apart": reason})
    if pool.predicts:
        return predict_missing(raw, pool)
    return raw.complete_queries("error" if pool.missing == "error" else "drop_queries")


def _with_costs(raw: RawOutcomes, pool: ModelPool) -> RawOutcomes:
    """Return the outcomes with the costs that the pool's options ask for.

    Without prices and constants these are the costs of the table, None if the table has none. Prices and
    constants replace the costs of the table, or with `missing: price` only fill in those that scored calls
    lack.

    A computed cost is nan if a token count that it needs is missing. The report counts scored calls of this
    kind by model, as `calls_without_tokens`, unless prices only fill in.

    Raises:
        DataError: a model has neither price nor constant; all input (or output) tokens of a model are unknown
            although their price is not 0; or, with `missing: error`, one count of a scored call is. Prices
            that only fill in raise no error.
    """
    if raw.costs is None or np.isnan(raw.costs).all():
        given = None
    else:
        given = raw.costs
    if not pool.prices and not pool.cost_per_call:
        return replace(raw, costs=given)
    filling = pool.missing == "price" and given is not None
    ours = priced(raw, pool, every_model=not filling)
    if given is None or not filling:
        if pool.missing == "error":
            _refuse_unknown_tokens(raw, pool, ours)
        return replace(raw, costs=ours, report={**raw.report, "costs_from": "prices", **_lost(raw, ours)})
    lacking = np.isnan(given) & ~np.isnan(raw.scores)
    filled = lacking & ~np.isnan(ours)
    report = {
        **raw.report,
        "costs_from": "table, prices where one lacks",
        "costs_priced": raw.by_model(filled),
    }
    return replace(raw, costs=np.where(lacking, ours, given), report=report)


def priced(raw: RawOutcomes, pool: ModelPool, *, every_model: bool = True) -> np.ndarray:
    """Return the costs by the pool's prices or constants per call, `[n, K]` USD.

    By prices, a cost is (input tokens x price + output tokens x price) / 1e6. In a log, a cost that was
    computed from all counts of the provider (`RawOutcomes.priced_costs`) takes precedence. A constant takes
    precedence over both. A cost is nan if a token count that its price needs is missing, or if its model has
    neither price nor constant.

    Raises:
        DataError: with `every_model`, a model has neither price nor constant, or all its input (or output)
            tokens are unknown although their price is not 0.
    """
    without = [arm for arm in raw.arms if arm not in pool.prices and arm not in pool.cost_per_call]
    if without and every_model:
        raise DataError(
            f"pool {pool.name!r}: prices lacks {listed(without)}; expected USD per 1M tokens (prices) or USD "
            "per call (cost_per_call) for every model. A missing price is never taken as 0"
        )
    costs = np.full(raw.scores.shape, np.nan)
    for j, arm in enumerate(raw.arms):
        if arm in pool.cost_per_call:
            costs[:, j] = pool.cost_per_call[arm]
        elif arm in pool.prices:
            costs[:, j] = 0.0
            for side, usd, tokens in _sides(raw, pool, arm):
                if usd == 0:
                    continue
                if tokens is None:
                    column = np.full(len(costs), np.nan)
                else:
                    column = tokens[:, j]
                if every_model and np.isnan(column).all():
                    raise DataError(
                        f"{raw.origin}: the numbers of {side} tokens of model {arm!r:.100} are missing, but "
                        f"prices.{arm}.{side} is {usd:g}: map source.columns.{side}_tokens, set that price "
                        "to 0 if it is not charged, or give cost_per_call"
                    )
                costs[:, j] += column * usd / PRICED_TOKENS
            if raw.priced_costs is not None:
                known = ~np.isnan(raw.priced_costs[:, j])
                costs[known, j] = raw.priced_costs[known, j]
    return costs


def _sides(raw: RawOutcomes, pool: ModelPool, arm: str) -> Iterator[tuple[str, float, np.ndarray | None]]:
    """Yield (`input` or `output`, USD per 1M tokens of the model `arm`, token counts) for input, then output.

    The counts are those of all models, `[n, K]`, or None if the source has none.
    """
    price = pool.prices[arm]
    yield "input", price.input, raw.input_tokens
    yield "output", price.output, raw.output_tokens


def _lost(raw: RawOutcomes, costs: np.ndarray) -> dict[str, dict[str, int]]:
    """Return {`calls_without_tokens`: {model: number of scored calls without a cost}}, or {} without any."""
    lost = raw.by_model(np.isnan(costs) & ~np.isnan(raw.scores))
    if lost:
        return {"calls_without_tokens": lost}
    return {}


def _refuse_unknown_tokens(raw: RawOutcomes, pool: ModelPool, costs: np.ndarray) -> None:
    """Refuse a scored call whose cost is unknown because a token count is missing.

    Raises:
        DataError: with the first such call.
    """
    unknown = np.argwhere(np.isnan(costs) & ~np.isnan(raw.scores))
    for i, j in unknown[:1]:
        side = next(
            side
            for side, usd, tokens in _sides(raw, pool, raw.arms[j])
            if usd and (tokens is None or np.isnan(tokens[i, j]))
        )
        raise DataError(
            f"{raw.origin}: the number of {side} tokens of query {str(raw.query_ids[i])!r:.100}, model "
            f"{raw.arms[j]!r:.100} is missing ({len(unknown)} calls), but it has a price: set missing: "
            f"drop_queries to leave such queries out, or that price to 0 if {side} tokens are not charged"
        )


def _rescale(outcomes: Outcomes, pool: ModelPool) -> Outcomes:
    """Return the outcomes with costs rescaled to the means that the pool file names.

    Raises:
        DataError: a named model is not in the pool, its costs are all 0, or the costs of all models are 0 if
            the pool file names a mean over all models.
    """
    means = outcomes.costs.mean(axis=0)
    factors = np.ones(len(outcomes.arms))
    if pool.rescale_mean_cost:
        for arm, mean in pool.rescale_mean_cost.items():
            if arm not in outcomes.arms:
                raise DataError(
                    f"pool {pool.name!r}: rescale_mean_cost names {arm!r:.100}; the pool has "
                    f"{outcomes.arms!r:.300}"
                )
            j = outcomes.arms.index(arm)
            if means[j] <= 0:
                raise DataError(
                    f"pool {pool.name!r}: the costs of {arm!r} are all 0, so they cannot be rescaled to mean "
                    f"{mean:g}"
                )
            factors[j] = mean / means[j]
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
