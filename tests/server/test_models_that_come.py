"""A model joins a server under load and leaves it: no request is lost, nothing restarts."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from server_support import ASK, MODELS, client, log, wait

from cabs_core.router.joining import Scored, add_model, remove_model


@pytest.mark.slow
def test_a_model_joins_and_leaves_under_load(place, upstream, test_prompts):
    folder, events = place / "router", place / "log.sqlite"
    new = {"url": upstream, "price": {"input": 1.0, "output": 2.0}}
    answers, stop = [], threading.Event()
    with client(place) as c:
        keeper, first = c.app.state.keeper, c.app.state.keeper.router.manifest.id

        def ask(number: int) -> None:
            while not stop.is_set():
                body = {
                    "messages": [{"role": "user", "content": f"{number}: {ASK['messages'][0]['content']}"}]
                }
                answer = c.post("/v1/chat/completions", json=body)
                answers.append((answer.status_code, answer.headers.get("x-cabs-model")))
                if answer.status_code == 200:
                    named = {"id": answer.headers["x-cabs-decision"], "score": 1.0}
                    answers.append((c.post("/v1/feedback", json=named).status_code, None))

        askers = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for asker in askers:
            asker.start()
        try:
            assert wait(lambda: len(answers) > 20)
            # before its endpoint is known the router of before goes on, and says so
            many = Scored(test_prompts[:20], np.ones(20), np.full(20, 1e-6))
            add_model(folder, "new", scored=many, log=events)
            assert wait(lambda: keeper.waits and "lacks 'new'" in keeper.waits)
            assert keeper.router.manifest.id == first
            file = place / "upstreams.yaml"
            models = json.loads(file.read_text())["models"]
            file.write_text(json.dumps({"models": {**models, "new": new}}))
            assert wait(lambda: "new" in keeper.router.arms)
            assert wait(lambda: (200, "new") in answers)
            ids = [m["id"] for m in c.get("/v1/models").json()["data"]]
            assert "new" in ids
            remove_model(folder, "new", log=events)
            assert wait(lambda: "new" not in keeper.router.arms)
            seen = len(answers)
            assert wait(lambda: len(answers) > seen + 20)
        finally:
            stop.set()
            for asker in askers:
                asker.join()
        assert {status for status, _ in answers} == {200}
    rows = log(place).decisions()
    assert all(d.status == "answered" for d in rows)
    assert [arms for _, _, arms in log(place).arm_sets()] == [MODELS, [*MODELS, "new"], MODELS]


def test_an_admin_adds_and_removes_a_model(place, upstream):
    keys = {"keys": {"app": "k"}, "admin_keys": {"me": "a"}}
    app, admin = ({"authorization": f"Bearer {key}"} for key in "ka")
    file = place / "upstreams.yaml"
    models = json.loads(file.read_text())["models"]
    rows = [{"prompt": f"What is {i} plus two?", "score": 1, "cost": 1e-5} for i in range(8)]
    with client(place, **keys) as c:
        new = {"name": "new", "scored": rows}
        assert c.post("/v1/models", json=new, headers=app).status_code == 403
        assert c.delete(f"/v1/models/{MODELS[1]}", headers=app).status_code == 403
        early = c.post("/v1/models", json=new, headers=admin)
        assert early.status_code == 409 and "add it there first" in early.text
        file.write_text(json.dumps({"models": {**models, "new": {"url": upstream, "free": True}}}))
        assert wait(lambda: "new" in c.app.state.forwarder.upstreams.models)
        for body, words in (
            ({"name": "new"}, "by one of"),
            ({"name": "new", "scored": rows, "like": MODELS[0]}, "by one of"),
            ({"name": "new", "scored": [{"prompt": "x", "score": 2}]}, "scored[0].score 2"),
            ({"name": "new", "scored": [{"prompt": "x", "score": True}]}, "scored[0].score"),
            ({"name": "new", "scored": [{"score": 1}]}, "scored[0].prompt"),
            ({"name": "new", "scored": "all"}, "scored: expected"),
            ({"name": "new", "like": "gpt-9"}, "unknown model"),
            ({"name": 7, "like": MODELS[0]}, "expected text"),
            ({"name": "new", "like": MODELS[0], "colour": 1}, "colour"),
        ):
            answer = c.post("/v1/models", json=body, headers=admin)
            assert answer.status_code == 400 and words in answer.text, body
        made = c.post("/v1/models", json=new, headers=admin).json()
        assert made["served"] and made["models"] == [*MODELS, "new"]
        assert c.post("/v1/models", json=new, headers=admin).status_code == 400
        only = {**app, "x-cabs-models": "new"}
        assert c.post("/v1/chat/completions", json=ASK, headers=only).headers["x-cabs-model"] == "new"
        assert c.delete("/v1/models/gpt-9", headers=admin).status_code == 404
        assert c.delete("/v1/models/new", headers=admin).json()["models"] == MODELS
