"""The marts of one pool, as its page reads them.

Marts are tables that SQL models write as parquet. This module reads and sorts them and computes no metric,
so that a figure on a page is the figure of a mart.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.base.catalog.regimes import REGIMES
from cabs_core.base.catalog.roles import NO_ROUTERS
from cabs_core.base.errors import ResultError
from cabs_core.base.statistics.uncertainty import score_interval, two_way_error
from cabs_core.report.scale import Scale

#: most values of rho, or policies, that a sentence lists
_SHOWN = 5
#: cost regimes and their mean, in the order of tables
LEVELS = (*REGIMES, "overall")


def read_mart(artifacts_dir: str | Path, name: str, pool: str | None = None) -> pd.DataFrame:
    """Read the rows of a mart.

    Args:
        artifacts_dir: folder with the folder `marts`.
        name: full name of the mart, such as `mart_aiq` or `stg_pools`.
        pool: name of the only pool to read; None reads all pools.

    Raises:
        ResultError: the mart has not been built, or its file is damaged.
    """
    path = Path(artifacts_dir) / "marts" / f"{name}.parquet"
    if not path.is_file():
        raise ResultError(f"{path} does not exist: build the SQL marts before the report (marts/{name})")
    try:
        table = pq.read_table(path, filters=None if pool is None else [("pool", "=", pool)])
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultError(f"{path} cannot be read ({error}): run marts/{name} again") from None
    return table.to_pandas()


def rhos_text(rhos: list[float], most: int = _SHOWN) -> str:
    """Return a list of rhos for a sentence, such as `0, 50, 100 and 4 more`; at most `most` are named."""
    named = ", ".join(f"{rho:g}" for rho in rhos[:most])
    if len(rhos) > most:
        return f"{named} and {len(rhos) - most} more"
    return named


@dataclass(frozen=True)
class PoolData:
    """The marts of one pool, each read from disk only when its figures are needed.

    Attributes:
        pool: name of the pool.
        artifacts_dir: folder with the folder `marts`.
    """

    pool: str
    artifacts_dir: Path

    def mart(self, name: str) -> pd.DataFrame:
        """Read this pool's rows of `mart_<name>` from disk.

        Raises:
            ResultError: the mart has not been built, or its file is damaged.
        """
        return read_mart(self.artifacts_dir, f"mart_{name}", self.pool)

    @cached_property
    def info(self) -> dict[str, Any]:
        """The pool's row of `stg_pools`, {column: value}.

        Raises:
            ResultError: no replay of this pool is in the marts.
        """
        rows = read_mart(self.artifacts_dir, "stg_pools", self.pool)
        if rows.empty:
            known = sorted(read_mart(self.artifacts_dir, "stg_pools")["pool"])
            raise ResultError(
                f"no replays of pool {self.pool!r} are in the marts; there are replays of: "
                f"{', '.join(known) or 'none'}. Run `cabs run --pool {self.pool}`."
            )
        info: dict[str, Any] = rows.iloc[0].to_dict()
        return info

    @cached_property
    def board(self) -> pd.DataFrame:
        """The pool's rows of `mart_policy_leaderboard`, indexed by policy.

        Ranked policies come first, the best of them at the top; policies without a rank follow by utility.
        """
        board = self.mart("policy_leaderboard").set_index("policy", drop=False)
        return board.sort_values(["rank", "utility"], ascending=[True, False], na_position="last")

    @cached_property
    def regimes(self) -> pd.DataFrame:
        """The pool's rows of `mart_utility_by_regime`, indexed by (policy, regime)."""
        return self.mart("utility_by_regime").set_index(["policy", "regime"], drop=False).sort_index()

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """The pool's rows of `mart_pairwise_differences`, indexed by (regime, policy, baseline)."""
        return (
            self.mart("pairwise_differences")
            .set_index(["regime", "policy", "baseline"], drop=False)
            .sort_index()
        )

    @property
    def reference(self) -> str:
        """Name of the policy whose figures are subtracted from those of all others."""
        return str(self.info["reference_policy"])

    @cached_property
    def missing_rhos(self) -> dict[str, list[float]]:
        """{policy: values of rho at which only other policies were replayed}.

        No policy is compared at such a rho.
        """
        mart = self.mart("missing_rhos")
        return {policy: sorted(rows["rho"]) for policy, rows in mart.groupby("policy")}

    @cached_property
    def compared(self) -> frozenset[float]:
        """Values of rho at which all policies of the pool were replayed."""
        left_out = {rho for rhos in self.missing_rhos.values() for rho in rhos}
        return frozenset(set(self.mart("utility_by_rho")["rho"]) - left_out)

    @cached_property
    def estimates(self) -> dict[tuple[str, float], dict[str, Any]]:
        """Rows of `mart_off_policy` as {(policy, rho): {estimator and outcome, such as `dr utility`: row}}.

        A policy that could not be estimated at a rho has one row, under the key `refused`. Its column
        `refused` says why.
        """
        by_policy: dict[tuple[str, float], dict[str, Any]] = {}
        for row in self.mart("off_policy").itertuples():
            if isinstance(row.refused, str):
                name = "refused"
            else:
                name = f"{row.estimator} {row.outcome}"
            by_policy.setdefault((row.policy, row.rho), {})[name] = row
        return by_policy

    def missing_text(self) -> str:
        """Return sentences that name the missing replays and the command that makes them.

        At most `_SHOWN` policies are named. Empty if no replay is missing.
        """
        if not self.missing_rhos:
            return ""
        lacking = "; ".join(
            f"{p} lacks {rhos_text(rhos)}" for p, rhos in list(self.missing_rhos.items())[:_SHOWN]
        )
        if len(self.missing_rhos) > _SHOWN:
            more = f"; and {len(self.missing_rhos) - _SHOWN} more policies"
        else:
            more = ""
        left_out = sorted({rho for rhos in self.missing_rhos.values() for rho in rhos})
        return (
            f"Incomplete: ρ = {rhos_text(left_out)} left out of every comparison, because not all policies "
            f"were replayed there ({lacking}{more}). `cabs run --pool {self.pool}` replays what is missing. "
            f"ρ is {self.scale.rho}."
        )

    def unranked_text(self) -> str:
        """Return the reason why the pool has no ranking, to stand after a colon."""
        if self.missing_rhos:
            return f"no rho at which all policies were replayed. {self.missing_text()}"
        return "no real router was replayed, only upper bounds."

    @cached_property
    def ranked(self) -> list[str]:
        """Names of the ranked policies, the best first. Upper bounds, which see all rewards, have no rank."""
        return list(self.board[self.board["rank"].notna()]["policy"])

    @property
    def best(self) -> str:
        """Name of the ranked policy with the highest mean utility.

        Raises:
            ResultError: no policy has a rank, or at no rho all policies were replayed.
        """
        if not self.ranked:
            raise ResultError(f"pool {self.pool!r} has no ranking: {self.unranked_text()}")
        return self.ranked[0]

    @property
    def routers(self) -> list[str]:
        """Ranked policies that route by prompt, best first: no single model and no random choice."""
        return [policy for policy in self.ranked if policy not in NO_ROUTERS]

    @property
    def scale(self) -> Scale:
        """Words in which the page speaks of scores: as right answers, or as comparisons won before a judge.

        The settings of the pool say which of the two its scores are.
        """
        return Scale.of(self.settings)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings of the pool file with which the replays were made, as plain values."""
        settings: dict[str, Any] = json.loads(self.info["pool_settings"] or "{}")
        return settings

    def pair(self, policy: str, baseline: str, regime: str = "overall") -> pd.Series | None:
        """Return the row of the paired difference `policy` minus `baseline` in mean utility.

        Return None if the mart has no such pair.

        Args:
            regime: a cost regime, or `overall` for the mean of all regimes.
        """
        key = (regime, policy, baseline)
        if key in self.pairs.index:
            return self.pairs.loc[key]
        return None

    @cached_property
    def twins(self) -> pd.DataFrame:
        """Rows of `mart_encoder_robustness` of this pool and of those that differ only in the encoder."""
        mart = read_mart(self.artifacts_dir, "mart_encoder_robustness")
        return mart[mart["comparison_group"] == self.info["comparison_group"]]

    def twin(self, policy: str, pool: str) -> tuple[float, float, bool] | None:
        """Return the mean utility of a policy in this pool minus that in a pool with another encoder.

        Returns:
            (difference, standard error, True if the difference is significant at 5 %). None if the mart does
            not compare the two pools: it compares all pools of a group with the first one of the group.
        """
        rows = self.twins[(self.twins["policy"] == policy) & (self.twins["regime"] == "overall")]
        for compared, first, sign in ((self.pool, pool, 1), (pool, self.pool, -1)):
            found = rows[rows["pool"] == compared]
            if found.empty:
                continue
            row = found.iloc[0]
            if row["baseline_pool"] == first and pd.notna(row["difference"]):
                return sign * float(row["difference"]), float(row["difference_se"]), bool(row["significant"])
        return None

    def interval(self, policy: str) -> tuple[float, float]:
        """Return the two-sided 95 % interval of a policy's mean utility, over trials and queries."""
        line = self.regimes.loc[policy, "overall"]
        error = two_way_error(
            float(line["utility_se_trials"]),
            float(line["utility_se_queries"]),
            int(line["trials"]),
            int(self.info["independent"]),
        )
        return score_interval(float(line["utility"]), error)

    def value(self, policy: str, regime: str, column: str = "utility") -> float | None:
        """Return a figure of a policy in a cost regime, or None if the mart does not have it.

        Args:
            column: name of a column of `mart_utility_by_regime`.
        """
        key = (policy, regime)
        if key not in self.regimes.index:
            return None
        value = self.regimes.loc[key, column]
        if pd.isna(value):
            return None
        return float(value)
