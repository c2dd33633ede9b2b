"""A bundle whose encoder is a transformer: served by ONNX Runtime, decisions as in the replay, int8 where
nothing is lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cabs_core.algorithms.problem.replay_problem import ReplayProblem
from cabs_core.base.errors import ProvenanceError, RouterError
from cabs_core.router import write_encoder
from cabs_core.router.build import build_bundle
from cabs_core.router.bundle import read_manifest
from cabs_core.router.checks import check_bundle_matches_replay
from cabs_core.router.router import Router


@pytest.mark.slow
def test_it_decides_from_text_as_the_replay_does(tmp_path, bert_pool, bert_artifacts, test_prompts) -> None:
    build_bundle(tmp_path / "r", bert_pool, bert_artifacts, policy="ridge", rho=300.0)
    problem = ReplayProblem.load(bert_artifacts["replay_problem"] / "test")
    comparison = check_bundle_matches_replay(tmp_path / "r", problem, prompts=test_prompts)
    assert comparison.passed and comparison.text_rounds > 50 and comparison.text_different == 0
    assert comparison.embedding <= 1e-6


@pytest.mark.slow
def test_int8_has_an_identity_of_its_own_and_is_refused_where_it_costs(
    tmp_path, bert_pool, bert_artifacts, monkeypatch
) -> None:
    pool = bert_pool.model_copy(update={"router": bert_pool.router.model_copy(update={"int8": True})})
    monkeypatch.setattr(write_encoder, "INT8_LOSS", 1.0)
    build_bundle(tmp_path / "small", pool, bert_artifacts, policy="ridge", rho=300.0)
    build_bundle(tmp_path / "exact", bert_pool, bert_artifacts, policy="ridge", rho=300.0)
    small, exact = (read_manifest(tmp_path / name).identity for name in ("small", "exact"))
    assert small == f"{exact}-int8"
    assert Router.load(tmp_path / "small").route("what is the cost of a cat ?").model in bert_pool.models
    monkeypatch.setattr(write_encoder, "INT8_LOSS", -1.0)
    with pytest.raises(RouterError, match="int8 would lose"):
        build_bundle(tmp_path / "refused", pool, bert_artifacts, policy="ridge", rho=300.0)
    assert not (tmp_path / "refused").exists()


def test_another_encoder_than_that_of_the_embeddings_is_refused(tmp_path, bert_pool, bert_artifacts) -> None:
    path = bert_artifacts["prompt_embeddings"] / "provenance.json"
    record = json.loads(path.read_text())
    record["summary"]["encoding"]["identity"] = "0" * 16
    changed = {**bert_artifacts, "prompt_embeddings": tmp_path / "embeddings"}
    changed["prompt_embeddings"].mkdir()
    (tmp_path / "embeddings" / "provenance.json").write_text(json.dumps(record))
    np.save(tmp_path / "embeddings" / "embeddings.npy", np.load(path.parent / "embeddings.npy"))
    with pytest.raises(ProvenanceError, match="the same weights"):
        build_bundle(tmp_path / "x", bert_pool, changed, policy="ridge", rho=300.0)
