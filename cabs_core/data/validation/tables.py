"""Tables that the expectations of checks look at, and reasons why an expectation does not apply."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import stats

from cabs_core.base.catalog.sources import sources
from cabs_core.base.errors import counted, listed
from cabs_core.base.statistics.uncertainty import StandardError, mean_error
from cabs_core.data.outcomes import Outcomes, published_means
from cabs_core.data.outcomes.splits import SPLITS, split_names
from cabs_core.data.pool_files import ModelPool
from cabs_core.data.validation.alignment import (
    LEVEL,
    TEXT_FEATURES,
    Blocks,
    correlation_blocks,
    length_features,
    predictability,
    sample_rows,
    text_features,
    would_show,
)

#: queries behind the paper's averages, where known exactly
PUBLISHED_QUERIES = {"routerbench": 36_497, "openllm": 21_065}
#: least number of a model's scores on left-out queries for a comparison of its mean there
_FEWEST_LEFT_OUT = 20
#: largest number of features that costs are predicted from: two of the prompt's length, of its tokens and of
#: the answer's tokens
_LENGTH_FEATURES = 6
#: most prompts on which costs are compared with lengths: enough for `would_show`, and quick with many models
_COST_ROWS = 2_000


class Tables:
    """Small tables derived from outcomes, each made when a check asks for it.

    A property returns its table, or a text with the reason why the check does not apply. Tables with a row
    for every query, task or model have the worst row first, except `twins`. A property whose name begins
    with `why_` returns such a reason, or '' if the check applies. Only `why_rows_match` is another reason: a
    failure of the check is then a warning.

    Args:
        outcomes: outcomes of the pool, n queries and K models.
        splits: split of every query, `[n]`; '' for the stage of outcomes.
        pool: the pool, for wanted fractions and the paper's figures.
    """

    def __init__(self, outcomes: Outcomes, splits: np.ndarray, pool: ModelPool | None = None) -> None:
        self.outcomes = outcomes
        self.splits = splits
        self.pool = pool

    @property
    def why_unpaired(self) -> str:
        """Reason why models cannot be compared on the same queries, or ''.

        Models cannot be compared if some outcomes are predictions, or if each prompt of a log was answered by
        one model.
        """
        if self.outcomes.report.get("gaps"):
            return "some outcomes are predictions"
        if self.outcomes.answered is not None:
            return "of a log, one model answered each prompt"
        return ""

    @property
    def why_incomparable(self) -> str:
        """Reason why scores cannot be compared between models, or ''.

        The reason is `why_unpaired`, or that no model's scores vary.
        """
        if self.why_unpaired:
            return self.why_unpaired
        if (self.models["score_sd"] > 1e-9).any():
            return ""
        return "no model's scores vary"

    @property
    def why_rows_match(self) -> str:
        """Reason why a failure of the check of misaligned rows is only a warning, or ''.

        The reason is that the models' rows are joined by a key, so that their scores are surely of the same
        queries. There is no such reason for a source that joins the rows by their order.
        """
        ordered = self.pool is not None and sources()[self.pool.source.kind].ordered
        if ordered:
            return ""
        return "the rows of the models are joined by a key"

    def calls(self, name: str) -> pd.DataFrame | str:
        """Return the calls with the smallest and the largest number of each model, the largest number first.

        These calls decide a check of range. Missing numbers are passed over. A model without any number has a
        row with NaN. The result is a text if no number is recorded.

        Args:
            name: field of `Outcomes` of shape `[n, K]`, such as costs.
        """
        o = self.outcomes
        values = getattr(self.outcomes, name)
        if values is None or np.isnan(values).all():
            return f"{name.replace('_', ' ')} are not recorded"
        i = np.concatenate(
            [
                pick(np.where(np.isnan(values), fill, values), axis=0)
                for pick, fill in ((np.argmax, -np.inf), (np.argmin, np.inf))
            ]
        )
        j = np.tile(np.arange(len(o.arms)), 2)
        frame = pd.DataFrame(
            {
                "query_id": o.query_ids[i],
                "model": np.array(o.arms)[j],
                "prompt": [o.prompts[row][:120] for row in i],
                "value": values[i, j],
            }
        )
        return frame.drop_duplicates().sort_values("value", ascending=False, ignore_index=True)

    @property
    def lengths(self) -> pd.DataFrame:
        """Table with one row per query: the length of its prompt in characters."""
        o = self.outcomes
        frame = pd.DataFrame(
            {"query_id": o.query_ids, "prompt": [p[:120] for p in o.prompts], "characters": o.prompt_lengths}
        )
        return frame.sort_values("characters", ascending=False, ignore_index=True)

    @property
    def loading(self) -> pd.DataFrame:
        """Table of one row: the numbers of queries that were read and dropped."""
        queries = len(self.outcomes)
        read = int(self.outcomes.report.get("queries_read", queries))
        dropped = int(self.outcomes.report.get("queries_dropped", 0))
        return pd.DataFrame(
            [{"queries": queries, "read": read, "dropped": dropped, "share_dropped": dropped / max(read, 1)}]
        )

    @property
    def dropped_tasks(self) -> pd.DataFrame | str:
        """Table with one row per task that lost queries to missing cells."""
        lost = self.outcomes.report.get("dropped_by_task")
        if not lost:
            return "no query was dropped"
        frame = pd.DataFrame([{"task": task, **counts} for task, counts in lost.items()])
        frame["share_dropped"] = frame["dropped"] / frame["read"]
        return frame.sort_values("share_dropped", ascending=False, ignore_index=True)

    @property
    def left_out(self) -> pd.DataFrame | str:
        """Table with one row per model: its mean score on left-out and on kept queries, and their difference.

        Models with fewer than 20 scores on left-out queries are not in the table.
        """
        o = self.outcomes
        rows: list[dict[str, Any]] = []
        for model, (n, mean, se, df) in o.report.get("left_out_scores", {}).items():
            if model not in o.arms or n < _FEWEST_LEFT_OUT:
                continue
            kept = o.scores[:, o.arms.index(model)]
            error = mean_error(kept, clusters=o.clusters).minus(StandardError(se, df, df + 1.0))
            gap = float(kept.mean() - mean)
            low, high = error.interval(gap)
            rows.append(
                {
                    "model": model,
                    "kept_score": float(kept.mean()),
                    "left_out_score": mean,
                    "left_out": int(n),
                    "difference": gap,
                    "low": low,
                    "high": high,
                    "p_value": error.p_value(gap),
                }
            )
        if not rows:
            return f"no model has scores on {_FEWEST_LEFT_OUT} queries that were left out"
        frame = pd.DataFrame(rows).sort_values("p_value", ignore_index=True)
        return frame.assign(adjusted_p_value=np.minimum(1.0, frame["p_value"] * len(frame)))

    @cached_property
    def models(self) -> pd.DataFrame:
        """Table with one row per model: mean and spread of scores."""
        scores = self.outcomes.scores
        frame = pd.DataFrame(
            {"model": self.outcomes.arms, "mean_score": scores.mean(axis=0), "score_sd": scores.std(axis=0)}
        )
        return frame.sort_values("score_sd", kind="stable", ignore_index=True)

    @property
    def twins(self) -> pd.DataFrame:
        """Table with one row per model that has the scores of an earlier model, in the order of the models.

        The table is empty if there is no such model.
        """
        first: dict[bytes, str] = {}
        columns = zip(self.outcomes.arms, self.outcomes.scores.T, strict=True)
        twins = [(arm, first.setdefault(np.round(column, 9).tobytes(), arm)) for arm, column in columns]
        return pd.DataFrame(twins, columns=["model", "same_scores_as"]).query("model != same_scores_as")

    @property
    def contradictions(self) -> pd.DataFrame:
        """Table of one row: the share of queries whose prompt has contradicting scores.

        The scores of a prompt contradict each other if one model has scores more than 0.5 apart on two
        queries with this prompt.
        """
        prompts = pd.Series(self.outcomes.prompts)
        repeats = prompts.duplicated(keep=False)
        grouped = pd.DataFrame(self.outcomes.scores)[repeats].groupby(prompts[repeats])
        apart = (grouped.max() - grouped.min()).max(axis=1).sort_values(ascending=False)
        contradicting = int(grouped.size()[apart > 0.5].sum())
        return pd.DataFrame(
            [
                {
                    "repeated_prompts": int(repeats.sum()),
                    "contradicting": contradicting,
                    "share": contradicting / max(len(prompts), 1),
                    "prompts": [prompt[:120] for prompt in apart.index[:8]],
                }
            ]
        )

    def published(self, what: Literal["score", "cost"]) -> pd.DataFrame | str:
        """Return the models with the paper's means beside ours, of scores or of costs."""
        o = self.outcomes
        pool = self.pool
        if pool is None or pool.paper_benchmark is None:
            return "the pool is none of the paper's benchmarks"
        queries = PUBLISHED_QUERIES.get(pool.paper_benchmark)
        if not sources()[pool.source.kind].remote and len(o) != queries:
            over = f"{queries:,}" if queries else "another number"
            return f"the pool holds {len(o):,} queries, the paper's averages are over {over}"
        if pool.tasks:
            return "the pool holds some of the benchmark's tasks only"
        rows = published_means(pool.paper_benchmark, o.arms)
        ours = dict(zip(o.arms, (o.scores if what == "score" else o.costs).mean(axis=0), strict=True))
        frame = pd.DataFrame(
            {
                "model": list(rows),
                "value": [ours[model] for model in rows],
                "published": [getattr(row, what) for row in rows.values()],
            }
        )
        frame["difference"] = (frame["value"] - frame["published"]).abs()
        return frame.sort_values("difference", ascending=False, ignore_index=True)

    @cached_property
    def _blocks(self) -> Blocks:
        """Blocks of models whose scores correlate within tasks, and the blocks that prove misaligned rows."""
        return correlation_blocks(self.outcomes.scores, self.outcomes.tasks)

    @property
    def why_prompts_match(self) -> str:
        """Reason why scores surely belong to the prompts beside them, so that no check is needed, or ''."""
        collected = self.pool is not None and self.pool.collected
        if collected:
            return "`cabs collect` put these prompts to the models itself"
        return ""

    @property
    def blocks(self) -> pd.DataFrame:
        """Table with one row per block of models whose scores correlate within tasks, the largest first.

        `blocks_in_all` is the number of all blocks for a block that proves that the rows of models are
        misaligned (`Blocks.apart`), and 1 for the others.
        """
        arms = self.outcomes.arms
        blocks = self._blocks
        frame = pd.DataFrame({"models": [", ".join(arms[j] for j in block) for block in blocks.blocks]})
        frame["blocks_in_all"] = [len(frame) if number in blocks.apart else 1 for number in range(len(frame))]
        if blocks.apart:
            follows = np.where(self.block_texts["predictable"], "predictable", "not predictable")
            frame["text"] = [
                f"unrelated block {number + 1} ({len(block)}): {frame['models'][number]}, "
                f"{follows[number]} from the text"
                for number, block in enumerate(blocks.blocks)
            ]
        else:
            if blocks.conclusive:
                unsure = ""
            else:
                unsure = " (too few queries to tell blocks apart)"
            if len(blocks.blocks) > 1:
                alone = sum(len(block) == 1 for block in blocks.blocks)
            else:
                alone = 0
            if alone:
                more = f"; {alone} models correlate with no other, which proves nothing"
            else:
                more = ""
            frame["text"] = f"no blocks set apart among {sum(map(len, blocks.blocks))} models{unsure}{more}"
        return frame

    @property
    def why_too_small_for_texts(self) -> str:
        """Reason why a table of this size says nothing about scores and texts, or ''."""
        rows = len(sample_rows(len(self.outcomes)))
        if would_show(rows, TEXT_FEATURES):
            return ""
        return f"{rows:,} prompts are too few to show that scores follow from the texts beside them"

    @cached_property
    def block_texts(self) -> pd.DataFrame:
        """Table with one row per block of models: how well scores follow from the prompts within tasks.

        `predictable` is True for a significant correlation of at least a quarter of the strongest block's.
        """
        o = self.outcomes
        blocks = self._blocks.blocks
        rows = sample_rows(len(o))
        features = text_features([o.prompts[i] for i in rows])
        correlation, p_values = predictability(o.scores[rows], o.tasks[rows], features, blocks)
        strongest = max(float(correlation.max(initial=0.0)), 1e-9)
        return pd.DataFrame(
            {
                "models": [listed((o.arms[j] for j in block), 200) for block in blocks],
                "correlation_with_text": correlation,
                "p_value": p_values,
                "tasks": counted(len(set(o.tasks[rows].tolist())), "task"),
                "rows": len(rows),
                "predictable": (p_values <= LEVEL) & (correlation >= 0.25 * strongest),
            }
        )

    @property
    def why_too_small_for_costs(self) -> str:
        """Reason why a table of this size says nothing about costs and lengths, or ''."""
        rows = min(len(self.outcomes), _COST_ROWS)
        if would_show(rows, _LENGTH_FEATURES):
            return ""
        return f"{rows:,} prompts are too few to show that costs follow from the lengths of texts"

    @property
    def cost_lengths(self) -> pd.DataFrame | str:
        """Table with one row per model whose costs vary: how well the costs follow from the lengths of texts.

        Costs and lengths are compared within tasks. Lengths are those of the prompt and, if they are
        recorded, tokens of prompt and answer. `own` is True if a model's costs follow from the lengths, and
        not all models have one distribution of costs.
        """
        o = self.outcomes
        rows = sample_rows(len(o), most=_COST_ROWS)
        varying = [j for j in range(len(o.arms)) if len(np.unique(o.costs[rows, j])) > 1]
        if not varying:
            return "no model's costs vary"
        same_p = 0.0
        if len(varying) == len(o.arms) > 1:
            same_p = float(stats.kruskal(*o.costs[rows].T).pvalue)
        found = []
        for j in varying:
            tokens = [cells[rows, j] for cells in (o.input_tokens, o.output_tokens) if cells is not None]
            lengths = [o.prompt_lengths[rows], *(cells for cells in tokens if not np.isnan(cells).any())]
            features = np.hstack([length_features(length) for length in lengths])
            ranks = stats.rankdata(o.costs[rows, j])[:, None]
            correlation, p_values = predictability(ranks, o.tasks[rows], features, [[0]])
            found.append(
                {
                    "model": o.arms[j],
                    "correlation_with_length": float(correlation[0]),
                    "p_value": float(p_values[0]),
                    "same_distribution_p": same_p,
                    "rows": len(rows),
                    "own": bool(p_values[0] <= LEVEL and same_p <= LEVEL),
                }
            )
        return pd.DataFrame(found).sort_values("correlation_with_length", ignore_index=True)

    def in_two_splits(self, group: Sequence[Any] | np.ndarray) -> pd.DataFrame:
        """Return a table of one row on groups of which some queries are in one split and some in another.

        The row has the number of these groups (`in_two`), the number of groups with several queries
        (`repeated`), and up to four prompts and query ids of the first of these groups.

        Args:
            group: group of each query, `[n]`.
        """
        o = self.outcomes
        frame = pd.DataFrame(
            {"group": group, "split": self.splits, "prompt": o.prompts, "query_id": o.query_ids}
        )
        frame = frame[frame["group"].duplicated(keep=False)]
        torn = frame[frame.groupby("group")["split"].transform("nunique") > 1]
        if len(torn):
            example = torn[torn["group"] == torn["group"].iloc[0]]
        else:
            example = torn
        return pd.DataFrame(
            [
                {
                    "in_two": torn["group"].nunique(),
                    "repeated": frame["group"].nunique(),
                    "prompts": [prompt[:120] for prompt in example["prompt"].unique()[:4]],
                    "query_ids": ", ".join(map(str, example["query_id"][:4])),
                }
            ]
        )

    @property
    def sizes(self) -> pd.DataFrame:
        """Table with one row per split: its number of queries, and their share of all."""
        counts = pd.Series(self.splits).value_counts().reindex(SPLITS, fill_value=0)
        frame = pd.DataFrame({"split": SPLITS, "queries": counts.to_numpy()})
        return frame.assign(share=frame["queries"] / max(len(self.splits), 1))

    @property
    def fractions(self) -> pd.DataFrame | str:
        """Table with one row per split: the distance of its share from the wanted fraction."""
        if self.pool is None or self.pool.split.kind != "random" or self.why_drift_is_wanted:
            return "the pool wants no fractions"
        frame = self.sizes.assign(wanted_share=self.pool.split.fractions)
        return frame.assign(off_by=(frame["share"] - frame["wanted_share"]).abs())

    @property
    def why_drift_is_wanted(self) -> str:
        """Reason why drift between train and test is no fault here, or ''."""
        if self.pool is None:
            return ""
        if self.pool.split.kind == "by_task" or self.pool.replay.condition.endswith("_shift"):
            return "the pool splits by task: a shift between train and test is what it is for"
        return ""

    @property
    def _first_of_cluster(self) -> np.ndarray:
        """Row number of the first query of every cluster."""
        return np.unique(self.outcomes.clusters, return_index=True)[1]

    @property
    def task_mix(self) -> pd.DataFrame | str:
        """Table of one row: chi-square test of task counts, train against test, and the task that moved most.

        A cluster of rows counts once in the test. The shares of the task are those of all rows.
        """
        first = self._first_of_cluster
        tables = [
            pd.crosstab(self.splits[rows], self.outcomes.tasks[rows]).reindex(["train", "test"], fill_value=0)
            for rows in (slice(None), first)
        ]
        rows = tables[0]
        counts = tables[1]
        if rows.shape[1] < 2 or (rows.sum(axis=1) == 0).any():
            return "there is one task only, or one split"
        shares = rows.div(rows.sum(axis=1), axis=0)
        task = (shares.loc["train"] - shares.loc["test"]).abs().idxmax()
        rare = counts.sum() * counts.sum(axis=1).min() / counts.to_numpy().sum() < 5
        merged = np.column_stack([counts.loc[:, ~rare], counts.loc[:, rare].sum(axis=1)])
        merged = merged[:, merged.sum(axis=0) > 0]
        if merged.shape[1] > 1:
            p_value = float(stats.chi2_contingency(merged).pvalue)
        else:
            p_value = 1.0
        train, test = shares[task]
        return pd.DataFrame([{"p_value": p_value, "task": task, "train_share": train, "test_share": test}])

    @property
    def score_drift(self) -> pd.DataFrame:
        """Table with one row per model: mean score in train and in test, and the p-value of the difference.

        The p-value is multiplied by the number of models, and is at most 1.
        """
        o = self.outcomes
        train = self.splits == "train"
        test = self.splits == "test"
        train_means = o.scores[train].mean(axis=0)
        test_means = o.scores[test].mean(axis=0)
        p_values = []
        for j in range(len(o.arms)):
            train_error = mean_error(o.scores[train, j], clusters=o.clusters[train])
            test_error = mean_error(o.scores[test, j], clusters=o.clusters[test])
            difference = float(test_means[j] - train_means[j])
            p_values.append(test_error.minus(train_error).p_value(difference))
        frame = pd.DataFrame(
            {
                "model": o.arms,
                "train_mean": train_means,
                "test_mean": test_means,
                "adjusted_p_value": np.minimum(1.0, np.array(p_values) * len(o.arms)),
            }
        )
        return frame.sort_values("adjusted_p_value", ignore_index=True)

    @property
    def length_drift(self) -> pd.DataFrame | str:
        """Table of one row: Kolmogorov-Smirnov test of prompt lengths, train against test, by clusters."""
        first = self._first_of_cluster
        lengths = self.outcomes.prompt_lengths
        train, test = (lengths[first][self.splits[first] == split] for split in ("train", "test"))
        if not len(train) or not len(test):
            return "train or test is empty"
        p_value = float(stats.ks_2samp(train, test).pvalue)
        return pd.DataFrame(
            [{"p_value": p_value, "train_median": np.median(train), "test_median": np.median(test)}]
        )

    @property
    def source_split(self) -> pd.DataFrame | str:
        """Table of one row: the share of queries that are in the split that the source recorded for them."""
        o = self.outcomes
        kind = self.pool.split.kind if self.pool else "random"
        if kind not in ("default", "column") or o.source_splits is None or self.why_drift_is_wanted:
            return "the pool does not use the source's own split"
        moved = np.flatnonzero(np.array(split_names(o.source_splits)) != self.splits)
        if len(moved):
            first = str(o.query_ids[moved[0]])
        else:
            first = None
        return pd.DataFrame(
            [{"share_kept": 1 - len(moved) / len(o), "moved": len(moved), "first_moved": first}]
        )
