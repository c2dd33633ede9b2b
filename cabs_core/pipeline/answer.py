"""The answer of a pool from the artifacts of its chain: one function that page, export and goals read."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from cabs_core.base.catalog.policies import is_deployable
from cabs_core.base.errors import ProvenanceError, ResultError
from cabs_core.data.collect.source import read_people
from cabs_core.data.inputs import embeddings_of, outcomes_of, splits_of
from cabs_core.data.outcomes import Outcomes
from cabs_core.data.pool_files.goals import Goal
from cabs_core.pipeline.artifacts import Chain
from cabs_core.pipeline.stages.router_summary import VALIDATION_PLAYS, RouterSummary
from cabs_core.report.data import PoolData
from cabs_core.report.evidence import Evidence, load_evidence
from cabs_core.report.pool_answer import Inputs, PoolAnswer, answer_of_pool
from cabs_core.report.pool_goal import goal_of_pool

_TABLE = ("outcomes", "splits", "prompt_embeddings")


def answer_for_chain(
    chain: Chain, evidence: Evidence | None, *, goal: Goal | None = None, anyway: bool = False
) -> PoolAnswer:
    """Return the answer of a pool whose chain has run.

    Args:
        evidence: the replays of the pool. None for a log, which is not replayed.
        goal: a goal to answer from the same data. If None, no goal is answered.
        anyway: answer although artifacts are of older data, or of data that failed a check since.

    Raises:
        ProvenanceError: the chain has not been run, or not on the data at hand. DataError: see
            `answer_of_pool` and `goal_of_pool`.
    """

    older = None if anyway else chain.older_figures()
    if older is not None:
        raise ProvenanceError(f"{older} Run it again, or say --anyway to have the answer all the same.")
    inputs: dict[str, Path] = {name: chain.verified(chain.stage(name)) for name in _TABLE}
    record = chain.store.record(chain.stage("router").parts)
    if record is None:
        router = None
    else:
        router = RouterSummary.of(record)
    splits = splits_of(inputs)
    chosen = None
    if router is not None and router.policy and router.rho is not None:
        chosen = (router.policy, router.rho)
    if chain.pool.logged:
        held_out_plays, validation_plays = _plays_of_log(chain)
    else:
        held_out_plays = None
        if len(splits) > 1:
            validation_plays = _validation_plays(chain)
        else:
            validation_plays = None
    table = outcomes_of(inputs)
    made_from = Inputs(
        pool=chain.pool,
        table=table,
        splits=splits,
        vectors=embeddings_of(inputs),
        evidence=evidence,
        chosen=chosen,
        validation_plays=validation_plays,
        held_out_plays=held_out_plays,
        deployable=tuple(p for p in chain.pool.policies if is_deployable(p)),
        people=_people(chain, table),
    )
    found = answer_of_pool(made_from)
    if goal is None:
        return found
    return replace(found, goal=goal_of_pool(goal, made_from, found))


def _people(chain: Chain, table: Outcomes) -> np.ndarray | None:
    """Return the scores that people gave to answers, `[n, K]`, NaN where nobody gave one.

    Return None if the pool's answers were not collected or no score of people counts (`read_people`).
    """
    if not chain.pool.collected:
        return None
    folder = chain.verified(chain.stage("scores"))
    return read_people(folder, [str(name) for name in table.query_ids], table.arms)


def _validation_plays(chain: Chain) -> pd.DataFrame | None:
    """Return the policies' plays on the validation queries of every fold.

    Return None if there are no plays, or if all of them are from an earlier division into folds: their
    policies were fitted on prompts that are now held out.
    """
    router = chain.stage("router")
    record = chain.store.record(router.parts)
    problem = chain.store.record(chain.stage("replay_problem").parts)
    if record is None or problem is None or record.inputs["replay_problem"] != problem.content:
        return None
    return pd.read_parquet(chain.verified(router) / VALIDATION_PLAYS)


def _plays_of_log(chain: Chain) -> tuple[pd.DataFrame | None, pd.DataFrame | None]:
    """Return what the policies of a log would play on its test and on its validation queries.

    Both are None if the estimates were not made.
    """
    from cabs_core.pipeline.stages.off_policy import HELD_OUT_PLAYS  # noqa: PLC0415  (numba takes seconds)

    target = chain.stage("off_policy")
    if chain.store.record(target.parts) is None:
        return None, None
    plays = pd.read_parquet(chain.verified(target) / HELD_OUT_PLAYS)
    tested = plays["part"] == "test"
    return plays[tested], plays[~tested]


def evidence_for_chain(chain: Chain) -> Evidence | None:
    """Return the replays behind the pool's marts, or None if the pool's source is a log.

    Raises:
        ResultError: no replay is in the marts, or the replay problem of the marts is gone.
    """
    from cabs_core.pipeline.stages.replay import trace_again  # noqa: PLC0415  (numba takes seconds)

    if chain.pool.logged:
        return None
    name = chain.pool.name
    artifacts = chain.store.root
    if chain.store.remote:
        for parts in (("marts",), ("replay", name), ("replay_problem", name)):
            artifacts = chain.store.mirror(parts)
    evidence = load_evidence(
        PoolData(name, artifacts), again=lambda policy, rho: trace_again(chain, policy, rho)
    )
    if evidence is None:
        raise ResultError(
            f"the problem that the marts are of is gone: `cabs run --pool {name}` makes all anew"
        )
    return evidence
