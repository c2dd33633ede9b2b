"""Train prompts near a prompt, which an explanation shows: a decision rests on their scores."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

#: Number of prompts that a bundle keeps, at most.
KEPT = 5000
#: Characters of each prompt that are kept.
CHARACTERS = 300


@dataclass(frozen=True)
class Neighbours:
    """Train prompts with their embeddings and scores.

    Attributes:
        embeddings: `[m, e]` float16.
        texts: texts of the m prompts, cut to `CHARACTERS`.
        scores: `[m, K]` float32; nan if a model did not answer.
        arms: names of the K models.
    """

    embeddings: np.ndarray
    texts: list[str]
    scores: np.ndarray
    arms: list[str]

    @classmethod
    def sample(
        cls,
        embeddings: ArrayLike,
        texts: Sequence[str],
        scores: ArrayLike,
        arms: Iterable[str],
        seed: int = 0,
    ) -> Self:
        """Return all given train prompts, or `KEPT` of them, drawn without replacement, if there are more.

        Args:
            embeddings: `[n, e]`. texts: n texts. scores: `[n, K]`. arms: K names.
            seed: seed of the draw.
        """
        rows = np.sort(np.random.default_rng([seed, 40]).permutation(len(texts))[:KEPT])
        return cls(
            np.asarray(embeddings)[rows].astype(np.float16),
            [texts[i][:CHARACTERS] for i in rows],
            np.asarray(scores)[rows].astype(np.float32),
            list(arms),
        )

    def save(self, folder: Path) -> None:
        """Write arrays and texts into a folder that does not exist yet."""
        folder.mkdir()
        with open(folder / "neighbours.npz", "wb") as handle:
            np.savez(handle, embeddings=self.embeddings, scores=self.scores)
        content = json.dumps({"arms": self.arms, "texts": self.texts})
        (folder / "neighbours.json").write_text(content, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Return the prompts that `save` wrote, or None if the bundle was made without prompts.

        The prompts of the last two folders stay in memory, and are read again if their file was replaced.
        """
        try:
            status = (folder / "neighbours.npz").stat()
        except FileNotFoundError:
            return None
        return cls._read(folder, status.st_mtime_ns, status.st_ino)

    @classmethod
    @lru_cache(maxsize=2)
    def _read(cls, folder: Path, mtime_ns: int, inode: int) -> Self:
        """Return the prompts in a folder, whose arrays have this modification time and inode."""
        data = json.loads((folder / "neighbours.json").read_text(encoding="utf-8"))
        with np.load(folder / "neighbours.npz", allow_pickle=False) as stored:
            return cls(stored["embeddings"], data["texts"], stored["scores"], data["arms"])

    def nearest(self, embedding: np.ndarray, count: int) -> list[dict[str, Any]]:
        """Return the `count` prompts of smallest Euclidean distance, nearest first.

        Each prompt is a dict of `text`, `distance` and `scores`, {model: score} of the models that answered.
        """
        squared = ((self.embeddings.astype(np.float32) - embedding) ** 2).sum(axis=1)
        order = np.argsort(squared, kind="stable")[: max(0, int(count))]
        rows = []
        for i in order:
            scores = zip(self.arms, self.scores[i], strict=True)
            answered = {arm: float(score) for arm, score in scores if not np.isnan(score)}
            distance = float(np.sqrt(squared[i]))
            rows.append({"text": self.texts[i], "distance": distance, "scores": answered})
        return rows
