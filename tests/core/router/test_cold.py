"""A router before anything was measured: from models and prices alone; and what its log can decide, and
when."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.upstreams import Upstream
from cabs_core.evaluation.ope.data import LoggedData
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.evaluation.ope.intervals import LEAST
from cabs_core.pipeline.commands.export_cli import export
from cabs_core.router.bundle import read_manifest
from cabs_core.router.cold import build_cold
from cabs_core.router.decidable import in_words, reach_of
from cabs_core.router.doctor_cli import doctor
from cabs_core.router.options import RouterOptions
from cabs_core.router.price_prior import HIGHEST, LOWEST, prior_scores
from cabs_core.router.router import Router

URL = "http://127.0.0.1:1/v1"
MODELS = {
    "small": Upstream(url=URL, price={"input": 0.1, "output": 0.2}),
    "large": Upstream(url=URL, price={"input": 10, "output": 30}),
    "own": Upstream(url=URL, free=True),
}


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=8))
@example([0.0, 5e-324])
def test_the_prior_rises_with_the_price_and_stays_in_range(prices) -> None:
    priors = prior_scores(np.array(prices))
    assert ((priors >= LOWEST) & (priors <= HIGHEST)).all()
    order = np.argsort(prices, kind="stable")
    assert (np.diff(priors[order]) >= -1e-12).all()


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cold")
        patch.setenv("CABS_HOME", str(folder / "home"))
        build_cold(folder / "router", MODELS, encoder="tfidf-svd", epsilon=0.3)
        yield folder / "router"


@pytest.mark.slow
def test_it_routes_explores_and_unlearns_its_prior(cold) -> None:
    manifest = read_manifest(cold)
    assert manifest.names == list(MODELS) and manifest.evidence == {} and manifest.provenance["cold"] is True
    assert "Nothing was measured" in (cold / "README.md").read_text()
    assert "standard error" not in (cold / "README.md").read_text()
    router = Router.load(cold, RouterOptions(seed=1))
    first = router.route("Write a sonnet about rivers")
    assert min(first.probabilities.values()) >= 0.1 - 1e-9  # a third of epsilon each
    for i in range(300):  # the small one is always right, the others never: against the prior
        d = router.route(f"question {i} about rivers")
        router.feedback(d.id, score=float(d.model == "small"), cost=0.0)
    last = [router.route(f"another question {i} about rivers") for i in range(60)]
    assert np.mean([d.chosen == "small" for d in last]) > 0.9
    router.close()


@pytest.mark.parametrize("mode", ["shadow", "guarded"])
def test_shadow_and_guarded_begin_with_the_fallback(cold, mode) -> None:
    router = Router.load(cold, RouterOptions(mode=mode, epsilon=0.0 if mode == "shadow" else 0.01, seed=2))
    models = [router.route(f"text {i}").model for i in range(30)]
    assert models.count(read_manifest(cold).fallback) >= 27
    router.close()


def test_a_model_without_a_price_is_named(tmp_path) -> None:
    with pytest.raises(RouterError, match=r"model 'b': .*price"):
        build_cold(tmp_path / "r", {**MODELS, "b": Upstream(url=URL)}, encoder="tfidf-svd")
    with pytest.raises(RouterError, match="holds 1 models"):
        build_cold(tmp_path / "r", {"own": MODELS["own"]}, encoder="tfidf-svd")


@pytest.mark.slow
def test_the_command_and_what_the_log_can_decide(tmp_path, cabs_home) -> None:
    (tmp_path / "upstreams.yaml").write_text(
        f"models:\n  small: {{url: {URL}, price: {{input: 0.1, output: 0.2}}}}\n  large: "
        f"{{url: {URL}, price: {{input: 10, output: 30}}}}\n"
    )
    arguments = (
        f"--cold --models {tmp_path}/upstreams.yaml --out {tmp_path}/router --encoder tfidf-svd".split()
    )
    done = CliRunner().invoke(export, [*arguments, "--epsilon", "0.5"])
    assert done.exit_code == 0 and "nothing was measured yet" in done.output, done.output
    router = Router.load(tmp_path / "router", log=tmp_path / "router.events.sqlite")
    for i in range(300):
        router.feedback(router.route(f"question {i}").id, score=1.0)
    router.close()
    done = CliRunner().invoke(doctor, ["--router", str(tmp_path / "router")])
    assert "the log can tell mean scores of" in done.output, done.output
    assert CliRunner().invoke(export, []).exit_code == 2
    assert CliRunner().invoke(export, ["--cold"]).exit_code == 2


def test_doctor_and_evaluate_agree_on_how_many_scored_calls_can_tell() -> None:
    actions = (np.arange(100) % 10 > 0).astype(np.int64)
    chance = np.tile([0.1, 0.9], (100, 1))
    scores = (np.arange(100) % 3 > 0).astype(float)
    names = np.arange(100).astype(str)
    costs = np.full(100, 0.001)
    features = np.zeros((100, 0))
    data = LoggedData(
        ["a", "b"], actions, scores, costs, features, names, chance[np.arange(100), actions], chance
    )
    found = evaluate(data, np.tile([1.0, 0.0], (100, 1)), 0.0)
    said = reach_of("a", [10.0] * 10, list(scores[actions == 0]), 100)
    assert said.n_eff == pytest.approx(found.n_eff)
    assert said.half_width is None
    assert f"about {said.needed:,} more scored decisions" in found.refused


def test_reach_by_hand() -> None:
    even = reach_of("a", [2.0] * 60, [1.0, 0.0] * 30, 120)
    assert even.n_eff == pytest.approx(60)
    assert even.half_width == pytest.approx(2.001 * 0.5 / np.sqrt(59), rel=1e-3) and even.needed == 0
    rare = reach_of("b", [50.0] * 3, [1.0] * 3, 150)
    assert rare.half_width is None and rare.needed == 150 * (LEAST / 3 - 1) + 50  # two digits, upwards
    never = reach_of("c", [], [], 150)
    text = in_words([even, reach_of("d", [2.0] * 60, [1.0] * 60, 120), rare, never])
    assert "tell mean scores of a (±0.130), d (±0.049) apart" in text
    assert "b: about 2,400 more scored decisions" in text and "c: no scored decision yet" in text
