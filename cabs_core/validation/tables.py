"""The tables that the expectations look at, and why an expectation does not apply. Each is small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cabs_core.catalog import sources
from cabs_core.errors import listed
from cabs_core.outcomes import PUBLISHED, Outcomes
from cabs_core.outcomes.splits import SPLITS, split_names
from cabs_core.pool_files import ModelPool
from cabs_core.validation.alignment import (
    Blocks,
    Predictability,
    correlation_blocks,
    predictability,
    sample_rows,
    text_features,
)

#: queries behind the paper's averages, where known exactly
PUBLISHED_QUERIES = {"routerbench": 36_497, "openllm": 21_065}
#: scores of a model on queries that were left out from which its mean there is compared
_FEWEST_LEFT_OUT = 20


class Tables:
    """Tables derived from outcomes, each made when a check asks for it.

    Args:
        outcomes: of the pool. splits: `[n]` or None. pool: for wanted fractions and the paper's figures.
        embeddings: `[n, e]` of the prompts, or None: features of the texts alone.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        splits: np.ndarray | None = None,
        pool: ModelPool | None = None,
        embeddings: np.ndarray | None = None,
    ) -> None:
        self.outcomes, self.splits, self.pool, self.embeddings = outcomes, splits, pool, embeddings
        self.report: dict[str, Any] = outcomes.report

    @property
    def logged(self) -> str:
        """Why models cannot be compared on the same queries, or ''."""
        if self.report.get("gaps"):
            return "some outcomes are predictions"
        return "of a log, one model answered each prompt" if self.outcomes.answered is not None else ""

    @property
    def keyed(self) -> str:
        """Why models' rows cannot easily be in different orders, or ''."""
        ordered = self.pool is not None and sources()[self.pool.source.kind].ordered
        return "" if ordered else "the rows of the models are joined by a key"

    def unrecorded(self, column: str) -> str:
        """Why a number of the calls cannot be checked, or ''."""
        return "" if column in self._numbers else f"{column} is not recorded"

    @cached_property
    def _numbers(self) -> dict[str, np.ndarray]:
        o = self.outcomes
        cells = {
            "cost": o.costs, "n_input_tokens": o.input_tokens, "n_output_tokens": o.output_tokens, "latency": o.latencies
        }  # fmt: skip
        return {name: a for name, a in cells.items() if a is not None and not np.isnan(a).all()}

    @cached_property
    def cells(self) -> pd.DataFrame:
        """Calls that decide a check of a range: of each model, those with the smallest and the largest of every number."""
        o = self.outcomes
        wanted = np.zeros(o.scores.shape, dtype=bool)
        for array in self._numbers.values():
            for pick, fill in ((np.argmin, np.inf), (np.argmax, -np.inf)):
                wanted[pick(np.where(np.isnan(array), fill, array), axis=0), np.arange(len(o.arms))] = True
        i, j = np.nonzero(wanted)
        return pd.DataFrame(
            {
                "query_id": o.query_ids[i],
                "model": np.array(o.arms)[j],
                **{name: array[i, j] for name, array in self._numbers.items()},
            }
        )

    @cached_property
    def queries(self) -> pd.DataFrame:
        """One row per query: its id, the beginning of its prompt, and how long that is."""
        o = self.outcomes
        return pd.DataFrame(
            {
                "query_id": o.query_ids,
                "prompt_start": [p[:120] for p in o.prompts],
                "prompt_chars": o.prompt_lengths,
            }
        )

    @cached_property
    def loading(self) -> pd.DataFrame:
        """One row: how many queries were read and dropped."""
        read = int(self.report.get("queries_read", len(self.outcomes)))
        dropped = int(self.report.get("queries_dropped", 0))
        return pd.DataFrame(
            {"queries_read": [read], "dropped": [dropped], "share_dropped": [dropped / max(read, 1)]}
        )

    @cached_property
    def dropped_tasks(self) -> pd.DataFrame:
        """One row per task that lost queries to missing cells (one row of zeros if none did)."""
        lost = self.report.get("dropped_by_task") or {"(none)": {"read": 1, "dropped": 0}}
        rows = [{"task": t, "read": c["read"], "dropped": c["dropped"]} for t, c in lost.items()]
        frame = pd.DataFrame(rows)
        frame["share_dropped"] = frame["dropped"] / frame["read"]
        return frame.sort_values("share_dropped", ascending=False, ignore_index=True)

    @cached_property
    def left_out(self) -> pd.DataFrame:
        """One row per model with scores on queries that were left out: its mean there and on those that are kept."""
        o = self.outcomes
        rows = []
        for model, (n, mean, sd) in self.report.get("left_out_scores", {}).items():
            if model not in o.arms or n < _FEWEST_LEFT_OUT:
                continue
            own = o.scores[:, o.arms.index(model)]
            pooled = (own.var() * len(own) + sd**2 * (n - 1)) / max(len(own) + n - 2, 1)
            error = float(np.sqrt(pooled * (1 / len(own) + 1 / n)))
            gap = float(own.mean() - mean)
            rows.append(
                {
                    "model": model, "kept_score": float(own.mean()), "left_out_score": mean, "left_out": n,
                    "difference": gap, "low": gap - 1.96 * error, "high": gap + 1.96 * error,
                    "p_value": float(2 * stats.norm.sf(abs(gap) / error)) if error > 0 else float(gap == 0),
                }
            )  # fmt: skip
        frame = pd.DataFrame(rows)
        if rows:
            frame["adjusted_p_value"] = np.minimum(1.0, frame["p_value"] * len(frame))
            frame = frame.sort_values("p_value", ignore_index=True)
        return frame

    @property
    def none_left_out(self) -> str:
        """Why there is nothing to compare, or ''."""
        return (
            ""
            if len(self.left_out)
            else f"no model has scores on {_FEWEST_LEFT_OUT} queries that were left out"
        )

    @property
    def left_out_line(self) -> str:
        """The model that differs most, with its interval."""
        worst = self.left_out.iloc[0]
        return (
            f"{worst['model']} scores {worst['kept_score']:.3f} on the queries that are kept and {worst['left_out_score']:.3f} "
            f"on {worst['left_out']:,.0f} that are left out because another model has no score or cost there (difference "
            f"{worst['difference']:+.3f}, 95 % interval {worst['low']:+.3f} to {worst['high']:+.3f})"
        )

    @cached_property
    def models(self) -> pd.DataFrame:
        """One row per model: mean and spread of scores, mean cost, a twin with the same scores."""
        o = self.outcomes
        seen: dict[bytes, str] = {}
        twins = [
            seen.setdefault(np.round(column, 9).tobytes(), arm) for arm, column in zip(o.arms, o.scores.T)
        ]
        return pd.DataFrame(
            {
                "model": o.arms,
                "mean_score": o.scores.mean(axis=0),
                "score_sd": o.scores.std(axis=0),
                "mean_cost": o.costs.mean(axis=0),
                "same_scores_as": [None if twin == arm else twin for twin, arm in zip(twins, o.arms)],
            }
        )

    @cached_property
    def duplicates(self) -> pd.DataFrame:
        """One row per query whose prompt occurs more than once: largest score difference within that prompt."""
        o = self.outcomes
        _, group = np.unique(np.array(o.prompts, dtype=object), return_inverse=True)
        sizes = np.bincount(group)
        low = np.full((len(sizes), len(o.arms)), np.inf)
        high = np.full((len(sizes), len(o.arms)), -np.inf)
        np.minimum.at(low, group, o.scores)
        np.maximum.at(high, group, o.scores)
        rows = np.flatnonzero(sizes[group] > 1)
        gap = (high - low)[group[rows]]
        return pd.DataFrame(
            {
                "query_id": o.query_ids[rows],
                "prompt_start": [o.prompts[i][:120] for i in rows],
                "model": [o.arms[j] for j in gap.argmax(axis=1)] if len(rows) else [],
                "score_difference": gap.max(axis=1) if len(rows) else np.zeros(0),
            }
        )

    @cached_property
    def contradictions(self) -> pd.DataFrame:
        """One row: share of all queries that repeat a prompt with another score (more than 0.5 apart)."""
        bad = int((self.duplicates["score_difference"] > 0.5).sum())
        return pd.DataFrame(
            {
                "repeated_prompts": [len(self.duplicates)],
                "contradicting": [bad],
                "share": [bad / max(len(self.outcomes), 1)],
            }
        )

    @property
    def contradicting_examples(self) -> list[dict[str, Any]]:
        """The repeated prompts whose scores differ most."""
        return _records(
            self.duplicates.sort_values("score_difference", ascending=False, kind="stable").head(8)
        )

    @property
    def unpublished(self) -> str:
        """Why the paper's figures do not apply, or ''."""
        pool = self.pool
        if pool is None or pool.paper_benchmark is None:
            return "the pool is none of the paper's benchmarks"
        wanted = PUBLISHED_QUERIES.get(pool.paper_benchmark)
        if not sources()[pool.source.kind].remote and len(self.outcomes) != wanted:
            return (
                f"the pool holds {len(self.outcomes):,} queries, the paper's averages are over "
                f"{f'{wanted:,}' if wanted else 'another number'}"
            )
        return "the pool holds some of the benchmark's tasks only" if pool.tasks else ""

    @cached_property
    def published(self) -> pd.DataFrame:
        """Models with the paper's means beside ours."""
        assert self.pool is not None and self.pool.paper_benchmark is not None  # see `unpublished`
        rows = {n: row for row in PUBLISHED[self.pool.paper_benchmark] for n in (row.name, row.source_name)}
        frame = self.models[["model", "mean_score", "mean_cost"]].copy()
        frame["published_score"] = [rows[m].score if m in rows else np.nan for m in frame["model"]]
        frame["published_cost"] = [rows[m].cost if m in rows else np.nan for m in frame["model"]]
        frame["score_difference"] = (frame["mean_score"] - frame["published_score"]).abs()
        frame["cost_difference"] = (frame["mean_cost"] - frame["published_cost"]).abs()
        return frame[frame["published_score"].notna()]

    def named(self, row: Mapping[str, Any], index: Sequence[str]) -> str:
        """A row of a table in words: the model, the beginning of the prompt, or the first of the columns that identify it."""
        if "query_id" not in index:
            return f"{row.get(index[0]) if index else ''!s:.60}"
        prompt = self.outcomes.prompts[self.outcomes.query_ids.tolist().index(row["query_id"])]
        model = f"{row['model']!s:.60} on " if "model" in row else ""
        return f"{model}{prompt!r:.60}"

    @property
    def scores_constant(self) -> str:
        """Why scores cannot be compared between models: no model's vary."""
        return "" if (self.models["score_sd"] > 1e-9).any() else "no model's scores vary"

    @property
    def same_scores_line(self) -> str:
        """Which models have another's scores."""
        same = self.models[self.models["same_scores_as"].notna()]
        return (
            "; ".join(
                f"{r.model:.60} has the scores of {r.same_scores_as:.60}" for r in same.head(3).itertuples()
            )
            or "none"
        )

    @cached_property
    def found_blocks(self) -> Blocks:
        return correlation_blocks(self.outcomes.scores, self.outcomes.tasks)

    @cached_property
    def found_predictability(self) -> Predictability:
        o = self.outcomes
        rows = sample_rows(len(o))
        if self.embeddings is None:
            features = text_features([o.prompts[i] for i in rows])
        else:
            features = np.asarray(self.embeddings)[rows]
        return predictability(o.scores[rows], o.tasks[rows], features, self.found_blocks.blocks)

    @cached_property
    def blocks(self) -> pd.DataFrame:
        """One row per block of models that correlate within tasks; `blocks_in_all` is 1 unless it is set apart."""
        found = self.found_blocks
        rows = []
        for number, block in enumerate(found.blocks):
            others = [j for other in found.blocks if other is not block for j in other]
            inside = found.correlations[np.ix_(block, block)][np.triu_indices(len(block), 1)]
            across = found.correlations[np.ix_(block, others)] if others else np.zeros((1, 0))
            rows.append(
                {
                    "block": number + 1,
                    "models": ", ".join(self.outcomes.arms[j] for j in block),
                    "size": len(block),
                    "mean_correlation_inside": float(np.nanmean(inside)) if len(inside) else None,
                    "largest_correlation_outside": float(np.nanmax(np.abs(across))) if across.size else None,
                    "blocks_in_all": len(found.blocks) if number in found.apart else 1,
                }
            )
        return pd.DataFrame(rows)

    @property
    def blocks_found(self) -> dict[str, Any]:
        """What the test of alignment rests on."""
        found = self.found_blocks
        return {
            "blocks": _records(self.blocks.drop(columns="blocks_in_all")),
            "threshold": found.threshold,
            "typical_correlation": found.typical,
            "queries_used": found.rows,
            "enough_queries_to_tell": found.conclusive,
        }

    @property
    def blocks_line(self) -> str:
        """The blocks that are set apart, and which of them the prompts predict."""
        found, blocks = self.found_blocks, self.blocks
        if not found.apart:
            unsure = "" if found.conclusive else " (too few queries to tell blocks apart)"
            alone = sum(len(block) == 1 for block in found.blocks) if len(found.blocks) > 1 else 0
            more = f"; {alone} models correlate with no other, which proves nothing" if alone else ""
            return f"no blocks set apart among {int(blocks['size'].sum())} models{unsure}{more}"
        parts = "; ".join(f"block {r.block} ({r.size}): {r.models}" for r in blocks.itertuples())
        follow = self.block_texts[self.block_texts["predictable"]]["block"].tolist()
        which = (
            f"predictable from the text: block {', '.join(map(str, follow))}"
            if follow
            else "none follows the text"
        )
        return (
            f"{len(blocks)} unrelated blocks of models, so their rows seem not to be about the same queries "
            f"({which}). {parts}"
        )

    @cached_property
    def block_texts(self) -> pd.DataFrame:
        """One row per block: how well its scores follow from the prompts within tasks."""
        found = self.found_predictability
        strongest = max(float(found.groups.max(initial=0.0)), 1e-9)
        frame = self.blocks[["block", "models", "size"]].copy()
        frame["correlation_with_text"] = found.groups
        frame["p_value"] = found.p_values
        frame["predictable"] = (found.p_values <= 0.01) & (found.groups >= 0.25 * strongest)
        return frame

    @property
    def texts_line(self) -> str:
        """How well each block follows the prompts."""
        arms, blocks = self.outcomes.arms, self.found_blocks.blocks
        return "; ".join(
            f"the scores of {listed((arms[j] for j in blocks[r.block - 1]), 200)} correlate by {r.correlation_with_text:.3f} with what the words of the prompts predict "
            f"(p = {r.p_value:.2f})"
            for r in self.block_texts.itertuples()
        )

    @property
    def texts_found(self) -> dict[str, Any]:
        """Blocks and models with their correlations."""
        models = np.round(self.found_predictability.models, 4).tolist()
        return {
            "blocks": _records(self.block_texts),
            "correlation_by_model": dict(zip(self.outcomes.arms, models, strict=True)),
            "features": "text" if self.embeddings is None else "embeddings",
        }

    # ------------------------------------------------------------------------------------------------- splits

    @cached_property
    def prompts_in_splits(self) -> pd.DataFrame:
        """One row per prompt text that stands more than once: in how many splits."""
        o = self.outcomes
        frame = pd.DataFrame({"prompt": o.prompts, "split": self._codes(), "query_id": o.query_ids})
        frame = frame[frame["prompt"].duplicated(keep=False)]
        grouped = frame.groupby("prompt", sort=False).agg(
            splits=("split", "nunique"), query_ids=("query_id", lambda ids: ", ".join(map(str, ids[:4])))
        )
        grouped = grouped.reset_index()
        grouped["prompt"] = grouped["prompt"].str.slice(0, 120)
        return grouped

    @cached_property
    def copies_in_splits(self) -> pd.DataFrame:
        """One row per group of near-duplicates: in how many splits they are, and how many prompts they have."""
        o = self.outcomes
        frame = pd.DataFrame({"group": o.copies, "split": self._codes(), "prompt": o.prompts})
        grouped = frame.groupby("group", sort=True).agg(
            splits=("split", "nunique"), prompts=("prompt", "nunique"), prompt=("prompt", "first")
        )
        grouped = grouped[grouped["prompts"] > 1].reset_index(drop=True)
        grouped["prompt"] = grouped["prompt"].str.slice(0, 120)
        return grouped

    def _codes(self) -> np.ndarray:
        codes = np.atleast_1d(np.asarray(self.splits))
        if len(codes) != len(self.outcomes):
            raise ValueError(f"{len(codes)} split entries for {len(self.outcomes)} queries")
        return codes

    @cached_property
    def sizes(self) -> pd.DataFrame:
        """One row per split: size and distance from the wanted fraction (0 where there is none)."""
        codes = self._codes()
        pool = self.pool
        random = pool is not None and pool.split.kind == "random" and not self.shift_wanted
        fractions = pool.split.fractions if pool is not None and random else None
        rows = []
        for index, name in enumerate(SPLITS):
            queries = int((codes == name).sum())
            share = queries / max(len(codes), 1)
            wanted = fractions[index] if fractions else None
            rows.append(
                {
                    "split": name,
                    "queries": queries,
                    "share": share,
                    "wanted_share": wanted,
                    "off_by": 0.0 if wanted is None else abs(share - wanted),
                }
            )
        return pd.DataFrame(rows)

    @property
    def shift_wanted(self) -> str:
        """Why drift between train and test is no fault here, or ''."""
        if self.pool is None:
            return ""
        by_task = self.pool.split.kind == "by_task" or self.pool.replay.condition.endswith("_shift")
        return "the pool splits by task: a shift between train and test is what it is for" if by_task else ""

    @cached_property
    def task_mix(self) -> pd.DataFrame:
        """One row: chi-square test of task counts, train against test; and the task that moved most."""
        codes, tasks = self._codes(), self.outcomes.tasks
        names = np.unique(tasks)
        counts = np.array(
            [[(tasks[codes == split] == name).sum() for name in names] for split in ("train", "test")],
            dtype=float,
        )
        if len(names) < 2 or (counts.sum(axis=1) == 0).any():
            return pd.DataFrame(
                {"p_value": [1.0], "task": ["all"], "train_share": [1.0], "test_share": [1.0]}
            )
        shares = counts / counts.sum(axis=1, keepdims=True)
        moved = int(np.abs(shares[0] - shares[1]).argmax())
        rare = counts.sum(axis=0) * min(counts.sum(axis=1)) / counts.sum() < 5
        merged = np.column_stack([counts[:, ~rare], counts[:, rare].sum(axis=1)])
        merged = merged[:, merged.sum(axis=0) > 0]
        p_value = float(stats.chi2_contingency(merged).pvalue) if merged.shape[1] > 1 else 1.0
        return pd.DataFrame(
            {
                "p_value": [p_value],
                "task": [str(names[moved])],
                "train_share": [shares[0, moved]],
                "test_share": [shares[1, moved]],
            }
        )

    @cached_property
    def score_drift(self) -> pd.DataFrame:
        """One row per model: mean score in train and test, p-value times the number of models."""
        codes, o = self._codes(), self.outcomes
        train, test = o.scores[codes == "train"], o.scores[codes == "test"]
        error = np.sqrt(train.var(axis=0) / max(len(train), 1) + test.var(axis=0) / max(len(test), 1))
        difference = test.mean(axis=0) - train.mean(axis=0)
        z = np.divide(difference, error, out=np.zeros_like(difference), where=error > 0)
        return pd.DataFrame(
            {
                "model": o.arms,
                "train_mean": train.mean(axis=0),
                "test_mean": test.mean(axis=0),
                "adjusted_p_value": np.minimum(1.0, 2 * stats.norm.sf(np.abs(z)) * len(o.arms)),
            }
        )

    @cached_property
    def length_drift(self) -> pd.DataFrame:
        """One row: Kolmogorov-Smirnov test of prompt lengths, train against test."""
        codes, lengths = self._codes(), self.outcomes.prompt_lengths
        train, test = lengths[codes == "train"], lengths[codes == "test"]
        p_value = float(stats.ks_2samp(train, test).pvalue) if len(train) and len(test) else 1.0
        return pd.DataFrame(
            {
                "p_value": [p_value],
                "train_median": [float(np.median(train)) if len(train) else None],
                "test_median": [float(np.median(test)) if len(test) else None],
            }
        )

    @property
    def no_source_split(self) -> str:
        """Why the source's own split does not matter, or ''."""
        kind = self.pool.split.kind if self.pool else "random"
        if kind not in ("default", "column") or self.outcomes.source_splits is None or self.shift_wanted:
            return "the pool does not use the source's own split"
        return ""

    @cached_property
    def source_split(self) -> pd.DataFrame:
        """One row: share of queries in the source's own split."""
        o = self.outcomes
        assert o.source_splits is not None  # see `no_source_split`
        moved = np.flatnonzero(np.array(split_names(o.source_splits)) != self._codes())
        first = str(o.query_ids[moved[0]]) if len(moved) else None
        return pd.DataFrame(
            {"share_kept": [1 - len(moved) / len(o)], "moved": [len(moved)], "first_moved": [first]}
        )


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in frame.to_dict("records")]
