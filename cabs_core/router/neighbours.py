"""Train prompts near a prompt, for explanations: what a decision rests on."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

#: prompts kept in a bundle, and characters of each
KEPT, CHARACTERS = 5000, 300


@dataclass(frozen=True)
class Neighbours:
    """Train prompts with their embeddings and scores.

    Attributes:
        embeddings: `[m, e]` float16. texts: [m], cut to `CHARACTERS`. scores: `[m, K]` float32, nan where a
            model did not answer. arms: [K] names.
    """

    embeddings: np.ndarray
    texts: list[str]
    scores: np.ndarray
    arms: list[str]

    @classmethod
    def of(
        cls,
        embeddings: ArrayLike,
        texts: Sequence[str],
        scores: ArrayLike,
        arms: Iterable[str],
        seed: int = 0,
    ) -> Self:
        """At most `KEPT` train prompts, drawn without replacement where there are more."""
        rows = np.sort(np.random.default_rng([seed, 40]).permutation(len(texts))[:KEPT])
        return cls(
            np.asarray(embeddings)[rows].astype(np.float16),
            [texts[i][:CHARACTERS] for i in rows],
            np.asarray(scores)[rows].astype(np.float32),
            list(arms),
        )

    def save(self, folder: Path) -> None:
        """Write arrays and texts into `folder`."""
        folder.mkdir()
        with open(folder / "neighbours.npz", "wb") as handle:
            np.savez(handle, embeddings=self.embeddings, scores=self.scores)
        content = json.dumps({"arms": self.arms, "texts": self.texts})
        (folder / "neighbours.json").write_text(content, encoding="utf-8")

    @classmethod
    @lru_cache(maxsize=2)
    def load(cls, folder: Path) -> Self | None:
        """What `save` wrote; None where the bundle was made without prompts."""
        if not (folder / "neighbours.npz").is_file():
            return None
        data = json.loads((folder / "neighbours.json").read_text(encoding="utf-8"))
        with np.load(folder / "neighbours.npz", allow_pickle=False) as stored:
            return cls(stored["embeddings"], data["texts"], stored["scores"], data["arms"])

    def nearest(self, embedding: np.ndarray, count: int) -> list[dict[str, Any]]:
        """The `count` nearest prompts (Euclidean), nearest first, with the scores of models that answered."""
        distance = ((self.embeddings.astype(np.float32) - embedding) ** 2).sum(axis=1)
        order = np.argsort(distance, kind="stable")[: max(0, int(count))]
        return [
            {
                "text": self.texts[i],
                "distance": float(np.sqrt(distance[i])),
                "scores": {
                    arm: float(v) for arm, v in zip(self.arms, self.scores[i], strict=True) if not np.isnan(v)
                },
            }
            for i in order
        ]
