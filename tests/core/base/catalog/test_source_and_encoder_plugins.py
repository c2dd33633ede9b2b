"""A source and an encoder of another package, found by their entry points: read, embedded, versioned and
deployed."""

from tests_support import run_beside_package

TOY = '''
"""Coin flips as outcomes, letter counts as embeddings, and what the catalog says about them."""
import hashlib

import numpy as np

from cabs_core.base.catalog.encoders import EncoderRecord
from cabs_core.base.catalog.sources import SourceRecord

SOURCE = SourceRecord("coins", path="toy_parts:read_coins", description="flipped coins.")
ENCODER = EncoderRecord(
    "letter-counts", "26-d counts of letters.", label="Letters", path="toy_parts:LetterCounts"
)


def read_coins(source):
    from cabs_core.data.outcomes.raw import RawOutcomes

    rng, n = np.random.default_rng(source.seed), source.queries
    return RawOutcomes(
        query_ids=np.array([f"q{i}" for i in range(n)]),
        prompts=[f"flip number {i}" for i in range(n)],
        tasks=np.array(["flips"] * n),
        arms=["heads", "tails"],
        scores=rng.integers(0, 2, (n, 2)).astype(float),
        costs=rng.uniform(1e-4, 1e-3, (n, 2)), origin="coins",
    )


class LetterCounts:
    pooling = "counts"

    @staticmethod
    def identity(encoder, fit_prompts):
        return hashlib.sha256(f"letter-counts 1 {encoder.normalize}".encode()).hexdigest()[:16]

    def __init__(self, normalize):
        self.normalize = normalize

    @classmethod
    def make(cls, encoder, fit_prompts):
        return cls(encoder.normalize)

    def encode(self, texts):
        letters = "abcdefghijklmnopqrstuvwxyz"
        vectors = np.array([[t.lower().count(c) for c in letters] for t in texts], dtype=np.float32)
        if self.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors, np.array([[len(t), 0] for t in texts], dtype=np.int64)

    def state(self):
        return {}, {"normalize": self.normalize}

    @classmethod
    def restore(cls, arrays, values):
        return cls(values["normalize"])
'''

SCRIPT = """
import sys
from pathlib import Path

import numpy as np

from cabs_core.pipeline.artifacts.stages import Target, stage_code_version
from cabs_core.base.catalog.encoders import encoders
from cabs_core.base.catalog.sources import sources
from cabs_core.data.encoders.embed import embed_prompts
from cabs_core.data.outcomes import load_outcomes, make_splits
from cabs_core.data.pools.find import load_pool_file
from cabs_core.report.names import encoder_label
from cabs_core.router.encoder import TextEncoder
from cabs_core.router.write_encoder import write_fitted

home = Path(sys.argv[1])
assert list(sources())[-1] == "coins" and list(encoders())[-1] == "letter-counts"
assert encoder_label("letter-counts") == "Letters"
(home / "flips.yaml").write_text("source: {kind: coins, queries: 60}\\nencoder: {name: letter-counts}\\n")
flips = load_pool_file(home / "flips.yaml")
outcomes = load_outcomes(flips)
assert outcomes.arms == ["heads", "tails"] and len(outcomes) == 60
assert set(make_splits(outcomes, flips.pool.split)) == {"train", "validation", "test"}

vectors, report = embed_prompts(outcomes.prompts, flips.pool.encoder, store=home / "store")
again, second = embed_prompts(outcomes.prompts, flips.pool.encoder, store=home / "store")
assert vectors.shape == (60, 26) and report.embedded == 60 and report.pooling == "counts"
assert second.embedded == 0 and np.array_equal(vectors, again)

import toy_parts

(home / "bundle").mkdir()
write_fitted(flips.pool.encoder, (), report.identity, home / "bundle" / "encoder")
router = TextEncoder(flips.pool.encoder.model_dump(mode="json"), report.identity, home / "bundle")
assert np.array_equal(router.encode(list(outcomes.prompts)), vectors)

stages = [Target(name, flips.pool) for name in ("outcomes", "splits", "prompt_embeddings")]
before = [stage.code_version for stage in stages]  # a change of the other package makes what it made stale
source = Path(toy_parts.__file__)
source.write_text(source.read_text() + "\\nCHANGED = True\\n")
stage_code_version.cache_clear()
assert [old != stage.code_version for old, stage in zip(before, stages)] == [True, False, True]
"""


def test_a_source_and_an_encoder_of_another_package(tmp_path):
    points = "[cabs.sources]\ncoins = toy_parts:SOURCE\n[cabs.encoders]\nletters = toy_parts:ENCODER\n"
    run_beside_package(SCRIPT, tmp_path, "toy_parts", TOY, points)
