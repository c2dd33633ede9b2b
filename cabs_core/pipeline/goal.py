"""Answers to the goals of pools, from the artifacts of their chains."""

from dataclasses import replace

from cabs_core.base.errors import DataError, ProvenanceError, RouterError
from cabs_core.data.pool_files.goals import Goal
from cabs_core.pipeline.answer import answer_for_chain, evidence_for_chain
from cabs_core.pipeline.artifacts import Chain
from cabs_core.report.evidence import Evidence
from cabs_core.report.pool_answer import GoalAnswer, PoolAnswer


def answer_for(chain: Chain, goal: Goal, *, anyway: bool = False) -> GoalAnswer:
    """Return the option that fulfils a goal, or the answer that none does.

    Args:
        anyway: answer although the artifacts are of older data, or of data that failed a check since.

    Raises:
        ProvenanceError: the pool's chain has not been run or, unless `anyway` is True, not on the data at
            hand.
        ResultError: no replay is in the marts, or the replay problem of the marts is gone.
        DataError: the goal names a model or asks for latencies that the table does not have, or the pool has
            no answer.
    """
    pool = chain.pool.name
    older = None if anyway else chain.older_figures()
    if older is not None:
        raise ProvenanceError(f"pool {pool}: {older} `cabs run --pool {pool}` first")
    found = answer_for_chain(chain, evidence_for_chain(chain), goal=goal, anyway=True)
    assert found.goal is not None
    return found.goal


def answer_with_goal(chain: Chain, evidence: Evidence | None) -> PoolAnswer:
    """Return the pool's answer, with the answer to its own goal or the reason why the goal has none.

    Raises:
        DataError: the pool has no answer even without its goal, see `answer_for_chain`.
    """
    goal = chain.pool.goal
    try:
        return answer_for_chain(chain, evidence, goal=goal)
    except DataError as error:
        if goal is None:
            raise
        found = answer_for_chain(chain, evidence)
        return replace(found, goal=GoalAnswer(goal.text, str(error)))


def check_fulfilled(answer: GoalAnswer, otherwise: str) -> None:
    """Raise an error if no router fulfils the goal beyond noise.

    Args:
        otherwise: how to have a router all the same, in words.

    Raises:
        RouterError: another option fulfils the goal, none does, or noise may explain that the router does.
    """
    if answer.policy is None or not answer.confirmed:
        raise RouterError(f"no router fulfils the goal {answer.goal!r}: {otherwise}")
