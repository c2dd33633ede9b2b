"""Predictors of scores and costs that are fitted on the train split and never learn online.

predictor = make_score_predictor("ridge").fit(embeddings, prompt_lengths, scores, validation=(...))
predictor.predict(embeddings, prompt_lengths)       # [n, K] in [0, 1]
predictor.save(folder); load_score_predictor(folder)
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cabs_core.algorithms.predictors.base import ScorePredictor, read_header
from cabs_core.algorithms.predictors.bilinear import FactorisationPredictor, MirtPredictor
from cabs_core.algorithms.predictors.clusters import ClusterPredictor, HierShrinkPredictor
from cabs_core.algorithms.predictors.kernel_ridge import KernelPredictor
from cabs_core.algorithms.predictors.simple import KnnPredictor, MeanPredictor, RidgePredictor
from cabs_core.algorithms.predictors.stack import StackPredictor
from cabs_core.algorithms.predictors.tasks import TaskPredictor
from cabs_core.base.errors import PolicyError, ProvenanceError, did_you_mean

_CLASSES: dict[str, type[ScorePredictor]] = {
    cls.name: cls
    for cls in (
        MeanPredictor,
        RidgePredictor,
        KnnPredictor,
        KernelPredictor,
        ClusterPredictor,
        HierShrinkPredictor,
        FactorisationPredictor,
        MirtPredictor,
        StackPredictor,
        TaskPredictor,
    )
}
#: predictors whose predictions the oracles give and every replay problem holds
STATIC = ("knn", "knn_literal", "ridge", "kernel_ridge")
#: errors of constructors that compare and convert a value of the wrong type
_WRONG_TYPE = (TypeError, ValueError, LookupError, OverflowError)
#: names of all static score predictors; `knn_literal` is kNN with the published k = 3
SCORE_PREDICTORS = (*_CLASSES, "knn_literal")


def make_score_predictor(name: str, **options: Any) -> ScorePredictor:
    """Return a new, unfitted predictor by name; options are those of its class.

    Raises:
        PolicyError: the name or an option is unknown, or the value of an option has the wrong type or is out
            of range.
    """
    if name == "knn_literal":
        kind: type[ScorePredictor] = KnnPredictor
        options = {"k": 3, **options}
    else:
        kind = predictor_class(name)
    parameters = inspect.signature(kind).parameters
    known = ", ".join(f"{option}={parameter.default!r}" for option, parameter in parameters.items()) or "none"
    for option in options:
        if option not in parameters:
            hint = did_you_mean(option, list(parameters))
            raise PolicyError(f"{name}: unknown option {option!r:.80}.{hint} Options with defaults: {known}.")
    try:
        return kind(**options)
    except _WRONG_TYPE as error:
        option = _culprit(kind, options)
        raise PolicyError(
            f"{name}: option {option} cannot be {options[option]!r:.80} ({error}). "
            f"Options with defaults: {known}."
        ) from None


def _culprit(kind: type[ScorePredictor], options: Mapping[str, Any]) -> str:
    """Return the first option whose value alone the predictor does not accept, or else the first option."""
    for option, value in options.items():
        try:
            kind(**{option: value})
        except (PolicyError, *_WRONG_TYPE):
            return option
    return next(iter(options))


def predictor_class(name: str) -> type[ScorePredictor]:
    """Return the class of a predictor by the name that its files carry; `knn_literal` is not such a name.

    Raises:
        PolicyError: the name is unknown.
    """
    if name not in _CLASSES:
        raise PolicyError(f"unknown score predictor {name!r}. Known: {', '.join(SCORE_PREDICTORS)}.")
    return _CLASSES[name]


def load_score_predictor(folder: str | Path) -> ScorePredictor:
    """Load the score predictor that was saved in `folder`; the files name its class.

    Raises:
        ProvenanceError: the folder holds no score predictor, or a format that this version does not read.
    """
    name = read_header(folder).get("name")
    if name not in _CLASSES:
        raise ProvenanceError(f"{folder} holds {name!r}, not a score predictor ({', '.join(_CLASSES)}).")
    return _CLASSES[name].load(folder)
