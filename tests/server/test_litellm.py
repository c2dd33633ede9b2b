"""Inside LiteLLM's Router, with mocked answers; skipped without the extra [litellm]."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import datetime

import pytest
from server_support import MODELS, wait

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
litellm = pytest.importorskip("litellm")


from cabs_core.base.errors import RouterError  # noqa: E402
from cabs_core.base.paths import default_log  # noqa: E402
from cabs_core.router.options import RouterOptions  # noqa: E402
from cabs_core.router.promotion import promote  # noqa: E402
from cabs_core.router.router import Router  # noqa: E402
from cabs_server.litellm import CabsLogger  # noqa: E402

ASK = [{"role": "user", "content": "What is two plus two?"}]


def deployments(failing=(), unpriced=()):
    return [
        {
            "model_name": "cabs",
            "litellm_params": {
                "model": f"openai/{m}-made-up",
                "api_key": "none",
                "mock_response": "litellm.RateLimitError" if m in failing else f"from {m}",
                **({} if m in unpriced else {"input_cost_per_token": 1e-5, "output_cost_per_token": 2e-5}),
            },
            "model_info": {"id": m},
        }
        for m in MODELS
    ]


@pytest.fixture(scope="module")
def logger(make_bundle):
    """One for all tests: LiteLLM keeps the first callback of a class."""
    callback = CabsLogger(make_bundle("carrot", epsilon=0.3))
    before = litellm.callbacks
    litellm.callbacks = [callback]
    yield callback
    litellm.callbacks = before


@pytest.fixture
def plugin(logger, make_bundle):
    logger.router, logger.errors = Router.load(make_bundle("carrot", epsilon=0.3), RouterOptions(seed=1)), 0
    return logger


def run(work):
    return asyncio.run(work)


async def settled(logger, count):
    for _ in range(100):
        decisions = logger.router.log.decisions()
        if len(decisions) >= count and all(d.status != "decided" for d in decisions):
            return decisions
        await asyncio.sleep(0.05)
    return logger.router.log.decisions()


def test_routed_logged_and_priced(plugin):
    async def work():
        router = litellm.Router(model_list=deployments())
        shared = {"user": "same dict for all"}
        answers = [await router.acompletion(model="cabs", messages=ASK, metadata=shared) for _ in range(5)]
        return answers, await settled(plugin, 5), shared

    answers, decisions, shared = run(work())
    assert plugin.errors == 0 and "cabs" not in shared and len({d.id for d in decisions}) == 5
    for answer, d in zip(answers, decisions, strict=True):
        assert answer.choices[0].message.content == f"from {d.arm}"
        assert d.status == "answered" and d.response_id == answer.id and d.cost > 0
    assert plugin.router.feedback_by(response_id=answers[0].id, score=1.0) == "recorded"


def test_what_a_provider_holds_stays_with_its_deployment(plugin):
    def filtered(offered):
        held = {"previous_response_id": "resp_1", "input": "go on", "metadata": {}}
        return run(plugin.async_filter_deployments("cabs", offered, None, held))

    offered = [
        {**one, "litellm_params": {**one["litellm_params"], "api_base": f"http://{i % 2}"}}
        for i, one in enumerate(deployments())
    ]
    plugin.router.log_call(MODELS[0], status="answered", response_id="resp_1")
    chosen_models = {chosen["model_info"]["id"] for _ in range(8) for chosen in filtered(offered)}
    assert chosen_models <= {MODELS[0], MODELS[2]} and plugin.errors == 0
    with pytest.raises(litellm.ServiceUnavailableError, match="previous_response_id"):
        filtered(offered[1::2])


def test_the_self_test(plugin):
    async def passes():
        await plugin.check(litellm.Router(model_list=deployments()), "cabs")

    async def unpriced():
        await plugin.check(litellm.Router(model_list=deployments(unpriced=MODELS[:1])), "cabs")

    async def strangers():
        await plugin.check(litellm.Router(model_list=deployments()[:3]), "cabs")

    run(passes())
    with pytest.raises(RouterError, match="knows no price"):
        run(unpriced())
    with pytest.raises(RouterError, match=r"model_info\.id"):
        run(strangers())


def test_a_failed_attempt_is_a_decision_of_its_own_with_a_reason(plugin, make_bundle):
    """The model that the router chooses fails, so that at least one attempt fails whatever is drawn."""
    folder = make_bundle("carrot", epsilon=0.0)
    plugin.router = Router.load(folder)
    chosen = Router.load(folder).route(ASK[0]["content"]).model

    async def work():
        router = litellm.Router(
            model_list=deployments(failing=[chosen]), num_retries=6, allowed_fails=0, cooldown_time=60
        )
        answer = await router.acompletion(model="cabs", messages=ASK)
        return answer, await settled(plugin, 2)

    answer, (*failed, answered) = run(work())
    assert {(d.arm, d.status) for d in failed} == {(chosen, "error")}
    assert all("RateLimitError" in d.reason and "429" in d.reason for d in failed)
    assert answered.arm != chosen and answer.choices[0].message.content == f"from {answered.arm}"
    assert (answered.status, answered.reason) == ("answered", None)


def test_a_call_that_it_did_not_route_is_left_alone(plugin):
    now = datetime.now()
    run(plugin.async_log_success_event({}, None, now, now))
    assert plugin.router.log.decisions() == [] and plugin.errors == 0


def test_each_retry_of_the_proxy_is_another_model_and_a_closed_row(plugin):
    """The proxy asks again under the same id, offers what has failed, and reports one failure of all."""

    async def work():
        tried = []
        for _ in MODELS:
            (chosen,) = await plugin.async_filter_deployments(
                "cabs", deployments(), ASK, {"litellm_call_id": "call-7", "metadata": {}}
            )
            tried.append(chosen["model_info"]["id"])
        await plugin.async_post_call_failure_hook({"litellm_call_id": "call-7"}, RuntimeError(), None)
        return tried

    assert sorted(run(work())) == sorted(MODELS) and plugin.errors == 0
    assert [d.status for d in plugin.router.log.decisions()] == ["error"] * 4
    assert all(d.reason for d in plugin.router.log.decisions())
    assert plugin.router.log.decisions()[-1].reason == "RuntimeError"
    assert {d.call_id for d in plugin.router.log.decisions()} == {"call-7"}


def test_a_folder_is_followed_and_leaves_a_checkpoint(make_bundle, tmp_path):
    promote(make_bundle("carrot", epsilon=0.1), tmp_path / "router")
    followed = CabsLogger(tmp_path / "router")  # the log lies beside it
    try:
        first = followed.router
        assert default_log(tmp_path / "router").is_file()
        done = first.route("what another process decides and scores").id
        second = Router.load(tmp_path / "router", log=default_log(tmp_path / "router"))
        second.feedback(done, score=1.0)
        second.log.close()
        assert wait(lambda: followed.router.learner.learnt == 1)
        promote(make_bundle("lin_ts", epsilon=0.1), tmp_path / "router")
        assert wait(lambda: followed.router.manifest.policy == "lin_ts")
        assert followed.router.log is first.log
    finally:
        followed.router = Router.load(make_bundle("carrot"))  # ends the one before, with a checkpoint
    assert list((tmp_path / "router.events.learned").glob("*/learned.json"))


def test_an_error_inside_never_stops_a_call(plugin, monkeypatch):
    def broken(*arguments, **keywords):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(plugin.router, "route_many", broken)

    async def work():
        return await litellm.Router(model_list=deployments()).acompletion(model="cabs", messages=ASK)

    assert run(work()).choices[0].message.content.startswith("from ")
    assert plugin.errors == 1


def test_a_call_that_is_not_remembered_has_the_decision_of_its_metadata(plugin):
    async def work():
        return [
            await plugin.async_post_call_response_headers_hook(data, None, None)
            for data in ({"metadata": {"cabs": "mine"}}, {})
        ]

    assert run(work()) == [{"x-cabs-decision": "mine"}, None]


def test_the_bill_is_that_of_the_server(plugin):
    """Reasoning that stands in the total alone is paid, and the provider's own cost is taken."""
    for usage, usd in (({}, 10 * 1e-5 + 1_005 * 2e-5), ({"cost": 0.25}, 0.25)):
        counts = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 1_015, **usage}
        answer = litellm.ModelResponse(usage=litellm.Usage(**counts))
        routed = plugin.router.route("What is two plus two?")
        about = {"metadata": {"cabs": routed.id}, "output_cost_per_token": 2e-5}
        kwargs = {"litellm_params": about, "response_cost": 10 * 1e-5 + 5 * 2e-5}
        run(plugin.async_log_success_event(kwargs, answer, datetime.now(), datetime.now()))
        row = plugin.router.log.decision(id=routed.id)
        assert row.cost == pytest.approx(usd) and (row.tokens_in, row.tokens_out) == (10, 1_005)


def test_terms_of_a_call(plugin):
    def chosen(offered, **fields):
        keywords = {"litellm_call_id": "one", **fields}
        picked = run(plugin.async_filter_deployments("cabs", offered, ASK, keywords))[0]["model_info"]["id"]
        headers = run(plugin.async_post_call_response_headers_hook({"litellm_call_id": "one"}, None, None))
        assert headers["x-cabs-decision"] == plugin.router.log.decisions()[-1].id
        assert json.loads(headers["x-cabs-why"])[0]["model"] == picked
        plugin.attempts.clear()
        return picked

    def proxied(**headers):
        return {"proxy_server_request": {"headers": {f"x-cabs-{k}": v for k, v in headers.items()}}}

    for _ in range(10):
        assert (
            chosen(deployments(), **proxied(models=f"{MODELS[1]}, {MODELS[2]}", value="0.002")) in MODELS[1:3]
        )
        assert chosen(deployments(), metadata={"x-cabs-models": [MODELS[3]]}) == MODELS[3]
    rows = plugin.router.log.decisions()
    assert {round(d.rho) for d in rows} == {500, 300}
    with pytest.raises(litellm.BadRequestError, match="unknown model 'gpt-9'"):
        chosen(deployments(), **proxied(models="gpt-9"))
    with pytest.raises(litellm.ServiceUnavailableError, match="x-cabs-models allows"):
        chosen(deployments()[:1], **proxied(models=MODELS[1]))
    assert plugin.errors == 0


def test_answers_whose_score_is_wanted_say_so(plugin, make_bundle):
    plugin.router = Router.load(make_bundle("carrot", epsilon=0.3), RouterOptions(seed=1, score_share=0.5))
    marks = {}
    for i in range(20):
        call = {"litellm_call_id": f"call-{i}"}
        run(plugin.async_filter_deployments("cabs", deployments(), ASK, {**call, "metadata": {}}))
        headers = run(plugin.async_post_call_response_headers_hook(call, None, None))
        marks[headers["x-cabs-decision"]] = headers.get("x-cabs-score")
    plugin.attempts.clear()
    marked = {d.id: d.marked for d in plugin.router.log.decisions()}
    assert marks == {name: "wanted" if is_marked else None for name, is_marked in marked.items()}
    assert set(marks.values()) == {"wanted", None} and plugin.errors == 0


def test_a_failure_here_leaves_out_models_that_may_not_answer(plugin, monkeypatch):
    monkeypatch.setattr("cabs_server.litellm.logger.route_conversation", None)
    fields = {"metadata": {"x-cabs-models": MODELS[:2]}}
    left = run(plugin.async_filter_deployments("cabs", deployments(), ASK, fields))
    assert [one["model_info"]["id"] for one in left] == MODELS[:2] and plugin.errors == 1
