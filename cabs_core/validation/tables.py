"""The tables that the expectations look at: cells, queries, models, prompts, blocks, splits.

Each is small or cheap to build, and every check is a plain expectation on one of them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cabs_core.catalog import sources
from cabs_core.outcomes import PUBLISHED, Outcomes, outcomes_from_frame
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


class Tables:
    """Tables derived from outcomes (or from a tidy table that is not yet known to be sound)."""

    def __init__(
        self,
        outcomes: Outcomes | pd.DataFrame,
        splits: np.ndarray | None,
        pool: ModelPool | None,
        embeddings: np.ndarray | None,
    ) -> None:
        self.pool = pool
        self.splits = splits
        self.embeddings = embeddings
        if isinstance(outcomes, Outcomes):
            self.report: dict[str, Any] = outcomes.report
            self.__dict__["outcomes"] = outcomes
            self.cells = outcomes.to_frame().drop(columns="prompt")
            self._query_rows = pd.DataFrame(
                {"query_id": outcomes.query_ids, "prompt": outcomes.prompts, "task": outcomes.tasks}
            )
        else:
            self.report = {}
            self.cells = outcomes.drop(columns="prompt", errors="ignore")
            columns = [c for c in ("query_id", "prompt", "task") if c in outcomes.columns]
            self._query_rows = outcomes[columns].drop_duplicates()
            if "task" not in columns:
                self._query_rows = self._query_rows.assign(task="all")
            self._frame = outcomes
        self.arms = list(outcomes.arms) if isinstance(outcomes, Outcomes) else self._expected_arms()

    def _expected_arms(self) -> list[str]:
        names = self.pool.arm_names() if self.pool else None
        return names or sorted(self.cells["model"].dropna().unique())

    @property
    def logged(self) -> str:
        """Why models cannot be compared on the same queries, or ''."""
        return "of a log, one model answered each prompt" if self.outcomes.answered is not None else ""

    @cached_property
    def outcomes(self) -> Outcomes:
        """Dense arrays; of a faulty table, its sound part."""
        return _complete_part(self._frame, self.arms)

    @cached_property
    def queries(self) -> pd.DataFrame:
        """One row per (query_id, prompt, task): a query id that stands twice has two prompts or tasks."""
        rows = self._query_rows.reset_index(drop=True)
        text = rows["prompt"].fillna("").astype("str")
        return pd.DataFrame(
            {
                "query_id": rows["query_id"],
                "task": rows["task"],
                "prompt_start": text.str.slice(0, 120),
                "prompt_chars": text.str.strip().str.len().astype(int),
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

    @cached_property
    def published(self) -> tuple[pd.DataFrame, str]:
        """Models with the paper's means beside ours, and why the comparison does not apply ('' if it does)."""
        pool = self.pool
        if pool is None or pool.paper_benchmark is None:
            return pd.DataFrame(), "the pool is none of the paper's benchmarks"
        benchmark = pool.paper_benchmark
        wanted = PUBLISHED_QUERIES.get(benchmark)
        if not sources()[pool.source.kind].remote and len(self.outcomes) != wanted:
            return pd.DataFrame(), (
                f"the pool holds {len(self.outcomes):,} queries, the paper's averages are over "
                f"{f'{wanted:,}' if wanted else 'another number'}"
            )
        if pool.tasks:
            return pd.DataFrame(), "the pool holds some of the benchmark's tasks only"
        rows = {name: row for row in PUBLISHED[benchmark] for name in (row.name, row.source_name)}
        frame = self.models[["model", "mean_score", "mean_cost"]].copy()
        frame["published_score"] = [rows[m].score if m in rows else np.nan for m in frame["model"]]
        frame["published_cost"] = [rows[m].cost if m in rows else np.nan for m in frame["model"]]
        frame["score_difference"] = (frame["mean_score"] - frame["published_score"]).abs()
        frame["cost_difference"] = (frame["mean_cost"] - frame["published_cost"]).abs()
        return frame[frame["published_score"].notna()], ""

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
        """One row per block of models that correlate within tasks (one block: all is well)."""
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
                    "blocks_in_all": len(found.blocks),
                }
            )
        return pd.DataFrame(rows)

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

    # ------------------------------------------------------------------------------------------------- splits

    @cached_property
    def assignment(self) -> pd.DataFrame:
        """One row per entry of the split array."""
        splits = np.asarray(self.splits)
        ids = self.outcomes.query_ids
        frame = pd.DataFrame({"split": [str(s) for s in splits.tolist()]})
        frame["query_id"] = [ids[i] if i < len(ids) else f"(entry {i})" for i in range(len(splits))]
        return frame

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

    @cached_property
    def source_split(self) -> tuple[pd.DataFrame, str]:
        """One row: share of queries in the source's own split; and why the check does not apply ('' if it does)."""
        o = self.outcomes
        kind = self.pool.split.kind if self.pool else "random"
        if kind not in ("default", "column") or o.source_splits is None or self.shift_wanted:
            return pd.DataFrame(), "the pool does not use the source's own split"
        moved = np.flatnonzero(np.array(split_names(o.source_splits)) != self._codes())
        return pd.DataFrame(
            {
                "share_kept": [1 - len(moved) / len(o)],
                "moved": [len(moved)],
                "first_moved": [str(o.query_ids[moved[0]]) if len(moved) else None],
            }
        ), ""


def _complete_part(frame: pd.DataFrame, arms: list[str]) -> Outcomes:
    """The sound part of a tidy table, for the checks that need dense arrays."""
    wanted = [c for c in ("query_id", "prompt", "task", "model", "score", "cost") if c in frame.columns]
    sound = frame[wanted].dropna()
    sound = sound[sound["score"].between(0, 1) & sound["cost"].between(0, 1e9)]
    sound = sound[sound["model"].isin(arms) & (sound["prompt"].str.strip() != "")]
    sound = sound.drop_duplicates(["query_id", "model"])
    first = sound.drop_duplicates("query_id").set_index("query_id")
    sound = sound[sound["prompt"].to_numpy() == first["prompt"].reindex(sound["query_id"]).to_numpy()]
    counts = sound.groupby("query_id")["model"].transform("size")
    return outcomes_from_frame(sound[counts == sound["model"].nunique()])
