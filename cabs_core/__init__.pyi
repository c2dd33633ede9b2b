"""The public names and where each of them is; `__init__.py` reads them here."""

from cabs_core.algorithms.oracles.from_arrays import problems_from_arrays as problems_from_arrays
from cabs_core.algorithms.policies.policy import Policy as Policy
from cabs_core.algorithms.policies.registry import build_policy as build_policy
from cabs_core.algorithms.policies.registry import load_policy as load_policy
from cabs_core.algorithms.policies.request import Decision as Decision
from cabs_core.algorithms.policies.request import Request as Request
from cabs_core.algorithms.policies.safe import SafePolicy as SafePolicy
from cabs_core.algorithms.problem.replay_problem import ReplayProblem as ReplayProblem
from cabs_core.algorithms.problem.synthetic import synthetic_problem as synthetic_problem
from cabs_core.algorithms.solver.api import solve_exploration as solve_exploration
from cabs_core.base.errors import CabsError as CabsError
from cabs_core.data.events.log import EventLog as EventLog
from cabs_core.data.logs.read import read_log as read_log
from cabs_core.data.outcomes import load_outcomes as load_outcomes
from cabs_core.data.pools.find import find_pool as find_pool
from cabs_core.evaluation.ope.evaluate import evaluate as evaluate
from cabs_core.evaluation.replay.compare import frontier as frontier
from cabs_core.evaluation.replay.compare import paired_difference as paired_difference
from cabs_core.evaluation.replay.compare import replay_many as replay_many
from cabs_core.evaluation.replay.result import ReplayResult as ReplayResult
from cabs_core.evaluation.replay.tuning import tune as tune
from cabs_core.pipeline.policy_checks import check_policy as check_policy
from cabs_core.report.plots.results import plot_frontier as plot_frontier
from cabs_core.report.plots.results import plot_regret as plot_regret
from cabs_core.router.options import RouterOptions as RouterOptions
from cabs_core.router.router import Router as Router

__version__: str
__all__: list[str]
