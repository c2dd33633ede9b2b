"""The marts of one pool, as the page needs them. Reads parquet; computes no metric."""

import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from cabs_core.base.catalog.regimes import REGIMES
from cabs_core.base.catalog.roles import NO_ROUTERS
from cabs_core.base.errors import ResultError
from cabs_core.base.statistics.uncertainty import two_way_error
from cabs_core.report.scale import Scale

_SHOWN = 5
LEVELS = (*REGIMES, "overall")


def read_mart(artifacts_dir: str | Path, name: str, pool: str | None = None) -> pd.DataFrame:
    """Rows of a mart (of one pool, if given).

    Raises:
        ResultError: the mart has not been built.
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
    """`0, 50, 100 and 4 more`: at most so many rhos."""
    named = ", ".join(f"{rho:g}" for rho in rhos[:most])
    return named + (f" and {len(rhos) - most} more" if len(rhos) > most else "")


@dataclass(frozen=True)
class PoolData:
    """Lazily read marts of one pool."""

    pool: str
    artifacts_dir: Path

    def mart(self, name: str) -> pd.DataFrame:
        """Rows of a mart of this pool."""
        return read_mart(self.artifacts_dir, f"mart_{name}", self.pool)

    @cached_property
    def info(self) -> dict[str, Any]:
        """The pool's row of stg_pools.

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
        """mart_policy_leaderboard, indexed by policy, best first."""
        board = self.mart("policy_leaderboard").set_index("policy", drop=False)
        return board.sort_values(["rank", "utility"], ascending=[True, False], na_position="last")

    @cached_property
    def regimes(self) -> pd.DataFrame:
        """mart_utility_by_regime, indexed by (policy, regime)."""
        return self.mart("utility_by_regime").set_index(["policy", "regime"], drop=False).sort_index()

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """mart_pairwise_differences, indexed by (regime, policy, baseline)."""
        return (
            self.mart("pairwise_differences")
            .set_index(["regime", "policy", "baseline"], drop=False)
            .sort_index()
        )

    @property
    def reference(self) -> str:
        """The policy that relative figures are against."""
        return str(self.info["reference_policy"])

    @cached_property
    def missing(self) -> dict[str, list[float]]:
        """{policy: rhos that it lacks and another policy has}; such a rho is compared for none."""
        mart = self.mart("missing_rhos")
        return {policy: sorted(rows["rho"]) for policy, rows in mart.groupby("policy")}

    @cached_property
    def compared(self) -> frozenset[float]:
        """Rhos at which all policies of the pool were replayed."""
        left_out = {rho for rhos in self.missing.values() for rho in rhos}
        return frozenset(set(self.mart("utility_by_rho")["rho"]) - left_out)

    @cached_property
    def estimates(self) -> dict[tuple[str, float], dict[str, Any]]:
        """{(policy, rho): {`dr utility`, `dr score`, `snips utility`, ...: row}} of mart_off_policy.

        What could not be estimated has one row, under `refused`, which says why in its column of that name.
        """
        by_policy: dict[tuple[str, float], dict[str, Any]] = {}
        for row in self.mart("off_policy").itertuples():
            name = "refused" if isinstance(row.refused, str) else f"{row.estimator} {row.outcome}"
            by_policy.setdefault((row.policy, row.rho), {})[name] = row
        return by_policy

    def missing_text(self) -> str:
        """One sentence on what is missing and what to do; empty where nothing is."""
        if not self.missing:
            return ""
        lacking = "; ".join(f"{p} lacks {rhos_text(rhos)}" for p, rhos in list(self.missing.items())[:_SHOWN])
        more = f"; and {len(self.missing) - _SHOWN} more policies" if len(self.missing) > _SHOWN else ""
        left_out = sorted({rho for rhos in self.missing.values() for rho in rhos})
        return (
            f"Incomplete: ρ = {rhos_text(left_out)} left out of every comparison, because not all policies "
            f"were replayed there ({lacking}{more}). `cabs run --pool {self.pool}` replays what is missing. "
            f"ρ is {self.scale.rho}."
        )

    def unranked_text(self) -> str:
        """Why there is no ranking."""
        if self.missing:
            return f"no rho at which all policies were replayed. {self.missing_text()}"
        return "no real router was replayed, only upper bounds."

    @cached_property
    def ranked(self) -> list[str]:
        """Real routers, best first, over the rhos that all policies have."""
        return list(self.board[self.board["rank"].notna()]["policy"])

    @property
    def best(self) -> str:
        """The best real router.

        Raises:
            ResultError: there is no real router, or no rho at which all policies were replayed.
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
        """What a score counts."""
        return Scale.of(self.settings)

    @cached_property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads(self.info["pool_settings"] or "{}")
        return settings

    def pair(self, policy: str, baseline: str, regime: str = "overall") -> pd.Series | None:
        """Paired difference policy - baseline, or None where there is none."""
        key = (regime, policy, baseline)
        return self.pairs.loc[key] if key in self.pairs.index else None

    @cached_property
    def twins(self) -> pd.DataFrame:
        """mart_encoder_robustness of this pool's comparison group, all its pools."""
        mart = read_mart(self.artifacts_dir, "mart_encoder_robustness")
        return mart[mart["comparison_group"] == self.info["comparison_group"]]

    def twin(self, policy: str, pool: str) -> tuple[float, float, bool] | None:
        """(difference, standard error, significant) of a policy here minus in a pool with another encoder.

        None where the mart does not compare the two: it compares all pools of a group with its first one.
        """
        for ours, theirs, sign in ((self.pool, pool, 1), (pool, self.pool, -1)):
            part = self.twins
            part = part[(part["policy"] == policy) & (part["regime"] == "overall") & (part["pool"] == ours)]
            if len(part) and part["baseline_pool"].iloc[0] == theirs and pd.notna(part["difference"].iloc[0]):
                row = part.iloc[0]
                return sign * float(row["difference"]), float(row["difference_se"]), bool(row["significant"])
        return None

    def interval(self, policy: str) -> tuple[float, float]:
        """95 % interval of a policy's mean utility, over trials and queries."""
        line = self.regimes.loc[policy, "overall"]
        over = float(line["utility_se_trials"]), float(line["utility_se_queries"])
        error = two_way_error(*over, int(line["trials"]), int(self.info["independent"]))
        return replace(error, unit=1.0).of_a_score(float(line["utility"]))

    def value(self, policy: str, regime: str, column: str = "utility") -> float | None:
        """A column of a policy's row for a regime; None: no such row, or not known."""
        key = (policy, regime)
        if key not in self.regimes.index:
            return None
        value = self.regimes.loc[key, column]
        return None if pd.isna(value) else float(value)
