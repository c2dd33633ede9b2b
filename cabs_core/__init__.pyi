"""The public names and where each of them is; `__init__.py` reads them here."""

from cabs_core.chain.policy_checks import check_policy as check_policy
from cabs_core.errors import CabsError as CabsError
from cabs_core.logs import read_log as read_log
from cabs_core.ope import evaluate as evaluate
from cabs_core.oracles import problems_from_arrays as problems_from_arrays
from cabs_core.outcomes import load_outcomes as load_outcomes
from cabs_core.plots import plot_frontier as plot_frontier
from cabs_core.plots import plot_regret as plot_regret
from cabs_core.policies import Decision as Decision
from cabs_core.policies import Policy as Policy
from cabs_core.policies import Request as Request
from cabs_core.policies import SafePolicy as SafePolicy
from cabs_core.policies import build_policy as build_policy
from cabs_core.policies import load_policy as load_policy
from cabs_core.pools import find_pool as find_pool
from cabs_core.problem import ReplayProblem as ReplayProblem
from cabs_core.problem.synthetic import synthetic_problem as synthetic_problem
from cabs_core.replay import ReplayResult as ReplayResult
from cabs_core.replay.compare import frontier as frontier
from cabs_core.replay.compare import paired_difference as paired_difference
from cabs_core.replay.compare import replay_many as replay_many
from cabs_core.replay.tuning import tune as tune
from cabs_core.router.events import EventLog as EventLog
from cabs_core.router.router import Router as Router
from cabs_core.solver import solve_exploration as solve_exploration

__version__: str
__all__: list[str]
