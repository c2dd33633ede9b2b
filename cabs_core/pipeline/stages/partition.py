"""One partition (pool, rho) of replays: policies that changed are computed, the others are kept.

rho is in score units per USD.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cabs_core.base.errors import explained, is_transient
from cabs_core.base.hashing import stable_hash
from cabs_core.pipeline.artifacts import Chain, Made, Options, Target, make_artifact
from cabs_core.pipeline.stages.replay import ReplaySummary, examine_again


@dataclass(frozen=True)
class Partition:
    """Replays of a pool at one rho, after a run.

    Attributes:
        made: {policy: its replay}, also of policies that were not asked for and are up to date.
        failed: {policy: why it could not be replayed}.
    """

    made: Mapping[str, Made]
    failed: Mapping[str, str]

    @property
    def cells(self) -> dict[str, ReplaySummary]:
        """{policy: summary of its replay}."""
        return {policy: ReplaySummary.of(cell.record) for policy, cell in self.made.items()}

    @property
    def content(self) -> str:
        """Hash of the contents of all replays."""
        return stable_hash({policy: cell.record.content for policy, cell in self.made.items()}, 32)

    def rows(self, missing: Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return one row per policy: the played ones, best utility first, then the missing and the failed.

        A row has policy, utility, se, regret, state in words, and seconds. The figures of a policy that was
        not played are None.

        Args:
            missing: policies that were not played yet.
        """
        rows: list[dict[str, Any]] = [
            {
                "policy": policy,
                "utility": cell.utility,
                "se": round(cell.error, 12),  # of a static policy it is nothing but rounding
                "regret": cell.regret,
                "state": "reused" if self.made[policy].reused else "computed",
                "seconds": self.made[policy].record.seconds,
            }
            for policy, cell in self.cells.items()
        ]
        rows.sort(key=lambda row: -row["utility"])
        nothing = dict.fromkeys(("utility", "se", "regret"))
        states = dict.fromkeys(missing, "not played yet") | {
            p: f"failed: {t}" for p, t in self.failed.items()
        }
        return rows + [
            {"policy": p, **nothing, "state": state, "seconds": None} for p, state in states.items()
        ]


def replay_partition(chain: Chain, rho: float, policies: Sequence[str], options: Options) -> Partition:
    """Replay the named policies that are not up to date at one rho, with `options.force` all of them.

    Replays of the pool's other policies are read if they are up to date. A policy that fails does not stop
    the others.

    Raises:
        Exception: a transient error (see `errors.is_transient`), for the caller to try again.
    """
    made: dict[str, Made] = {}
    failed: dict[str, str] = {}
    for policy in policies:
        try:
            made[policy] = make_artifact(chain, Target("replay", chain.pool, rho, policy), options)
        except Exception as error:
            if is_transient(error):
                raise
            failed[policy] = explained(error)
    for policy in chain.pool.policies:
        target = Target("replay", chain.pool, rho, policy)
        if policy not in policies and chain.status(target).state == "fresh":
            made[policy] = make_artifact(chain, target, replace(options, force=False))
    return Partition(made, failed)


def examine_partition(
    chain: Chain, rho: float, policies: Sequence[str]
) -> tuple[dict[str, Any], dict[str, ReplaySummary], dict[str, str]]:
    """Search the stored replays of a partition for faults, such as missing rounds or rewards outside 0 to 1.

    Files are read as they are now; nothing is played. A replay whose trace was pruned has its recorded
    findings. A policy that cannot be examined does not stop the others.

    Returns:
        ({policy: findings}, {policy: summary}, {policy: why it cannot be examined}). Findings are
        {"problems": a text for each fault, "rounds": number of rounds, "smallest propensity": number}, see
        `examine_again`.
    """
    findings: dict[str, Any] = {}
    cells: dict[str, ReplaySummary] = {}
    failed: dict[str, str] = {}
    for policy in policies:
        target = Target("replay", chain.pool, rho, policy)
        try:
            findings[policy] = examine_again(chain, target)
            cells[policy] = ReplaySummary.of(chain.made(target))
        except Exception as error:
            failed[policy] = explained(error)
    return findings, cells, failed
