"""Outcomes: what every model scored and cost on every query; loading, checking of input, splits.

`Outcomes` is the table (dense arrays), `load_outcomes(pool_file)` reads it from any source and applies the
pool's options, `make_splits(outcomes, pool.split)` assigns train / validation / test by whole prompts,
`splits_of_pool(outcomes, pool)` gives one such split per fold,
`published_means(benchmark, arms)` gives the paper's averages. `split_under`, `outcomes_under`: under stress.
"""

from cabs_core.data.outcomes.conditions import outcomes_under, split_under, splits_of_pool
from cabs_core.data.outcomes.load import load_outcomes
from cabs_core.data.outcomes.published import PUBLISHED, PublishedModel, published_means
from cabs_core.data.outcomes.splits import SPLITS, make_splits, validation_rows
from cabs_core.data.outcomes.table import Outcomes

__all__ = [
    "PUBLISHED",
    "SPLITS",
    "Outcomes",
    "PublishedModel",
    "load_outcomes",
    "make_splits",
    "outcomes_under",
    "published_means",
    "split_under",
    "splits_of_pool",
    "validation_rows",
]
