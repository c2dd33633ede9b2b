"""Ridge models with one model for every arm, as the linear policies use, grow and save them.

Arm j has the model A_j = lambda I + sum of x x', theta_j = A_j^-1 sum of y x, over the rounds in which it was
played. x is the context and y the target (option `target`). The option `warm` lets the model start from the
train split. Updates of A_j^-1 are in `regression.ridge`.

How a policy chooses an arm from these models stands in its own module: `epsilon_greedy`, `square_cb`,
`lin_ucb`, `lin_ts`. K is the number of arms, d the number of features.
"""

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.play import CompiledPolicy, Lane, Stream
from cabs_core.algorithms.policies.policy import PolicyOptions
from cabs_core.algorithms.policies.request import Choice, Decision, Offline, Outcome, Reads, Request
from cabs_core.algorithms.regression.ridge import (
    diluted_inverse,
    dot,
    observe,
    quadratic,
    start_inverse,
    warm_start,
)
from cabs_core.base.compiled.jit import kernel, kernel_part
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import margin


class ModelOptions(PolicyOptions):
    """Options of the ridge models.

    penalty: lambda of the ridge; 10 is the paper's.
    warm: kappa, weight of a row of the train split against an online one; 0 is a cold start.
    regression: `ridge`, or `vaw` (Vovk-Azoury-Warmuth: the prediction is divided by 1 + x'A^-1 x).
    """

    penalty: float = Field(10.0, gt=0, le=1e9)
    warm: float = Field(0.0, ge=0, le=1)
    regression: Literal["ridge", "vaw"] = "ridge"


class BanditOptions(ModelOptions):
    """Options of the linear bandits.

    target: quantity that the models learn. `utility` is the clipped utility at the policy's rho, as in the
        paper. With `score` they learn the score, and one model serves every rho: a utility is then the
        predicted score times max(0, 1 - rho c) at predicted cost c.
    """

    target: Literal["utility", "score"] = "utility"


class RidgeModels(NamedTuple):
    """The models of all arms, and work space for their predictions.

    Attributes:
        inverse: [K, d, d], A_j^-1 as lower triangles. If `is_shared`, all arms use inverse[0].
        theta: [K, d], coefficients.
        is_shared: True if all arms have seen the same rows and therefore share one matrix.
        is_vaw: True for the regression `vaw`.
        values: [K], predicted utilities. variances: [K], squared confidence widths of these predictions.
        gain: [d], work space of updates.
    """

    inverse: np.ndarray
    theta: np.ndarray
    is_shared: bool
    is_vaw: bool
    values: np.ndarray
    variances: np.ndarray
    gain: np.ndarray


class RidgeData(NamedTuple):
    """Arrays of n queries, or of one request (n = 1), as the kernels take them.

    Attributes:
        contexts: [n, d]. targets: [n, K], realised score or utility of every arm. Linear bandits read
            the target of the played arm alone. A request, whose outcome is not known yet, has zeros.
        margins: [n, K], factors that turn predictions into utilities: max(0, 1 - rho c) at predicted cost c
            for target `score`, ones for target `utility`.
    """

    contexts: np.ndarray
    targets: np.ndarray
    margins: np.ndarray


@kernel
def predict(
    models: RidgeModels, x: np.ndarray, margins: np.ndarray, mask: np.ndarray, needs_variances: bool
) -> None:
    """Fill `models.values` [K] with predicted utilities at context x [d], -inf for arms that are not
    available.

    If `needs_variances` is True, fill `models.variances` [K] with margin^2 w_j, w_j = x'A_j^-1 x, or margin^2
    w_j / (1 + w_j) for the regression `vaw`; 0 for arms that are not available. Otherwise the caller
    must not read `models.variances`.
    """
    # each array is taken out of its tuple once, because every access counts its references
    inverse = models.inverse
    theta = models.theta
    values = models.values
    variances = models.variances
    is_shared = models.is_shared
    is_vaw = models.is_vaw
    squared_width = 0.0
    for j in range(values.size):
        if not mask[j]:
            values[j] = -np.inf
            variances[j] = 0.0
            continue
        value = dot(theta[j], x)
        if needs_variances or is_vaw:
            if not is_shared or squared_width == 0.0:
                squared_width = quadratic(inverse[0 if is_shared else j], x)
            variance = squared_width
            if is_vaw:
                value /= 1.0 + squared_width
                variance = squared_width / (1.0 + squared_width)
            variances[j] = variance * margins[j] * margins[j]
        values[j] = value * margins[j]


@kernel_part
def best_arm(values: np.ndarray) -> int:
    """Return the index of the largest of values [K], the first of equals."""
    best = 0
    for j in range(1, values.size):
        if values[j] > values[best]:
            best = j
    return best


@kernel
def learn_played_arm(parts: Any, data: RidgeData, row: int, arm: int, slot: int) -> None:
    """Add the row (context, target) to the model of the played arm.

    Args:
        parts: NamedTuple of a bandit with a field `models`, whose arms do not share a matrix.
        row: index of the query in `data`. arm: the played arm. slot: not used.
    """
    models = parts.models
    x = data.contexts[row]
    observe(models.inverse[arm], models.theta[arm], x, data.targets[row, arm], 1.0, models.gain)


class RidgePolicy(CompiledPolicy):
    """Base of the policies with a ridge model for every arm. The base holds, grows and saves the models.

    Attributes:
        models: the learnt arrays, and work space.
    """

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"warm": {"warm": 0.3}}
    needs_context: ClassVar[bool] = True
    #: True if all arms see the same rows from the start, and therefore share one matrix
    starts_shared: bool = False

    @property
    def target(self) -> str:
        """Target of the models: `utility` at the policy's rho, or `score`."""
        target: str = self.settings.target
        return target

    def reads(self) -> Reads:
        """Return the fields that the policy reads: the context, and costs if the models learn scores."""
        return Reads(context=True, costs=self.any_rho_now())

    def any_rho_now(self) -> bool:
        """Return True if the models learn scores, which serve every rho."""
        return self.target == "score"

    def start(self, offline: Offline | None) -> None:
        """Start from the train split if the option `warm` is positive, otherwise with cold models.

        The models are also cold if `offline` is None or has no rows.
        """
        k = len(self.arms)
        inverse = start_inverse(k, self.dim, self.settings.penalty)
        theta = np.zeros((k, self.dim))
        if self.settings.warm > 0 and offline is not None and len(offline):
            one_inverse, theta[:] = warm_models(offline, self.settings, self.target)
            inverse[:] = one_inverse
        self._set_models(inverse, theta, is_shared=self.starts_shared)
        self.resized()

    def _set_models(self, inverse: np.ndarray, theta: np.ndarray, *, is_shared: bool) -> None:
        """Set `models`, with work space for its arms."""
        k = len(theta)
        self.models = RidgeModels(
            inverse=np.ascontiguousarray(inverse),
            theta=np.ascontiguousarray(theta),
            is_shared=is_shared,
            is_vaw=self.settings.regression == "vaw",
            values=np.zeros(k),
            variances=np.zeros(k),
            gain=np.zeros(self.dim),
        )

    def unshare(self) -> None:
        """Give every arm its own matrix, because from now on arms may see different rows."""
        if self.models.is_shared:
            self.models.inverse[1:] = self.models.inverse[0]
            self.models = self.models._replace(is_shared=False)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the models; everything else follows from the options."""
        arrays = {"inverse": self.models.inverse, "theta": self.models.theta}
        return arrays, {"shared": self.models.is_shared}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore the models.

        Raises:
            PolicyError: the state says that arms share a matrix, and arms of this policy never do.
        """
        is_shared = values["shared"]
        if is_shared is not False and not (is_shared is True and self.starts_shared):
            raise PolicyError(
                f"{self.name}: shared {states.excerpt(is_shared, 80)} does not fit {self.starts_shared}"
            )
        self._set_models(np.array(arrays["inverse"]), np.array(arrays["theta"]), is_shared=is_shared)

    def layout(self) -> dict[str, states.Field]:
        """Return {name: shape and limits} of the arrays of `state`, by which saved files are checked."""
        k = len(self.arms)
        return {
            "inverse": states.learnt(k, self.dim, self.dim),
            "theta": states.learnt(k, self.dim),
        }

    def check_state(self, where: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Check that no saved inverse matrix has a negative entry on its diagonal.

        Args:
            where: name of the file or state in the error message. arrays: the arrays of `state`.

        Raises:
            PolicyError: an entry on a diagonal is negative.
        """
        states.check_variances(where, "inverse", arrays["inverse"])

    def add_arm(self) -> None:
        """Add an arm with a cold model."""
        self.unshare()
        fresh = start_inverse(1, self.dim, self.settings.penalty)
        self._set_models(
            np.concatenate([self.models.inverse, fresh]),
            np.concatenate([self.models.theta, np.zeros((1, self.dim))]),
            is_shared=False,
        )

    def remove_arm(self, index: int) -> None:
        """Remove the model of the arm at `index`."""
        self.unshare()
        inverse = np.delete(self.models.inverse, index, axis=0)
        theta = np.delete(self.models.theta, index, axis=0)
        self._set_models(inverse, theta, is_shared=False)

    @property
    def can_resemble(self) -> bool:
        """Always True: a new arm can start at the estimate of another arm."""
        return True

    def resemble(self, arm: int, margin: float) -> None:
        """Start the last arm at the estimate of arm `arm`, with the certainty of a few rounds.

        An estimate of utility is multiplied by `margin`.
        """
        factor = margin if self.target == "utility" else 1.0
        self.models.theta[-1] = factor * self.models.theta[arm]
        self.models.inverse[-1] = inverse_of_joined_arm(self.models.inverse[arm], self.settings.penalty)


class RidgeBandit(RidgePolicy):
    """Base of the linear bandits. A subclass gives the rule of choice.

    The bandits learn from the played arm alone, except `LinUCBFull`, which overrides `learn`.

    Attributes:
        decide_kernel: the kernel `decide` of the subclass (`play`), as `staticmethod`.
        pmf: [K], probabilities of the last choice, which `decide` fills.
    """

    decide_kernel: ClassVar[Any]

    @abstractmethod
    def parts(self, lane: Lane | None = None) -> Any:
        """Return a NamedTuple for the kernel `decide`, with the field `models`.

        Args:
            lane: the trial that is played, or None for a single request. The linear bandits return equal
                parts for both, since they keep nothing in a lane.
        """

    def resized(self) -> None:
        """Allocate `pmf` and other work space anew, after `start` or a change of the number of arms."""
        k = len(self.arms)
        self.pmf = np.zeros(k)
        self._no_targets = np.zeros((1, k))

    def data(self, stream: Stream) -> RidgeData:
        """Return the arrays of a replay. They are computed once per stream, target and rho."""
        return stream.once(f"ridge:{self.target}:{self.rho!r}", partial(ridge_data, stream, self.target))

    def memory_layout(self, arms: int) -> dict[str, states.Field]:
        """Return the fields that are remembered of a decision: `context` and `baseline`.

        `learn` reads the context. `baseline` has the predicted utilities of `arms` arms, clipped to [0, 1],
        which explain the decision.
        """
        return {"context": states.Field((self.dim,)), "baseline": states.probabilities(arms)}

    def choose(self, request: Request) -> Choice:
        """Play one round of `decide` on the request as a table with one row."""
        k = len(self.arms)
        rho = self.rho_of(request)
        mask = self.mask(request)
        x = self.need(request, "context", self.dim)
        margins = np.ones(k)
        if self.target == "score":
            margins = margin(self.need(request, "predicted_costs", k, 0.0), rho)
        row = RidgeData(x.copy()[None], self._no_targets, margins[None])
        arm, probability = self.decide_kernel(self.parts(), row, 0, mask, self.round, 0, self.new_trace())
        memory = {"context": row.contexts[0], "baseline": np.clip(self.models.values, 0.0, 1.0)}
        return Choice(int(arm), float(probability), self.pmf.copy(), rho, memory)

    def learn(self, decision: Decision, outcome: Outcome) -> None:
        """Add the outcome to the model of the played arm, with the context that `choose` remembered."""
        if self.target == "score":
            target = outcome.score
        else:
            target = outcome.utility(decision.rho)
        x = outcome.memory["context"]
        observe(
            self.models.inverse[outcome.arm],
            self.models.theta[outcome.arm],
            x,
            target,
            1.0,
            self.models.gain,
        )


def ridge_data(stream: Stream, target: str) -> RidgeData:
    """Return the arrays of a stream for models that learn `utility` or `score`."""
    if target == "score":
        return RidgeData(stream.contexts, stream.scores, margin(stream.predicted_costs, stream.rho))
    return RidgeData(stream.contexts, stream.utilities, np.ones_like(stream.utilities))


def warm_models(offline: Offline, options: ModelOptions, target: str) -> tuple[np.ndarray, np.ndarray]:
    """Return A^-1 [d, d], which is the same for all arms, and theta [K, d], fitted to the train split with
    the options `penalty` and `warm`.
    """
    if target == "score":
        targets = offline.scores
    else:
        targets = offline.utilities
    compute = partial(warm_start, offline.contexts, targets, options.penalty, options.warm)
    return offline.once(("warm", options.penalty, options.warm, target), compute)


def inverse_of_joined_arm(inverse: np.ndarray, penalty: float) -> np.ndarray:
    """Return A^-1 [d, d] of an arm that starts like the arm of `inverse`, as sure as after a few rounds."""
    # the package of predictors takes a third of a second
    from cabs_core.algorithms.predictors.features import CONSTANT  # noqa: PLC0415

    return diluted_inverse(inverse, penalty, CONSTANT)
