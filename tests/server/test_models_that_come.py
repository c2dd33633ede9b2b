"""Models join a server and leave it, under load: no request is lost, nothing restarts."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
import requests
from server_support import ASK, FIGURES, MODELS, client, log, serving, wait

from cabs_core.base.errors import RouterError
from cabs_core.data.endpoints.upstreams import load_upstreams
from cabs_core.router.joining import FEWEST_SCORED, NewModel, Scored, add_model, remove_model
from cabs_core.router.promotion import promote, roll_back
from cabs_server.upstreams import remarks
from tests.servers import free_port


@pytest.fixture
def add_to_file(place, upstream):
    """add_to_file(name={field: value}) writes models into the upstreams file; None takes one out."""
    file = place / "upstreams.yaml"

    def add(**new) -> None:
        models = json.loads(file.read_text())["models"]
        for name, fields in new.items():
            models.pop(name, None)
            if fields is not None:
                models[name] = {"url": upstream, "price": {"input": 1.0, "output": 2.0}, **fields}
        file.write_text(json.dumps({"models": models}))

    return add


def test_a_model_without_an_endpoint_waits_and_the_router_of_before_goes_on(place, add_to_file, test_prompts):
    with client(place) as c:
        keeper, first = c.app.state.keeper, c.app.state.keeper.router.manifest.id
        many = Scored(test_prompts[:20], np.ones(20), np.full(20, 1e-6))
        add_model(place / "router", NewModel("new", scored=many), log=place / "log.sqlite")
        assert wait(lambda: keeper.reload_problem and "lacks 'new'" in keeper.reload_problem)
        assert keeper.router.manifest.id == first
        add_to_file(new={})
        assert wait(lambda: "new" in keeper.router.arms)
        assert "new" in [m["id"] for m in c.get("/v1/models").json()["data"]]


def test_the_upstreams_file_says_how_a_model_starts(place, add_to_file):
    folder, table = place / "router", place / "scored.csv"
    table.write_text("prompt,score,cost\nWhat is two plus two?,1,1e-5\nWhat is a cat?,7,1e-5\n")
    with client(place) as c:
        keeper = c.app.state.keeper

        def problems() -> list[str]:
            return c.get(f"{FIGURES}/readyz").json()["problems"]

        add_to_file(new={"like": "nobody"}, other={"scored": "scored.csv"})
        assert wait(lambda: len(problems()) == 2)
        assert "upstreams.yaml: models.new.like: " in problems()[0] and "'nobody'" in problems()[0]
        assert "models.other.scored: " in problems()[1] and "scored.csv, row 3: score is 7" in problems()[1]
        assert c.post("/v1/chat/completions", json=ASK).headers["x-cabs-model"] in MODELS
        few = "".join(f"What is two plus {i}?,1,1e-5\n" for i in range(FEWEST_SCORED - 1))
        table.write_text(f"prompt,score,cost\n{few}")
        add_to_file(new={"like": "somebody"})  # a change of the file, after which both are tried again
        assert wait(lambda: "--anyway" in " ".join(problems()))
        table.write_text(f"prompt,score,cost\n{few}What is two plus two again?,1,1e-5\n")
        add_to_file(new={"like": MODELS[0]})
        assert wait(lambda: keeper.router.arms == [*MODELS, "other", "new"]) and wait(lambda: not problems())
        add_to_file(new={"like": MODELS[0], "scored": "scored.csv"})
        assert wait(lambda: "scored or like" in " ".join(problems()))
        add_to_file(new=None)  # an entry that goes takes no model out of the router
        assert wait(lambda: "models lacks 'new'" in " ".join(problems()))
        assert "new" in keeper.router.arms
        add_to_file(new={"like": MODELS[0]})
        assert wait(lambda: not problems())
        remove_model(folder, "new", log=place / "log.sqlite")
        assert wait(lambda: "new" not in keeper.router.arms)
        add_to_file(third={"like": MODELS[0]})  # what was taken out stays out, others come
        assert wait(lambda: keeper.router.arms == [*MODELS, "other", "third"])
        roll_back(folder)
        assert wait(lambda: "third" not in keeper.router.arms)
        add_to_file(fourth={"like": MODELS[0]})
        assert wait(lambda: keeper.router.arms == [*MODELS, "other", "fourth"])


def test_fields_of_a_start_that_cannot_be(place, add_to_file):
    file = place / "upstreams.yaml"
    for fields, words in (
        ({"like": "a", "scored": "b"}, "models.new: .*scored or like"),
        ({"like": ""}, "models.new.like"),
        ({"scored": ["a"]}, "models.new.scored"),
    ):
        add_to_file(new=fields)
        with pytest.raises(RouterError, match="upstreams.yaml: .*" + words):
            load_upstreams(file)
    add_to_file(new={"like": MODELS[0]})
    (line,) = (line for line in remarks(load_upstreams(file), MODELS) if line.startswith("models.new:"))
    assert "like" in line
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "embeddings": {"e": content["models"]["new"]}}))
    with pytest.raises(RouterError, match=r"embeddings.*e\.like: no router chooses"):
        load_upstreams(file)


@pytest.mark.e2e
@pytest.mark.slow
def test_models_join_two_workers_under_load_and_leave_them(place, make_bundle, add_to_file):
    promote(make_bundle("lin_ts", epsilon=0.2), place / "router")
    answers, stop = [], threading.Event()
    figures = f"127.0.0.1:{free_port()}"
    with serving(place, "--workers", "2", "--metrics", figures) as (process, url):

        def ask(number: int) -> None:
            while not stop.is_set():
                body = {"messages": [{"role": "user", "content": f"{number}: what is two plus two?"}]}
                answer = requests.post(f"{url}/v1/chat/completions", json=body, timeout=60)
                answers.append((answer.status_code, answer.headers.get("x-cabs-model")))
                named = {"id": answer.headers.get("x-cabs-decision"), "score": 1.0}
                given = requests.post(f"{url}/v1/feedback", json=named, timeout=60)
                answers.append((given.status_code, None))

        askers = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for asker in askers:
            asker.start()
        try:
            assert wait(lambda: len(answers) > 20, 60)
            add_to_file(new={"like": "nobody"})
            assert wait(lambda: all(_problems(figures) for _ in range(6)), 60)  # whichever worker is asked
            add_to_file(new={"like": MODELS[0]})
            assert wait(lambda: (200, "new") in answers and not any(_problems(figures) for _ in range(6)), 60)
            add_to_file(new={"like": MODELS[0]}, newer={"like": MODELS[1]})
            assert wait(lambda: (200, "newer") in answers, 60)
            remove_model(place / "router", "new", log=place / "log.sqlite")
            assert wait(lambda: not any("new" in _models(url) for _ in range(6)), 60)
            seen = len(answers)
            assert wait(lambda: len(answers) > seen + 20, 60)
        finally:
            stop.set()
            for asker in askers:
                asker.join()
        assert process.poll() is None
    assert {status for status, _ in answers} == {200}
    assert [arms for _, _, arms in log(place).arm_sets()] == [
        MODELS,
        [*MODELS, "new"],
        [*MODELS, "new", "newer"],
        [*MODELS, "newer"],
    ]
    assert all(d.status == "answered" for d in log(place).decisions())


def _problems(address: str) -> list[str]:
    return requests.get(f"http://{address}/readyz", timeout=60).json()["problems"]


def _models(url: str) -> list[str]:
    return [model["id"] for model in requests.get(f"{url}/v1/models", timeout=60).json()["data"]]
