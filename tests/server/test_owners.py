"""Every row has an owner: names that clients choose find their own decisions only."""

from __future__ import annotations

import asyncio
import os

import pytest
from server_support import MODELS, client, settle

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.request import ChatRequest, session_key
from cabs_core.router.sessions import route_conversation

KEYS = {"alice": "key-of-alice", "bob": "key-of-bob-1"}
ALICE, BOB, BOSS = ({"authorization": f"Bearer {k}"} for k in (*KEYS.values(), "key-of-boss"))


@pytest.fixture
def keyed(place):
    with client(place, keys=KEYS, admin_keys={"boss": "key-of-boss"}, client_costs=True) as c:
        yield c


def responses(c, key, **body):
    """A response of a key, and its row."""
    answer = c.post("/v1/responses", json={"model": "cabs", "input": "a question", **body}, headers=key)
    settle(c)
    return answer.json()["id"], log_of(c).decision(id=answer.headers["x-cabs-decision"])


def log_of(c):
    return c.app.state.keeper.router.log


@pytest.fixture
def speaking(place, write_upstreams):
    write_upstreams({m: {"speaks": ["chat", "responses"]} for m in MODELS})


def test_a_key_scores_no_decision_of_another(speaking, keyed):
    """By naming her response as the one before his, his turn would keep her decision, and his score would
    land on it."""
    hers, row = responses(keyed, ALICE)
    _, his = responses(keyed, BOB, previous_response_id=hers, input="another question")
    assert his.kept is None and his.session != row.session
    for name in ({"response_id": hers}, {"id": row.id}):
        for path, more in (("", {"score": 0.0}), ("/retract", {})):
            answer = keyed.post(f"/v1/feedback{path}", json={**name, **more}, headers=BOB)
            assert answer.status_code == 404
    assert keyed.post("/v1/feedback", json={"id": his.id, "score": 0.0}, headers=BOB).status_code == 200
    assert keyed.post("/v1/feedback", json={"id": row.id, "score": 1.0}, headers=ALICE).status_code == 200
    rewards = log_of(keyed).rewards()
    assert [(r.decision_id, r.teaches) for r in rewards] == [(his.id, True), (row.id, True)]


def test_the_same_names_of_two_keys_are_two_decisions(keyed):
    ids = [
        keyed.post("/v1/decision", json={"text": "a question", "call_id": "same"}, headers=h).json()["id"]
        for h in (ALICE, BOB)
    ]
    for header in (ALICE, BOB, BOSS):  # an admin scores the newest of all
        assert keyed.post("/v1/feedback", json={"call_id": "same", "score": 1.0}, headers=header).is_success
    rewards = log_of(keyed).rewards()
    assert [(r.decision_id, r.source) for r in rewards] == [
        (ids[0], "alice"),
        (ids[1], "bob"),
        (ids[1], "boss"),
    ]
    sessions = [
        keyed.post(
            "/v1/decision",
            json={"messages": [{"role": "user", "content": "Hi"}]},
            headers={**h, "x-session-id": "s"},
        )
        for h in (ALICE, BOB)
    ]
    assert [s.json()["kept"] for s in sessions] == [None, None]


def ask_in_session(c, key, text):
    """A turn of the key's session `mine`; its row."""
    tool = {"role": "tool", "tool_call_id": "t", "content": text}
    messages = [{"role": "user", "content": "a question"}, *[tool] * bool(text)]
    body = {"model": "cabs", "messages": messages}
    answer = c.post("/v1/chat/completions", json=body, headers={**key, "x-session-id": "mine"})
    settle(c)
    return log_of(c).decision(id=answer.headers["x-cabs-decision"])


def test_a_session_has_one_score_and_all_its_scores_are_taken_back(keyed):
    mine = {"session": "mine"}

    def feedback(key, path="", **body):
        answer = keyed.post(f"/v1/feedback{path}", json={**mine, **body}, headers=key)
        return answer.status_code, answer.json()

    first = ask_in_session(keyed, ALICE, "")
    ask_in_session(keyed, BOB, "")
    assert feedback(ALICE, score=0.0)[0] == feedback(BOB, score=0.5)[0] == 200
    later = ask_in_session(keyed, ALICE, "42")
    assert later.kept == first.id
    assert feedback(ALICE, score=1.0) == (409, {"result": "conflict"})
    assert feedback(ALICE, score=0.0)[1] == {"result": "duplicate"}
    assert feedback(ALICE, "/retract")[1] == {"result": "retracted", "scores": 1}
    run = log_of(keyed).database.transaction
    run(lambda r: r("UPDATE decisions SET cost = 3.0 WHERE id = ?", (later.id,)), append=True)
    run(lambda r: r("UPDATE decisions SET cost = 1.0 WHERE id = ?", (first.id,)), append=True)
    assert feedback(ALICE, score=1.0)[0] == 200
    assert keyed.post("/v1/feedback", json={"id": later.id, "score": 0.0}, headers=BOSS).is_success
    rewards = log_of(keyed).rewards()
    assert [(r.source, r.score, r.teaches) for r in rewards] == [
        ("bob", 0.5, True),
        ("alice", 1.0, True),
        ("boss", 0.0, False),
    ]
    assert rewards[1].cost == 2.0  # the mean of the decision's calls
    assert feedback(ALICE, "/retract")[1]["scores"] == 1  # that of another key stays, and teaches
    assert [(r.source, r.teaches) for r in log_of(keyed).rewards()] == [("bob", True), ("boss", True)]


def test_turns_are_looked_up_with_their_caller_in_python_too(router):
    first = route_conversation(router, ChatRequest("a question", key="k", derived=True), caller="alice")
    router.finish(first.id, response_id="r1")
    later = ChatRequest(
        "more", key="other", derived=True, previous_response="r1", is_continued=True, in_tools=True
    )
    assert route_conversation(router, later, caller="bob").kept is None
    assert route_conversation(router, later, caller="alice").kept == first.id
    assert route_conversation(router, later).kept == first.id  # whoever asks without a name may see all


def test_costs_from_callers_are_bounded(keyed):
    name = keyed.post("/v1/decision", json={"text": "a question"}, headers=ALICE).json()["id"]
    most = 20.0 * log_of(keyed).decision(id=name).expected_cost
    for cost in (1e300, 1.01 * most, -1.0, True, "1"):
        body = {"id": name, "score": 1.0, "cost": cost}
        assert keyed.post("/v1/feedback", json=body, headers=ALICE).status_code == 400
    assert keyed.post("/v1/feedback", json={"id": name, "score": 1.0, "cost": most}, headers=ALICE).is_success


# -- LiteLLM -------------------------------------------------------------------------------------------------


class Key:
    """What LiteLLM's proxy keeps of a key that it has let in."""

    def __init__(self, api_key, team_id=None, user_id=None, user_role=None):
        self.api_key, self.team_id, self.user_id, self.user_role = api_key, team_id, user_id, user_role


@pytest.fixture
def plugin(router):
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    pytest.importorskip("litellm")
    from cabs_server.litellm import CabsLogger

    return lambda owner: CabsLogger(router, owner=owner)


async def choose(logger, key, call, **metadata):
    """A call of a key through the plug-in; its row."""
    about = {**metadata, **({} if key is None else {"user_api_key_auth": key})}
    deployments = [{"model_info": {"id": arm}} for arm in logger.router.arms]
    messages = [{"role": "user", "content": "a question"}]
    keywords = {"litellm_call_id": call, "metadata": about}
    await logger.async_filter_deployments("cabs", deployments, messages, keywords)
    return logger.router.log.decision(id=keywords["metadata"]["cabs"])


def test_calls_of_a_proxy_have_owners(plugin):
    async def work():
        for owner, name in (("key", "key:h1"), ("team", "team:t"), ("user", "user:u")):
            row = await choose(plugin(owner), Key("h1", "t", "u"), f"c-{owner}")
            assert row.caller == name
        assert (await choose(plugin("team"), Key("h1"), "c-none")).caller == "key:h1"
        logger, alice, bob = plugin("key"), Key("h1"), Key("h2")
        hers, his = await choose(logger, alice, "same"), await choose(logger, bob, "same")
        # a call id that a client chose closes no attempt of another, and what a client writes itself is no
        # key
        assert logger.router.log.decision(id=hers.id).status == "decided"
        forged = await choose(
            logger, None, "same", user_api_key_hash="h1", user_api_key_auth={"api_key": "h1"}
        )
        assert forged.caller is None
        return logger, alice, bob, hers, his

    logger, alice, bob, hers, his = asyncio.run(work())
    with pytest.raises(RouterError, match="unknown decision"):
        logger.score({"id": hers.id, "score": 0.0}, bob)
    assert logger.score({"call_id": "same", "score": 1.0}, alice) == "recorded"
    assert logger.router.log.rewards()[-1].decision_id == hers.id
    for cost in (1e300, 1e3):
        with pytest.raises(RouterError, match="cost"):
            logger.score({"id": his.id, "score": 1.0, "cost": cost}, bob)
    assert logger.score({"id": his.id, "score": 1.0}, Key("master", user_role="proxy_admin")) == "recorded"
    with pytest.raises(RouterError, match="score"):
        logger.score({"id": his.id}, bob)


def test_a_session_of_a_proxy_is_its_owners(plugin):
    async def work():
        logger = plugin("key")
        return logger, [await choose(logger, Key(k), k, session_id="mine") for k in ("h1", "h2", "h1")]

    logger, rows = asyncio.run(work())
    assert [r.session for r in rows] == [session_key("mine", f"key:{k}") for k in ("h1", "h2", "h1")]
    assert logger.score({"session": "mine", "score": 1.0}, Key("h2")) == "recorded"
    assert logger.router.log.rewards()[-1].decision_id == rows[1].id
