"""Policies that never learn online: best single arm, best arm in hindsight, and argmax of predicted utility.

Every router that predicts scores plays the argmax of the expected clipped utility of predicted scores and
costs (`utility.expected_utility`): yhat (1 - rho chat)+ if scores are 0 or 1. Static policies learn nothing
online, so their replay is one argmax over the table of all rounds and needs no loop. They serve without
compiled code.

A method that knows only the arms of its train split (`trained_only`) chooses among these arms. An arm that
joined since is played if the request's predictions expect more utility of it than of that choice. The
predictions for a new arm come from its scored prompts or from the arm that it resembles (`oracles.arm_map`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from cabs_core.algorithms.policies import state as states
from cabs_core.algorithms.policies.play import Lane, LoopPolicy, Stream, check_lane
from cabs_core.algorithms.policies.policy import PolicyOptions
from cabs_core.algorithms.policies.request import Choice, Offline, Reads, Request
from cabs_core.base.errors import PolicyError
from cabs_core.base.utility import expected_utility

if TYPE_CHECKING:
    from cabs_core.algorithms.predictors.base import ScorePredictor


class StaticPolicy(LoopPolicy):
    """Base of the policies that play the argmax of the arms' values and never learn online.

    Subclasses define the values for one request (`values`) and for all rows of a replay (`table`).
    """

    learns = False
    #: `[K]`, place of each of today's arms among the trained arms, -1 for an arm that joined since
    columns: np.ndarray
    #: True if a policy that looks at points was built on embeddings, False for contexts
    on_embeddings = True

    @property
    def point(self) -> str:
        """Name of the field of a request that the policy looks at: `embedding` or `context`."""
        if self.on_embeddings:
            return "embedding"
        return "context"

    def prepare(self) -> None:
        """Give every arm its place among the trained arms; at first all arms are of the train split."""
        self.columns = np.arange(len(self.arms))

    def start(self, offline: Offline | None) -> None:
        """Do nothing: there is nothing to prepare."""

    def values(self, request: Request) -> np.ndarray:
        """Return the value [K] of every arm for a request."""
        raise NotImplementedError

    def table(self, stream: Stream) -> np.ndarray:
        """Return the value [n, K] of every arm for every row of a replay."""
        raise NotImplementedError

    @property
    def trained_only(self) -> bool:
        """True if the method has values only for the B arms of the train split; False in this base class."""
        return False

    @property
    def joined(self) -> np.ndarray:
        """bool [K], True for an arm that the method does not know; all False unless `trained_only`."""
        if self.trained_only:
            return self.columns < 0
        return np.zeros(len(self.arms), dtype=np.bool_)

    def of_today(self, trained: np.ndarray) -> np.ndarray:
        """Return values [..., K] of today's arms from the method's values [..., B], 0 for an arm that joined.

        Raises:
            PolicyError: the method has no value for an arm of its train split.
        """
        if not self.trained_only:
            return trained
        if self.columns.max() >= trained.shape[-1]:
            raise PolicyError(f"{self.name}: its state is of other arms; load the last one that was sound")
        return np.where(self.joined, 0.0, trained[..., self.columns])

    def with_predictions(self, reads: Reads) -> Reads:
        """Return `reads` with the predicted scores and costs added if there is an arm that joined: such arms
        are compared by them.
        """
        if self.joined.any():
            return replace(reads, scores=True, costs=True)
        return reads

    def _played(self, values: np.ndarray, mask: np.ndarray, utilities: np.ndarray | None) -> np.ndarray:
        """Return the played arms [n]: the available known arm of the largest value, or an arm that joined.

        An arm that joined is played if its expected utility is larger than that of the arm of the largest
        value, or if only arms that joined are available.

        Args:
            values: [n, K] of the method. mask: bool [n, K] of available arms.
            utilities: expected utilities [n, K] by which arms that joined are compared, or None.
        """
        method = np.where(mask, values, -np.inf)
        joined = self.joined
        # an arm that joined is played if no other arm is available
        arm: np.ndarray = np.argmax(np.where(mask & joined, -np.finfo(float).max, method), axis=1)
        if utilities is not None:
            rows = np.arange(len(arm))
            others = np.where(mask & joined, utilities, -np.inf)
            best = np.argmax(others, axis=1)
            arm = np.where(others[rows, best] > utilities[rows, arm], best, arm)
        return arm

    def choose(self, request: Request) -> Choice:
        """Play the best available arm with probability 1."""
        rho = self.rho_of(request)
        mask = self.mask(request)
        k = len(self.arms)
        utilities = None
        if request.predicted_scores is not None and self.joined.any():
            scores = self.need(request, "predicted_scores", k)
            utilities = expected_utility(scores, self.costs_of(request), rho, self.share)[None]
        arm = int(self._played(self.values(request)[None], mask[None], utilities)[0])
        pmf = np.zeros(k)
        pmf[arm] = 1.0
        return Choice(arm, 1.0, pmf, rho)

    def run(self, stream: Stream, lane: Lane, start: int, stop: int) -> None:
        """Play the rounds from `start` to `stop` - 1, all at once."""
        check_lane(self, stream, lane, start, stop)
        rows = lane.order[start:stop]
        utilities = None
        mask = stream.active(np.arange(start, stop))
        if self.joined.any():
            utilities = expected_utility(
                stream.predicted_scores[rows], stream.static_costs[rows], self.rho, self.share
            )
        lane.actions[start:stop] = self._played(self.table(stream)[rows], mask, utilities)
        lane.propensities[start:stop] = 1.0
        self.round += stop - start

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the places of the arms, or nothing if the method has values for every arm."""
        return {}, {"columns": self.columns.tolist()} if self.trained_only else {}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore what `state` returned.

        Raises:
            PolicyError: the places of the state are not one for each of the policy's arms, or the places of
                trained arms do not ascend.
        """
        if self.trained_only:
            columns = np.array(values["columns"], dtype=np.int64)
            known = columns[columns >= 0]
            if columns.shape != (len(self.arms),) or (columns < -1).any() or (np.diff(known) <= 0).any():
                raise PolicyError(f"{self.name}: columns {states.excerpt(values['columns'], 80)} fit no arms")
            self.columns = columns

    @property
    def can_resemble(self) -> bool:
        """Always True: an arm that joined is compared by the predictions in requests, and these can be the
        predictions of the arm that it resembles.
        """
        return True

    def add_arm(self) -> None:
        """Append an arm that joined, which has no place among the trained arms."""
        self.columns = np.append(self.columns, -1)

    def remove_arm(self, index: int) -> None:
        """Remove the place of an arm."""
        self.columns = np.delete(self.columns, index)


class BestSingle(StaticPolicy):
    """The policy that plays the arm of largest mean clipped utility on the train split, for every prompt.

    An arm that joined since may be played instead; see the module.
    """

    @property
    def trained_only(self) -> bool:
        """True: the policy has no mean of an arm that joined."""
        return True

    def start(self, offline: Offline | None) -> None:
        """Set the mean utilities [K] of the train split.

        They are zeros if the train split is None or empty, so that the first available arm is played.
        """
        if offline is None or not len(offline):
            self.means = np.zeros(len(self.arms))
        else:
            self.means = offline.utilities.mean(axis=0)

    def reads(self) -> Reads:
        return self.with_predictions(Reads())

    def values(self, request: Request) -> np.ndarray:
        return self.of_today(self.means)

    def table(self, stream: Stream) -> np.ndarray:
        return np.broadcast_to(self.of_today(self.means), stream.utilities.shape)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"means": self.means}, super().state()[1]

    def layout(self) -> dict[str, states.Field]:
        """Return the layout of the array `means` of a state: [B] mean utilities from 0 to 1."""
        return {"means": states.learnt("trained", low=0.0, high=1.0)}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        """Restore the places of the arms and the mean utilities that `state` returned.

        Raises:
            PolicyError: the places or the means are not of the policy's arms.
        """
        super().restore(arrays, values)
        self.means = arrays["means"]
        self.of_today(self.means)  # refuses means of other arms


class OracleBest(StaticPolicy):
    """The policy that plays the best arm in hindsight: an upper bound, defined in replay only."""

    needs_outcomes: ClassVar[bool] = True

    def values(self, request: Request) -> np.ndarray:
        """Refuse: outcomes are not known before a decision.

        Raises:
            PolicyError: always.
        """
        raise PolicyError("oracle_best looks at the outcomes of all arms and exists in replay only")

    def table(self, stream: Stream) -> np.ndarray:
        return stream.utilities


class Carrot(StaticPolicy):
    """The policy that plays the argmax of the expected clipped utility under the accuracy and cost heads (the
    rule of the CARROT router).
    """

    any_rho: ClassVar[bool] = True

    def reads(self) -> Reads:
        return Reads(scores=True, costs=True)

    def values(self, request: Request) -> np.ndarray:
        """Return expected utilities [K] of the heads' predictions."""
        k = len(self.arms)
        return expected_utility(
            self.need(request, "predicted_scores", k),
            self.need(request, "predicted_costs", k, 0.0),
            self.rho_of(request),
            self.share,
        )

    def table(self, stream: Stream) -> np.ndarray:
        return expected_utility(stream.predicted_scores, stream.predicted_costs, self.rho, self.share)


class PredictedOptions(PolicyOptions):
    """Settings of the static policies that predict scores.

    predictor: name of the static predictor (`predictors.SCORE_PREDICTORS`). None for the one that gives
        the policy its name.
    settings: options of the predictor that differ from its defaults (and from the preset's). If there are
        any, the predictor is fitted on the train split even if the problem has predictions of that name.
    """

    predictor: str | None = None
    settings: dict[str, Any] = Field({})


class Predicted(StaticPolicy):
    """The policy that plays the argmax of the expected clipped utility under a static score predictor, which
    is fitted on the train split.

    The predictors are knn, ridge, kernel_ridge; mf (matrix factorisation: EmbedLLM, preset `pair`: RouteLLM),
    mirt (IRT-Router), hier_shrink (shrunken cluster means) and stack (an ensemble): see
    `cabs_core.algorithms.predictors` for their methods and sources.

    Online, predictions come with the request (`static_scores`, `static_costs`) or from a predictor, which is
    saved with the policy: fitted for serving, or at the first request without predictions, on the train split
    that the policy was built with.
    """

    Settings = PredictedOptions
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"literal": {}, "pair": {}}
    any_rho: ClassVar[bool] = True

    def start(self, offline: Offline | None) -> None:
        """Check predictor and settings. The predictor is fitted when it is first needed.

        Raises:
            PolicyError: the predictor or an option of it is unknown, or a value has the wrong type or is out
                of range.
        """
        # a third of a second, and a replay reads predictions that are there
        from cabs_core.algorithms.predictors import make_score_predictor  # noqa: PLC0415

        self.predictor: Any = None
        self.offline = offline if offline is not None and len(offline) >= 2 else None
        try:
            make_score_predictor(self.key, **self.predictor_settings)
        except PolicyError as error:
            # the message begins with the predictor, which most policies are called by
            if str(error).startswith(f"{self.name}:"):
                raise
            raise PolicyError(f"{self.name}: {error}") from None

    @property
    def key(self) -> str:
        """Name of the predictor, which is the key of its predictions in `static_scores`.

        It is the setting `predictor`, or else the policy's base name; `knn` with the preset `literal` has the
        predictor `knn_literal`.
        """
        if self.settings.predictor is not None:
            return str(self.settings.predictor)
        if (self.base, self.preset) == ("knn", "literal"):
            return "knn_literal"
        return self.base

    @property
    def own_predictor(self) -> bool:
        """True if the policy has a predictor of its own: with options, or of a kind that the oracles do not
        hold.
        """
        from cabs_core.algorithms.predictors import STATIC  # noqa: PLC0415  (as in `start`)

        return bool(self.predictor_settings) or self.key not in STATIC

    @property
    def trained_only(self) -> bool:
        """True if the predictor is the policy's own, which is never fitted again; the oracles know arms that
        joined.
        """
        return self.own_predictor

    def reads(self) -> Reads:
        """Return the fields of a request that the policy reads.

        These are the expected costs, and the inputs of the policy's own predictor or else the oracles'
        predictions under its key. A policy with its own predictor also reads predicted scores if an
        arm joined.
        """
        if self.own_predictor:
            on = self.on_embeddings
            return self.with_predictions(Reads(costs=True, embedding=on, context=not on, length=True))
        return Reads(costs=True, static=self.key)

    def fit_for_serving(self, offline: Offline) -> None:
        """Fit the policy's own predictor on the train split, if the policy has one of its own."""
        if self.own_predictor:
            self._adopt(offline)

    @property
    def predictor_settings(self) -> dict[str, Any]:
        """Options of the predictor that differ from its defaults: those of the preset and of the settings."""
        if self.preset == "pair":
            preset = {"loss": "pair"}
        else:
            preset = {}
        return {**preset, **self.settings.settings}

    def _fitted(self, offline: Offline) -> ScorePredictor:
        """Return the policy's predictor, fitted on the train split."""
        from cabs_core.algorithms.predictors import make_score_predictor  # noqa: PLC0415  (as in `start`)

        if offline.prompt_lengths is None:
            lengths = np.zeros(len(offline))
        else:
            lengths = offline.prompt_lengths
        predictor = make_score_predictor(self.key, **self.predictor_settings)
        return predictor.fit(offline.points, lengths, offline.scores, once=offline.fit_once)

    def _adopt(self, offline: Offline | None) -> None:
        """Fit the predictor on this train split, or take the one fitted before. Do nothing without a train
        split, or if the policy has a predictor already.
        """
        if self.predictor is None and offline is not None:
            self.predictor = offline.fit_once(("predictor", *self._fit_key), lambda: self._fitted(offline))
            self.on_embeddings = offline.embeddings is not None

    @property
    def _fit_key(self) -> tuple[str, str, int, bool]:
        """Key of the fitted predictor: predictor, settings, seed, and that no validation is used.

        `stack` has the same key for a member, so that both share the fitted predictor.
        """
        return self.key, json.dumps(self.predictor_settings, sort_keys=True), 0, True

    def values(self, request: Request) -> np.ndarray:
        """Return expected utilities [K] from the request's predictions, or else from the policy's predictor.

        A policy with options for its predictor does not read the request's predicted scores. For the
        predictor, a request without a prompt length counts as one of length 0. The costs are the request's
        `static_costs`, or its `predicted_costs` if there are none.

        Raises:
            PolicyError: there are neither predictions nor a predictor, the request lacks the embedding or
                context that the predictor reads, or it lacks costs.
        """
        k = len(self.arms)
        if self.predictor_settings:
            scores = None
        else:
            scores = self.static_scores_of(request, self.key)
        costs = request.static_costs
        if scores is None:
            self._adopt(self.offline)
            if self.predictor is None or getattr(request, self.point) is None:
                raise PolicyError(
                    f"{self.name} needs Request.static_scores[{self.key!r}], or a predictor (offline) and "
                    f"Request.{self.point} and Request.prompt_length"
                )
            length = np.array(
                [states.number(self.name, "Request.prompt_length", request.prompt_length or 0.0, 0.0)]
            )
            point = self.need(request, self.point, self.predictor.width)
            scores = self.of_today(self.predictor.predict(point[None], length)[0])
            scores = states.array(self.name, "the predictor's scores", scores, states.Field((k,)))
        if costs is None:
            costs = self.need(request, "predicted_costs", k, 0.0)
        costs = states.array(self.name, "expected costs", costs, states.Field((k,), 0.0))
        return expected_utility(scores, costs, self.rho_of(request), self.share)

    def table(self, stream: Stream) -> np.ndarray:
        """Return expected utilities [n, K] of all rows from the problem's predictions.

        If the problem has none, or the predictor has options, the scores come from a predictor fitted on the
        train split (its embeddings, else its contexts).

        Raises:
            PolicyError: a predictor must be fitted, and the train split has fewer than 2 rows.
        """
        if self.predictor_settings:
            scores = None
        else:
            scores = stream.static_scores.get(self.key)
        if scores is None:
            scores = self.of_today(self._predictions(stream))
        return expected_utility(scores, stream.static_costs, self.rho, self.share)

    def _predictions(self, stream: Stream) -> np.ndarray:
        """Return the scores of all rows by the predictor fitted on the stream's train split; computed once
        for all rhos.
        """
        offline = stream.offline
        if len(offline) < 2:
            raise PolicyError(
                f"{self.name}: the problem has no static_scores[{self.key!r}] and no train split to fit on"
            )

        self._adopt(offline)

        def predict() -> np.ndarray:
            rows = stream.contexts if offline.embeddings is None else stream.embeddings
            assert rows is not None  # a stream has embeddings where its train split has
            if offline.prompt_lengths is not None:
                lengths = stream.prompt_lengths
            else:
                lengths = None
            predictor = offline.fit_once(("predictor", *self._fit_key), lambda: self._fitted(offline))
            return predictor.predict(rows, np.zeros(len(stream.contexts)) if lengths is None else lengths)

        return offline.fit_once(("predicted", *self._fit_key), predict)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the places of the arms, as the base class does, and whether the predictor reads embeddings.

        `save_parts` writes the predictor itself.
        """
        return {}, {"on_embeddings": self.on_embeddings, **super().state()[1]}

    def restore(self, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> None:
        super().restore(arrays, values)
        self.on_embeddings = bool(values.get("on_embeddings", True))

    def save_parts(self, folder: Path) -> None:
        """Write the policy's predictor, if it has one by now, into a folder `predictor` of `folder`."""
        if self.predictor is not None:
            self.predictor.save(folder / "predictor")

    def load_parts(self, folder: Path) -> None:
        """Load the predictor that `save_parts` wrote, if there is one."""
        if (folder / "predictor").is_dir():
            # as in `start`
            from cabs_core.algorithms.predictors import load_score_predictor  # noqa: PLC0415

            self.predictor = load_score_predictor(folder / "predictor")
