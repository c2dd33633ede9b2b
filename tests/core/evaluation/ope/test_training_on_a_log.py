"""A table that a log completes keeps the groups and the times of the table."""

from types import SimpleNamespace

import numpy as np

from cabs_core.data.outcomes import Outcomes
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.training import with_log


def test_groups_and_times_of_the_table_stay_when_a_log_is_added():
    table = Outcomes(
        query_ids=np.array(["a", "b"]),
        prompts=["one", "two"],
        tasks=np.array(["t", "t"]),
        arms=["small", "large"],
        scores=np.full((2, 2), 0.5),
        costs=np.full((2, 2), 1e-4),
        groups=np.array(["template", "template"]),
        times=np.array([1.0, 2.0]),
    )
    data = LoggedData(
        arms=table.arms,
        actions=np.array([0, 1, 1]),
        scores=np.array([1.0, 0.0, 1.0]),
        costs=np.full(3, 2e-4),
        features=np.zeros((3, 0)),
        groups=np.array(["x", "y", "z"]),
        propensities=np.full(3, 0.5),
        embeddings=np.zeros((3, 4)),
        lengths=np.array([3, 5, 7]),
    )
    oracles = SimpleNamespace(
        predict_scores=lambda x, lengths, model: np.full((len(x), 2), 0.5),
        predict_costs=lambda x, lengths: np.full((len(x), 2), 1e-4),
    )
    longer, split, vectors = with_log(table, np.array(["train", "test"]), np.zeros((2, 4)), oracles, data)
    assert longer.groups.tolist() == ["template", "template", "", "", ""]
    np.testing.assert_array_equal(longer.times, [1.0, 2.0, np.nan, np.nan, np.nan])
    assert longer.clusters[0] == longer.clusters[1]
    assert len(set(longer.clusters.tolist())) == 4
    assert split.tolist() == ["train", "test", "train", "train", "train"]
    assert vectors.shape == (5, 4)
