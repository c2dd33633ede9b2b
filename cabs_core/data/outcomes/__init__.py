"""Outcomes: the score and cost of every model on every query. Loading, checking of input, splits.

`Outcomes` is the table as dense arrays. `load_outcomes` reads the table from any source and applies the
pool's options. `make_splits` assigns whole prompts to train, validation and test; `splits_of_pool` does so
once per fold. `split_under` and `outcomes_under` change splits and labels under a stress condition.
`published_means` has the averages that the paper prints.
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
