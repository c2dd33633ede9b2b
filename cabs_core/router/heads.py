"""Heads: they compute the predictions that a bundle's policy reads, from embeddings of prompts.

A bundle holds the oracles cut down to what its policy reads (`cut_oracles`), and a decision computes no more
than that. An explanation may show more, which is computed when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from cabs_core.algorithms.oracles.oracles import Oracles
from cabs_core.algorithms.oracles.propagation import deltas_from_surrogates
from cabs_core.algorithms.policies.registry import load_policy
from cabs_core.algorithms.policies.request import Reads, Request
from cabs_core.algorithms.policies.safe import SafePolicy
from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.tokens import text_tokens

#: Predictor that explanations show if the policy reads no prediction of scores.
SHOWN = "ridge"


def needs_of(policy: SafePolicy) -> Reads:
    """Return the inputs that a policy reads when it decides and learns.

    Raises:
        RouterError: the policy needs the outcomes of all models, which no router sees.
    """
    algorithm = policy.algorithm
    if algorithm.needs_outcomes or algorithm.full_feedback:
        raise RouterError(f"{policy.name} needs the outcomes of all arms: it exists in replay only")
    return algorithm.reads()


def cut_oracles(oracles: Oracles, needs: Reads) -> Oracles:
    """Return the oracles without the predictors that neither a policy reads nor explanations show.

    A predictor of scores always stays, since explanations show its scores. If the policy reads
    `predicted_scores`, the chosen one stays. Otherwise the chosen one becomes the predictor whose
    `static_scores` the policy reads (`knn` for `knn_literal`), or `SHOWN` if the policy reads none. A chosen
    network for costs is replaced by ridge if the policy reads no `predicted_costs`. The network stays only
    if one of the remaining predictions or contexts needs it.

    Args:
        oracles: all fitted predictors, and in `chosen` the one in use for each purpose.
        needs: inputs that the policy reads.
    """
    chosen = dict(oracles.chosen)
    if not needs.scores:
        if needs.static == "knn_literal":
            chosen["accuracy"] = "knn"
        else:
            chosen["accuracy"] = needs.static or SHOWN
    if chosen["cost"] == "network" and not needs.costs:
        chosen["cost"] = "ridge"
    names = {chosen["accuracy"]}
    if needs.static:
        names.add(needs.static)
    if chosen["accuracy"] in ("blend", "tasks"):
        names.add("kernel_ridge")
    needed = {"knn" if name == "knn_literal" else name for name in names if name}
    heads = [chosen["accuracy"], chosen["cost"]]
    if needs.surrogate:
        heads.append(chosen["propagation"])
    contexts_from_network = needs.context and chosen["features"] == "head"
    if contexts_from_network:
        heads.append("network")
    uses_network = any(head in ("network", "blend") for head in heads)
    return replace(
        oracles,
        predictors={name: oracles.predictors[name] for name in sorted(needed & set(oracles.predictors))},
        chosen=chosen,
        network=oracles.network if uses_network else None,
        head_pca=oracles.head_pca if contexts_from_network else None,
    )


class Prediction:
    """Predictions for one prompt. Predictions that the policy does not read are computed at their first use.

    Attributes:
        text: text of the prompt.
        embedding: embedding of the prompt, `[e]`.
        request: the inputs of the policy. The available models and rho are not set yet.
        length: length of the text, characters.
        tokens: estimated number of tokens of the text.
    """

    def __init__(self, heads: Heads, text: str, embedding: np.ndarray, request: Request):
        self._heads = heads
        self.text = text
        self.embedding = embedding
        self.request = request
        self.length = float(len(text))
        self.tokens = text_tokens(text)

    @cached_property
    def scores(self) -> np.ndarray:
        """Expected score of every model, `[K]`, in [0, 1]: as the policy reads it, if it reads scores."""
        static = self._heads.needs.static
        if static:
            return self.request.static_scores[static]
        predicted = self.request.predicted_scores
        if predicted is None:
            return self._expected[0]
        return predicted

    @cached_property
    def costs(self) -> np.ndarray:
        """Expected cost of a request of this text and no other tokens, at every model, `[K]` USD.

        The cost is as the policy reads it, if it reads costs, before prices and learnt cost factors change
        it. The costs are computed once.
        """
        predicted = self.request.predicted_costs
        if predicted is None:
            return self._expected[1]
        return predicted

    @cached_property
    def _expected(self) -> tuple[np.ndarray, np.ndarray]:
        """Expected scores and costs by `Heads.expected`, `[K]` each, computed once."""
        return self._heads.expected(self.embedding, self.length)


class Heads:
    """Computes the predictions that one policy reads, from embeddings and prompt lengths (characters)."""

    def __init__(self, oracles: Oracles, needs: Reads):
        self.oracles = oracles
        self.needs = needs

    @classmethod
    def of_bundle(cls, folder: str | Path) -> Heads:
        """Open the heads of a bundle. Its policy is read, since it says which predictions it needs."""
        policy = load_policy(Path(folder) / "policy")
        return cls(Oracles.load(Path(folder) / "oracles"), needs_of(policy))

    def requests(self, embeddings: np.ndarray, lengths: np.ndarray) -> list[Request]:
        """Return one request per prompt. The available models and rho are not set yet.

        Args:
            embeddings: `[n, e]`. lengths: `[n]` characters.
        """
        lengths = np.asarray(lengths, dtype=np.float64)
        needs = self.needs
        if needs.context:
            contexts = self.oracles.contexts(embeddings, lengths)
        else:
            contexts = None
        if needs.scores:
            scores = self.oracles.predict_scores(embeddings, lengths)
        else:
            scores = None
        if needs.costs:
            costs = self.oracles.predict_costs(embeddings, lengths)
        else:
            costs = None
        static = {}
        if needs.static:
            static = {needs.static: self.oracles.predict_scores(embeddings, lengths, needs.static)}
        requests = []
        for i in range(len(embeddings)):
            if needs.surrogate:
                surrogate = self.surrogate(embeddings[i], float(lengths[i]))
            else:
                surrogate = None
            request = Request(
                context=None if contexts is None else contexts[i],
                predicted_scores=None if scores is None else scores[i],
                predicted_costs=None if costs is None else costs[i],
                static_scores={name: value[i] for name, value in static.items()},
                surrogate=surrogate,
                embedding=embeddings[i] if needs.embedding else None,
                prompt_length=float(lengths[i]) if needs.length else None,
            )
            requests.append(request)
        return requests

    def predict(self, texts: Sequence[str], embeddings: np.ndarray) -> list[Prediction]:
        """Return the prediction of every text, given the embeddings `[n, e]`."""
        lengths = np.array([len(text) for text in texts], dtype=np.float64)
        requests = self.requests(embeddings, lengths)
        return [Prediction(self, *row) for row in zip(texts, embeddings, requests, strict=True)]

    def surrogate(self, embedding: np.ndarray, length: float) -> Callable[[int, float], np.ndarray]:
        """Return a function of a played arm and its score that gives the deltas `[K]` of all arms.

        The delta of an arm is its score as the propagation head of the oracles estimates it, less the score
        of the played arm. The delta of the played arm is 0.
        """

        def deltas(arm: int, score: float) -> np.ndarray:
            scores = np.full((1, len(self.oracles.arms)), float(score))
            parts = self.oracles.surrogate_scores(embedding[None], np.array([length]), scores)
            values: np.ndarray = deltas_from_surrogates(parts, scores)[0, arm].astype(np.float64)
            return values

        return deltas

    def expected_scores(self, embeddings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the expected scores `[n, K]` of many prompts, as `expected` gives them for one."""
        return self.oracles.predict_scores(embeddings, lengths, self.needs.static)

    def expected(self, embedding: np.ndarray, length: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the expected scores `[K]` and costs `[K]` (USD) of one prompt.

        Scores come from the static predictor that the policy reads, otherwise from the chosen predictor of
        scores, which a policy that reads `predicted_scores` reads too. Costs come from the chosen predictor
        of costs, even if the policy reads none.
        """
        embeddings = embedding[None]
        lengths = np.array([float(length)])
        scores = self.expected_scores(embeddings, lengths)[0]
        return scores, self.oracles.predict_costs(embeddings, lengths)[0]
