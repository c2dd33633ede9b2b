"""Score predictors whose logit is bilinear in the prompt's embedding and a vector per arm, fitted by Adam.

`mf` is the matrix factorisation of RouteLLM and EmbedLLM, s_m = w.(P_m * (W e + b)), with two losses:

    cross_entropy   two-class cross-entropy of every score, with the constants b and one in the classifier
                    (EmbedLLM, arXiv 2410.02223; read in ynulihao/LLMRouterBench,
                    `baselines/EmbedLLM/algorithm/mf.py`). Its loss depends only on the difference of its two
                    logits, so only the difference is modelled here;
    pair            -log sigmoid(s_win - s_lose) for every two arms of a prompt with different scores, P_m of
                    unit length, no b or other constant (RouteLLM, arXiv 2406.18665; read in lm-sys/RouteLLM,
                    `routers/matrix_factorization`). This loss ranks arms but does not calibrate s, so the
                    predicted score is sigmoid(u (s - mean of s over the arms) + v), u, v fitted on train.

Training of `mf` adds normal noise to the embedding with either loss.

`mirt` is the multidimensional item response model of IRT-Router (arXiv 2506.01048): P(correct) =
sigmoid(a(e).theta_m - b(e)), a and b linear. Graded scores enter the cross-entropy as they are.

Training is by Adam (Kingma and Ba 2015), with the L2 term in the gradient. The weights of the epoch of least
held-out loss are kept.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import expit

from cabs_core.algorithms.predictors.base import ScorePredictor, State, Validation, held_out_part
from cabs_core.base.errors import PolicyError

#: prompts of a minibatch
BATCH = 64
#: epochs without a smaller held-out loss after which training ends
PATIENCE = 4


def cross_entropy(logits: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean of -y log p - (1 - y) log(1 - p) at p = sigmoid(logits `[B, K]`), and its gradient."""
    loss = np.logaddexp(0.0, logits) - y * logits
    return float(loss.mean()), (expit(logits) - y) / y.size


def pair_loss(scores: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean of -log sigmoid(s_i - s_j) over pairs with y_i > y_j, and its gradient `[B, K]`.

    The loss is 0 if there is no such pair.
    """
    wins = y[:, :, None] > y[:, None, :]
    count = int(wins.sum())
    if not count:
        return 0.0, np.zeros_like(scores)
    gap = scores[:, :, None] - scores[:, None, :]
    loss = np.where(wins, np.logaddexp(0.0, -gap), 0.0).sum() / count
    pull = np.where(wins, -expit(-gap), 0.0) / count
    return float(loss), pull.sum(axis=2) - pull.sum(axis=1)


class _Bilinear(ScorePredictor):
    """Base of the two bilinear predictors, which trains and saves them.

    Attributes:
        weights_: {name: array}.
        width_: number of columns of the embeddings in training.
        scale_: factor by which embeddings are multiplied before they are used.
        noise: standard deviation of the normal noise on the scaled embeddings during training.
    """

    _OPTIONS: ClassVar[tuple[str, ...]] = ("dim", "learning_rate", "weight_decay", "epochs")
    weights_: dict[str, np.ndarray]
    width_: int
    scale_: float
    noise: float = 0.0

    @abstractmethod
    def start_weights(self, y: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the weights before training, as {name: array}.

        Args:
            y: scores of the train split `[N, K]`. A constant of the logits starts at the log odds of
                their mean.
            rng: generator of the random weights.
        """

    @abstractmethod
    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return logits `[B, K]` and hidden values `[B, d]` for scaled embeddings `[B, e]`."""

    @abstractmethod
    def gradient(self, x: np.ndarray, hidden: np.ndarray, slope: np.ndarray) -> dict[str, np.ndarray]:
        """Return the gradient of the loss by the weights, as {name: array}.

        Args:
            x: scaled embeddings `[B, e]`.
            hidden: hidden values `[B, d]` that `forward` returned.
            slope: gradient of the loss by the logits `[B, K]`.
        """

    def _logits(self, x: np.ndarray) -> np.ndarray:
        """Return logits `[n, K]` for scaled embeddings `[n, e]`."""
        return self.forward(x)[0]

    def __init__(self, dim: int, learning_rate: float, weight_decay: float, epochs: int):
        if dim < 1 or epochs < 1 or not learning_rate > 0 or not weight_decay >= 0:
            raise PolicyError(
                f"{self.name}: dim {dim} and epochs {epochs} must be >= 1, learning_rate {learning_rate} > 0 "
                f"and weight_decay {weight_decay} >= 0"
            )
        self.dim = int(dim)
        self.epochs = int(epochs)
        self.learning_rate = float(learning_rate)
        self.weight_decay = float(weight_decay)

    def loss_and_slope(self, logits: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the loss that training minimises, and its gradient by the logits `[B, K]`."""
        return cross_entropy(logits, y)

    def _scale(self, x: np.ndarray) -> np.ndarray:
        """Return embeddings times the factor that makes the mean squared length of the train split 1."""
        # embeddings may have any scale, and noise and learning rate are chosen for this one
        return x * self.scale_

    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None:
        """Fit scale and weights on the train split, choose the epoch on held-out rows, and calibrate.

        Args:
            x: embeddings of the train split `[N, e]`.
            lengths: lengths of the prompts `[N]`, which are not used.
            y: scores `[N, K]`.
            validation: the held-out rows. None sets a tenth of the train split aside and trains on the rest.
            seed: seed of the part set aside and of all random draws.
        """
        self.width_ = x.shape[1]
        self.scale_ = float(1.0 / max(np.sqrt((x**2).sum(axis=1).mean()), 1e-12))
        if validation is None:
            part = held_out_part(len(x), seed)
            held = (x[part], y[part])
            train = (x[~part], y[~part])
        else:
            held = (validation[0], validation[2])
            train = (x, y)
        train = (self._scale(train[0]), train[1])
        held = (self._scale(held[0]), held[1])
        rng = np.random.default_rng([seed, 31])
        self.weights_ = self.start_weights(y, rng)
        self._train(*train, *held, rng)
        self._finish(*train)

    def _train(
        self, x: np.ndarray, y: np.ndarray, held_x: np.ndarray, held_y: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Train, and set `weights_` to those of the epoch of least held-out loss.

        Training ends after `epochs` epochs, or after `PATIENCE` epochs without a smaller held-out loss.
        """
        from cabs_core.algorithms.predictors.adam import adam_step  # noqa: PLC0415  (numba, to train only)

        weights = self.weights_
        first = {name: np.zeros_like(w) for name, w in weights.items()}
        second = {name: np.zeros_like(w) for name, w in weights.items()}
        best: dict[str, np.ndarray] | None = None
        best_loss = np.inf
        waited = 0
        step = 0
        for _ in range(self.epochs):
            order = rng.permutation(len(x))
            for start in range(0, len(x), BATCH):
                rows = order[start : start + BATCH]
                e = x[rows]
                if self.noise > 0:
                    e = e + self.noise * rng.standard_normal(e.shape)
                logits, hidden = self.forward(e)
                _, slope = self.loss_and_slope(logits, y[rows])
                step += 1
                unbiased = np.sqrt(1.0 - 0.999**step)
                rate = self.learning_rate * unbiased / (1.0 - 0.9**step)
                for name, gradient in self.gradient(e, hidden, slope).items():
                    adam_step(
                        weights[name].reshape(-1),
                        gradient.reshape(-1),
                        first[name].reshape(-1),
                        second[name].reshape(-1),
                        self.weight_decay,
                        rate,
                        1e-8 * unbiased,
                    )
            loss, _ = self.loss_and_slope(self._logits(held_x), held_y)
            if loss < best_loss:
                best = {name: w.copy() for name, w in weights.items()}
                best_loss = loss
                waited = 0
            else:
                waited += 1
                if waited >= PATIENCE:
                    break
        self.weights_ = best or weights

    def _finish(self, x: np.ndarray, y: np.ndarray) -> None:
        """Fit parameters that depend on the trained weights, such as a calibration.

        By default there are none.
        """

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        scores: np.ndarray = expit(self._logits(self._scale(x)))
        return scores

    @property
    def width(self) -> int:
        """Number of columns of the embeddings that the predictor was fitted on."""
        return self.width_

    def state(self) -> State:
        return dict(self.weights_), {
            "options": super().state()[1],
            "width": self.width_,
            "scale": self.scale_,
            "extra": self._extra(),
        }

    def _extra(self) -> dict[str, Any]:
        """Return {name: value} of the attributes to save beside the weights."""
        return {}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        self = super().restore({}, settings["options"])
        self.weights_ = dict(arrays)
        self.width_ = int(settings["width"])
        self.scale_ = float(settings["scale"])
        for name, value in settings["extra"].items():
            setattr(self, name, value)
        return self


def _logit(mean: float) -> float:
    """Return log(p / (1 - p)) of a mean score p, clipped to [0.02, 0.98]."""
    p = np.clip(mean, 0.02, 0.98)
    return float(np.log(p / (1.0 - p)))


class FactorisationPredictor(_Bilinear):
    """Score predictor `mf` by matrix factorisation (see the module).

    Args:
        dim: length of the arms' vectors. loss: 'cross_entropy' or 'pair'.
        noise: standard deviation of the normal noise on every entry of the scaled embedding during training.
        learning_rate, weight_decay: of Adam. epochs: at most; training ends after `PATIENCE` epochs without a
            smaller held-out loss.
    """

    name: ClassVar[str] = "mf"
    _OPTIONS = (*_Bilinear._OPTIONS, "loss", "noise")

    def __init__(
        self,
        dim: int = 128,
        loss: str = "cross_entropy",
        noise: float = 0.05,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-5,
        epochs: int = 30,
    ):
        super().__init__(dim, learning_rate, weight_decay, epochs)
        if loss not in ("cross_entropy", "pair") or not noise >= 0:
            raise PolicyError(f"mf: loss {loss!r} must be 'cross_entropy' or 'pair' and noise {noise} >= 0")
        self.loss = loss
        self.noise = float(noise)
        self.calibration_ = [1.0, 0.0]

    def start_weights(self, y: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the weights before training.

        The arms' vectors are drawn from the standard normal and the linear maps from a uniform distribution,
        as in the sources. For `cross_entropy` b is 0 and the classifier's constant is the log odds of the
        mean score.
        """
        k = y.shape[1]
        e = self.width_
        d = self.dim
        weights = {
            "arms": rng.standard_normal((k, d)),
            "projection": rng.uniform(-1, 1, (d, e)) / np.sqrt(e),
            "classifier": rng.uniform(-1, 1, d) / np.sqrt(d),
        }
        if self.loss == "cross_entropy":
            weights |= {"bias": np.zeros(d), "constant": np.full(1, _logit(y.mean()))}
        return weights

    def loss_and_slope(self, logits: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
        if self.loss == "cross_entropy":
            return cross_entropy(logits, y)
        return pair_loss(logits, y)

    def _vectors(self) -> np.ndarray:
        """Return the vectors of the arms `[K, d]`, scaled to unit length for the loss `pair`."""
        p = self.weights_["arms"]
        if self.loss == "pair":
            p = p / np.linalg.norm(p, axis=1, keepdims=True)
        return p

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w = self.weights_
        q = x @ w["projection"].T
        if self.loss == "cross_entropy":
            q = q + w["bias"]
        logits = (q * w["classifier"]) @ self._vectors().T
        return logits + w["constant"] if self.loss == "cross_entropy" else logits, q

    def gradient(self, x: np.ndarray, hidden: np.ndarray, slope: np.ndarray) -> dict[str, np.ndarray]:
        w = self.weights_
        vectors = self._vectors()
        arms = slope.T @ (hidden * w["classifier"])
        back = slope @ vectors
        through = back * w["classifier"]
        out = {"classifier": (back * hidden).sum(axis=0), "projection": through.T @ x}
        if self.loss == "pair":
            norms = np.linalg.norm(w["arms"], axis=1, keepdims=True)
            out["arms"] = (arms - vectors * (arms * vectors).sum(axis=1, keepdims=True)) / norms
        else:
            out |= {"arms": arms, "bias": through.sum(axis=0), "constant": np.atleast_1d(slope.sum())}
        return out

    def _finish(self, x: np.ndarray, y: np.ndarray) -> None:
        """Fit slope and constant that turn differences of the pair loss into scores, by Newton's method.

        The loss `cross_entropy` needs neither.
        """
        if self.loss != "pair":
            return
        s = self._logits(x)
        rows = np.stack([(s - s.mean(axis=1, keepdims=True)).ravel(), np.ones(s.size)], axis=1)
        coefficients = np.array([0.0, _logit(y.mean())])
        for _ in range(30):
            p = expit(rows @ coefficients)
            gradient = rows.T @ (p - y.ravel()) + 1e-6 * coefficients
            hessian = (rows * (p * (1 - p))[:, None]).T @ rows + 1e-6 * np.eye(2)
            move = np.linalg.solve(hessian, gradient)
            coefficients = coefficients - np.clip(move, -2.0, 2.0)
            if np.abs(move).max() < 1e-10:
                break
        self.calibration_ = [float(v) for v in coefficients]

    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        s = self._logits(self._scale(x))
        if self.loss == "pair":
            s = self.calibration_[0] * (s - s.mean(axis=1, keepdims=True)) + self.calibration_[1]
        scores: np.ndarray = expit(s)
        return scores

    def _extra(self) -> dict[str, Any]:
        return {"calibration_": self.calibration_}


class MirtPredictor(_Bilinear):
    """Score predictor `mirt` by the multidimensional item response model (see the module).

    Args:
        dim: abilities per arm. learning_rate, weight_decay, epochs: as `FactorisationPredictor`.
    """

    name: ClassVar[str] = "mirt"

    def __init__(
        self, dim: int = 32, learning_rate: float = 3e-3, weight_decay: float = 1e-4, epochs: int = 30
    ):
        super().__init__(dim, learning_rate, weight_decay, epochs)

    def start_weights(self, y: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the weights before training.

        Abilities are drawn from a normal distribution, and discrimination with its constant from a uniform
        one. Difficulty is the same for every prompt: minus the log odds of the mean score.
        """
        k = y.shape[1]
        e = self.width_
        d = self.dim
        return {
            "abilities": rng.standard_normal((k, d)) / np.sqrt(d),
            "discrimination": rng.uniform(-1, 1, (d, e)) / np.sqrt(e),
            "discrimination_bias": rng.uniform(-1, 1, d) / np.sqrt(e),
            "difficulty": np.zeros(e),
            "difficulty_bias": np.full(1, -_logit(y.mean())),
        }

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        w = self.weights_
        a = x @ w["discrimination"].T + w["discrimination_bias"]
        return a @ w["abilities"].T - (x @ w["difficulty"])[:, None] - w["difficulty_bias"], a

    def gradient(self, x: np.ndarray, hidden: np.ndarray, slope: np.ndarray) -> dict[str, np.ndarray]:
        w = self.weights_
        back = slope @ w["abilities"]
        total = slope.sum(axis=1)
        return {
            "abilities": slope.T @ hidden,
            "discrimination": back.T @ x,
            "discrimination_bias": back.sum(axis=0),
            "difficulty": -(x.T @ total),
            "difficulty_bias": np.atleast_1d(-total.sum()),
        }
