"""The interface of a predictor of every arm's score, its checks of input, and its files.

Belongs here: code that all predictors of scores share. The predictors are in the other modules of this
package.
"""

import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from cabs_core.algorithms.predictors.neighbour_lists import NeighbourLists
from cabs_core.base.atomic import Contents, atomic_directory
from cabs_core.base.errors import DataError, ProvenanceError
from cabs_core.base.masked import refuse_masked

FORMAT = 1
#: embeddings, prompt lengths and scores of held-out prompts
Validation = tuple[np.ndarray, np.ndarray, np.ndarray]
#: arrays, and settings as JSON values
State = tuple[dict[str, np.ndarray], dict[str, Any]]
#: (key, compute) -> value: returns compute() of the first call with a key, and the same value afterwards
Once = Callable[[Hashable, Callable[[], Any]], Any]


class SavedPredictor:
    """Base of predictors that can be saved. The names of fitted attributes end in `_`."""

    name: ClassVar[str]
    #: names of the saved arrays (without their `_`), and in _OPTIONS names of the saved options
    _ARRAYS: ClassVar[tuple[str, ...]] = ()
    _OPTIONS: ClassVar[tuple[str, ...]] = ()

    def state(self) -> State:
        """Return arrays and settings (JSON values) from which `restore` makes an equal predictor."""
        arrays = {name: np.asarray(getattr(self, f"{name}_")) for name in self._ARRAYS}
        return arrays, {name: getattr(self, name) for name in self._OPTIONS}

    @classmethod
    def restore(cls, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> Self:
        """Return the predictor whose `state` returned these arrays and settings."""
        self = cls(**settings)
        for name in cls._ARRAYS:
            setattr(self, f"{name}_", arrays[name])
        return self

    def save(self, folder: str | Path) -> Path:
        """Write `predictor.json` and `predictor.npz` to `folder`, which is replaced as a whole, and return
        its path.
        """
        arrays, settings = self.state()
        contents = Contents("a saved predictor", "predictor.json", ("predictor.npz",), ("name", "settings"))
        with atomic_directory(folder, contents) as temporary:
            np.savez(temporary / "predictor.npz", allow_pickle=False, **arrays)
            text = json.dumps({"format": FORMAT, "name": self.name, "settings": settings}, indent=1)
            (temporary / "predictor.json").write_text(text, encoding="utf-8")
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load the predictor that `save` of the same class wrote.

        Raises:
            ProvenanceError: the files are absent, of another predictor or of another format.
        """
        header = read_header(folder)
        if header["name"] != cls.name:
            raise ProvenanceError(f"{folder} holds the predictor {header['name']!r}, not {cls.name!r}.")
        path = Path(folder) / "predictor.npz"
        try:
            with np.load(path, allow_pickle=False) as stored:
                arrays = {key: stored[key] for key in stored.files}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ProvenanceError(f"{path}: not readable ({error}). Fit the predictor again.") from None
        return cls.restore(arrays, header["settings"])


class ScorePredictor(SavedPredictor, ABC):
    """Base of the predictors of every arm's score from a prompt's embedding and length.

    `fit` learns from the train split; validation rows are used only to choose settings (kNN's k, the weights
    of `kernel_ridge`'s stack, the epoch that `mf` and `mirt` keep). Subclasses define `_fit`, `_predict` and
    `width`; `fit` and `predict` check the arguments before these methods, and clip the predictions.
    """

    #: lists of nearest train prompts, for predictors that use neighbours; None to search them
    lists: NeighbourLists | None = None
    _once: Once = staticmethod(lambda key, compute: compute())

    def use(self, lists: NeighbourLists | None) -> None:
        """Take neighbours among the train prompts from these lists where possible; None to search them."""
        self.lists = lists

    def fit(
        self,
        embeddings: np.ndarray,
        prompt_lengths: np.ndarray,
        scores: np.ndarray,
        *,
        validation: Validation | None = None,
        seed: int = 0,
        once: Once | None = None,
    ) -> Self:
        """Learn from the train split and return self.

        Args:
            embeddings: `[N, e]` finite.
            prompt_lengths: `[N]` characters, >= 0.
            scores: `[N, K]` in [0, 1].
            validation: (embeddings, prompt_lengths, scores) of held-out prompts. With None, a tenth of the
                train split is set aside if settings have to be chosen.
            seed: seed of all random draws (landmarks, initial weights, the part set aside).
            once: function that keeps values that several predictors of this train split share, such as
                `Offline.fit_once`.

        Raises:
            DataError: shapes disagree, a value is not finite or a score is outside [0, 1].
        """
        x, lengths = check_inputs(embeddings, prompt_lengths)
        y = check_scores(scores, len(x))
        held_out = None
        if validation is not None:
            vx, vl = check_inputs(validation[0], validation[1], width=x.shape[1], what="validation ")
            held_out = (vx, vl, check_scores(validation[2], len(vx), arms=y.shape[1], what="validation "))
        if once is not None:
            self._once = once
        try:
            self._fit(x, lengths, y, held_out, int(seed))
        finally:
            self.__dict__.pop("_once", None)  # it may hold the whole train split
        return self

    def predict(self, embeddings: np.ndarray, prompt_lengths: np.ndarray) -> np.ndarray:
        """Predict scores `[n, K]` float64 in [0, 1] for embeddings `[n, e]` and lengths `[n]`.

        Raises:
            DataError: the embeddings have another width than in `fit`, or a value is not finite.
        """
        x, lengths = check_inputs(embeddings, prompt_lengths, width=self.width, rows=0)
        scores: np.ndarray = np.clip(self._predict(x, lengths), 0.0, 1.0)
        return scores

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of columns of the embeddings that the predictor was fitted on."""

    @abstractmethod
    def _fit(
        self, x: np.ndarray, lengths: np.ndarray, y: np.ndarray, validation: Validation | None, seed: int
    ) -> None: ...

    @abstractmethod
    def _predict(self, x: np.ndarray, lengths: np.ndarray) -> np.ndarray: ...


def read_header(folder: str | Path) -> dict[str, Any]:
    """Read the JSON of a saved predictor: format, name and settings.

    Raises:
        ProvenanceError: the file cannot be read, or is of another format.
    """
    path = Path(folder) / "predictor.json"
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProvenanceError(f"{path}: no readable predictor ({error}). Fit it again.") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ProvenanceError(f"{path}: expected a predictor of format {FORMAT}. Fit it again.")
    return header


def check_inputs(
    embeddings: ArrayLike,
    prompt_lengths: ArrayLike,
    *,
    width: int | None = None,
    rows: int = 2,
    what: str = "",
) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings as float64 `[n, e]` and lengths as float64 `[n]`.

    Args:
        width: required e, None for any. rows: least n. what: prefix of the names in messages.

    Raises:
        DataError: an array is masked, a shape is wrong, a value is not finite, or a length is negative.
    """
    refuse_masked(f"{what}embeddings", embeddings)
    refuse_masked(f"{what}prompt_lengths", prompt_lengths)
    x = np.asarray(embeddings)
    if x.ndim != 2 or x.shape[1] < 1 or len(x) < rows:
        raise DataError(f"{what}embeddings have shape {x.shape}: expected [n >= {rows}, e >= 1]")
    if width is not None and x.shape[1] != width:
        raise DataError(f"{what}embeddings have {x.shape[1]} columns: the predictor was fitted on {width}")
    x = x.astype(np.float64, copy=False)
    lengths = np.asarray(prompt_lengths, dtype=np.float64)
    if lengths.shape != (len(x),):
        raise DataError(f"{what}prompt_lengths have shape {lengths.shape}: expected {(len(x),)}")
    for name, array in (("embeddings", x), ("prompt_lengths", lengths)):
        if name == "embeddings":
            bad = ~np.isfinite(array)
        else:
            bad = ~(np.isfinite(array) & (array >= 0))
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            raise DataError(
                f"{what}{name}: row {row} holds {array[row][bad[row]] if bad.ndim > 1 else array[row]}"
            )
    return x, lengths


def check_scores(scores: ArrayLike, rows: int, *, arms: int | None = None, what: str = "") -> np.ndarray:
    """Return scores as float64 `[rows, K]` in [0, 1]; raise DataError that names the wrong cell."""
    refuse_masked(f"{what}scores", scores)
    y = np.asarray(scores, dtype=np.float64)
    if y.ndim != 2 or len(y) != rows or y.shape[1] < 1 or (arms is not None and y.shape[1] != arms):
        raise DataError(f"{what}scores have shape {y.shape}: expected [{rows}, {arms or 'K >= 1'}]")
    bad = ~((y >= 0) & (y <= 1))
    if bad.any():
        row, arm = np.argwhere(bad)[0]
        raise DataError(f"{what}scores: row {row}, arm {arm} is {y[row, arm]}, expected a number in [0, 1]")
    return y


def nonnegative_weights(members: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return weights `[m]` >= 0 of members `[n, m]` with the least squared error of a target `[n]`."""
    from scipy.optimize import nnls  # noqa: PLC0415  (a tenth of a second, where predictors are fitted)

    weights: np.ndarray = nnls(members, target)[0]
    return weights


def contrasts(values: np.ndarray) -> np.ndarray:
    """Return scores `[n, K]` less their mean over the arms of a query; for a single arm, the scores
    themselves.

    The choice of an arm depends on the contrasts alone; the difficulty of a prompt for all arms changes no
    choice.
    """
    if values.shape[1] > 1:
        relative: np.ndarray = values - values.mean(axis=1, keepdims=True)
        return relative
    return values


def contrast_error(predicted: np.ndarray, actual: np.ndarray) -> float:
    """Return the mean squared error of the contrasts between the arms of a query, for arrays `[n, K]`."""
    return float((contrasts(predicted - actual) ** 2).mean())


def held_out_part(n: int, seed: int) -> np.ndarray:
    """Draw a tenth of n rows, rounded down but at least one; return bool `[n]`, True for the drawn rows."""
    part = np.zeros(n, dtype=bool)
    part[np.random.default_rng([seed, 20]).permutation(n)[: max(1, n // 10)]] = True
    return part


def prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays with `prefix.` before every name."""
    return {f"{prefix}.{key}": value for key, value in arrays.items()}


def without_prefix(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose name begins with `prefix.`, by their names without it."""
    return {key[len(prefix) + 1 :]: value for key, value in arrays.items() if key.startswith(prefix + ".")}
