"""The answer to a pool's goal, from the artifacts of its chain."""

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.catalog.policies import policy_label
from cabs_core.base.catalog.roles import NO_ROUTERS
from cabs_core.base.errors import RouterError
from cabs_core.data.inputs import tuned_options
from cabs_core.data.pool_files.goals import Goal
from cabs_core.pipeline.artifacts import Chain
from cabs_core.router.build import deployable
from cabs_core.router.goals import GoalAnswer, answer_goal

#: orders that learning policies are averaged over
_TRIALS = 5


def answer_for(chain: Chain, goal: Goal, *, anyway: bool = False) -> GoalAnswer:
    """Which of the pool's models and routers fulfils a goal: chosen on validation, confirmed on test.

    Args:
        anyway: answer although the artifacts are of older data, or of data that failed a check since.

    Raises:
        ProvenanceError: the pool's chain has not been run, or not on the data at hand. DataError: see
            `answer_goal`.
    """
    targets = {name: chain.stage(name) for name in ("replay_problem", "tuning")}
    if not anyway:
        chain.require_current(targets.values())
    inputs = {name: chain.verified(target) for name, target in targets.items()}
    pool = chain.pool
    return answer_goal(
        goal,
        ReplayProblem.load(inputs["replay_problem"] / "validation"),
        ReplayProblem.load(inputs["replay_problem"] / "test"),
        [p for p in pool.policies if deployable(p) and p not in NO_ROUTERS],
        rhos=pool.replay.rhos,
        options=tuned_options(inputs),
        trials=min(pool.replay.trials, _TRIALS),
        seed=pool.replay.order_seed,
        label=policy_label,
    )


def check_fulfilled(answer: GoalAnswer, otherwise: str) -> None:
    """A router fulfils the goal, for sure.

    Args:
        otherwise: what has one all the same, in words.

    Raises:
        RouterError: none does.
    """
    if answer.policy is None or not answer.confirmed:
        raise RouterError(f"no router fulfils the goal {answer.goal!r}: {otherwise}")
