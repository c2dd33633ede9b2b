"""From embeddings to requests: exactly the predictions that the bundle's policy asks for.

A bundle holds the oracles cut down to what its policy needs (`cut_oracles`), and computes no more than that
for a decision. What an explanation shows beyond it is computed when asked for.
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

#: predictor shown for policies that use no prediction of scores themselves
SHOWN = "ridge"


def needs_of(policy: SafePolicy) -> Reads:
    """The inputs that a policy reads in `decide` and `update`; the router computes them.

    Raises:
        RouterError: it needs outcomes that no live router sees.
    """
    algorithm = policy.algorithm
    if algorithm.needs_outcomes or algorithm.full_feedback:
        raise RouterError(f"{policy.name} needs the outcomes of all arms: it exists in replay only")
    return algorithm.reads()


def cut_oracles(oracles: Oracles, needs: Reads) -> Oracles:
    """The oracles cut down to what `needs` asks for and explanations show."""
    chosen = dict(oracles.chosen)
    if not needs.scores:
        chosen["accuracy"] = "knn" if needs.static == "knn_literal" else needs.static or SHOWN
    if chosen["cost"] == "network" and not needs.costs:
        chosen["cost"] = "ridge"
    names = {
        chosen["accuracy"],
        needs.static,
        *(["kernel_ridge"] if chosen["accuracy"] in ("blend", "tasks") else []),
    }
    needed = {"knn" if n == "knn_literal" else n for n in names if n}
    heads = [chosen["accuracy"], chosen["cost"]]
    if needs.surrogate:
        heads.append(chosen["propagation"])
    if needs.context and chosen["features"] == "head":
        heads.append("network")
    network = any(head in ("network", "blend") for head in heads)
    return replace(
        oracles,
        predictors={name: oracles.predictors[name] for name in sorted(needed & set(oracles.predictors))},
        chosen=chosen,
        network=oracles.network if network else None,
        head_pca=oracles.head_pca if needs.context and chosen["features"] == "head" else None,
    )


class Prediction:
    """What is expected of every model for one text; beyond the policy's, computed when first asked for.

    Attributes:
        request: what the policy reads; available arms and rho are not set yet.
        embedding: `[e]`. length, tokens: of the text, in characters and estimated tokens.
    """

    def __init__(self, heads: Heads, text: str, embedding: np.ndarray, request: Request):
        self._heads, self.text, self.embedding, self.request = heads, text, embedding, request
        self.length, self.tokens = float(len(text)), text_tokens(text)

    @cached_property
    def scores(self) -> np.ndarray:
        """`[K]`, those that the policy uses, where it uses predictions."""
        static, predicted = self._heads.needs.static, self.request.predicted_scores
        if static:
            return self.request.static_scores[static]
        return self._expected[0] if predicted is None else predicted

    @cached_property
    def costs(self) -> np.ndarray:
        """`[K]` USD of the text alone, by the bundle."""
        predicted = self.request.predicted_costs
        return self._expected[1] if predicted is None else predicted

    @cached_property
    def _expected(self) -> tuple[np.ndarray, np.ndarray]:
        return self._heads.expected(self.embedding, self.length)


class Heads:
    """Predictions that one policy asks for, from embeddings and prompt lengths (characters)."""

    def __init__(self, oracles: Oracles, needs: Reads):
        self.oracles, self.needs = oracles, needs

    @classmethod
    def of_bundle(cls, folder: str | Path) -> Heads:
        """Those of a bundle; its policy is read for what it needs."""
        return cls(Oracles.load(Path(folder) / "oracles"), needs_of(load_policy(Path(folder) / "policy")))

    def requests(self, embeddings: np.ndarray, lengths: np.ndarray) -> list[Request]:
        """One request per row; the available arms and rho are not set yet."""
        x, long, needs = embeddings, np.asarray(lengths, dtype=np.float64), self.needs
        contexts = self.oracles.contexts(x, long) if needs.context else None
        scores = self.oracles.predict_scores(x, long) if needs.scores else None
        costs = self.oracles.predict_costs(x, long) if needs.costs else None
        static = {}
        if needs.static:
            static = {needs.static: self.oracles.predict_scores(x, long, needs.static)}
        return [
            Request(
                context=None if contexts is None else contexts[i],
                predicted_scores=None if scores is None else scores[i],
                predicted_costs=None if costs is None else costs[i],
                static_scores={name: value[i] for name, value in static.items()},
                surrogate=self.surrogate(x[i], float(long[i])) if needs.surrogate else None,
                embedding=x[i] if needs.embedding else None,
                prompt_length=float(long[i]) if needs.length else None,
            )
            for i in range(len(x))
        ]

    def predict(self, texts: Sequence[str], embeddings: np.ndarray) -> list[Prediction]:
        """What is expected of every model for each text; embeddings `[n, e]`."""
        lengths = np.array([len(text) for text in texts], dtype=np.float64)
        requests = self.requests(embeddings, lengths)
        return [Prediction(self, *row) for row in zip(texts, embeddings, requests, strict=True)]

    def surrogate(self, embedding: np.ndarray, length: float) -> Callable[[int, float], np.ndarray]:
        """(played arm, its score) -> deltas `[K]`, by the propagation head."""

        def deltas(arm: int, score: float) -> np.ndarray:
            scores = np.full((1, len(self.oracles.arms)), float(score))
            parts = self.oracles.surrogate_scores(embedding[None], np.array([length]), scores)
            values: np.ndarray = deltas_from_surrogates(parts, scores)[0, arm].astype(np.float64)
            return values

        return deltas

    def expected_scores(self, embeddings: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Expected scores `[n, K]` of many prompts, as `expected` gives them for one."""
        return self.oracles.predict_scores(embeddings, lengths, self.needs.static)

    def expected(self, embedding: np.ndarray, length: float) -> tuple[np.ndarray, np.ndarray]:
        """Expected (scores, costs) `[K]`: those that the policy uses, where it uses predictions."""
        x, long = embedding[None], np.array([float(length)])
        scores = self.expected_scores(x, long)[0]
        return scores, self.oracles.predict_costs(x, long)[0]
