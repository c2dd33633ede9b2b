"""The server: forwarding, streaming, feedback, keys, failures, a promoted bundle.

The upstream is a stand-in.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
import time
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from server_support import ASK, FIGURES, JSON, MODELS, client, figure, log, settle, wait
from threadpoolctl import threadpool_info, threadpool_limits

from cabs_core.base.errors import LogError, RouterError
from cabs_core.data.endpoints.upstreams import read_upstreams
from cabs_core.data.events.log import EventLog
from cabs_core.router.bundle import read_manifest
from cabs_core.router.promotion import promote
from cabs_core.router.router import Router
from cabs_server.callers import KEYS, check_host, read_keys
from tests.servers import free_port


def test_a_worker_multiplies_on_one_thread(place):
    """Workers share the processors; and the replay, whose decisions it repeats, did so too."""

    def threads() -> dict[str, int]:
        return {p["filepath"]: p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}

    async def run() -> dict[str, int]:  # on the main thread, as in a worker
        app = client(place).app
        async with app.router.lifespan_context(app):
            return threads()

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        assert set(asyncio.run(run()).values()) == {1}
        after = threads()  # and of libraries that were loaded meanwhile
        assert 2 in before.values() and {path: after[path] for path in before} == before


def test_forwarded_logged_scored(place):
    with client(place) as c:
        answer = c.post("/v1/chat/completions", json={"model": "cabs", **ASK})
        assert answer.status_code == 200
        model, name = answer.headers["x-cabs-model"], answer.headers["x-cabs-decision"]
        assert answer.json()["choices"][0]["message"]["content"] == f"{model}: What is two plus two?"
        settle(c)
        row = log(place).decision(id=name)
        assert (row.arm, row.status, row.response_id) == (model, "answered", answer.json()["id"])
        assert row.cost == pytest.approx((10 * 100 + 5 * 200) / 1e6) and row.latency > 0
        answers = [
            c.post("/v1/feedback", json={"response_id": row.response_id, "score": s}) for s in (1, 1, 0)
        ]
        assert [(r.status_code, r.json()["result"]) for r in answers] == [
            (200, "recorded"),
            (200, "duplicate"),
            (409, "conflict"),
        ]
        assert [(r.cost, r.source) for r in log(place).rewards()] == [(row.cost, "local")]


def test_an_answer_waits_for_its_decision_in_the_log_and_not_for_its_end(place, monkeypatch, caplog):
    """Feedback that names the answer's id comes after the end, as it waits on the same thread."""
    may_end, finish = threading.Event(), Router.finish

    def slow(self, name, **facts):
        assert may_end.wait(10)
        finish(self, name, **facts)

    def full(self, name, **facts):
        raise sqlite3.OperationalError("disk is full")

    with client(place) as c:
        monkeypatch.setattr(Router, "finish", slow)
        answer = c.post("/v1/chat/completions", json={"model": "cabs", **ASK})
        row = log(place).decision(id=answer.headers["x-cabs-decision"])
        assert answer.status_code == 200 and row.status == "decided" and row.cost is None
        may_end.set()
        feedback = c.post("/v1/feedback", json={"response_id": answer.json()["id"], "score": 1})
        assert feedback.json()["result"] == "recorded"
        row = log(place).decision(id=row.id)
        assert row.status == "answered" and log(place).rewards()[0].cost == row.cost
        monkeypatch.setattr(Router, "finish", full)
        assert c.post("/v1/chat/completions", json={"model": "cabs", **ASK}).status_code == 200
        settle(c)
        assert "could not be logged" in caplog.text and "disk is full" in caplog.text


def test_models_rho_and_a_model_by_name(place):
    with client(place) as c:
        names = [m["id"] for m in c.get("/v1/models").json()["data"]]
        assert names == ["cabs", "cabs-rho-0", "cabs-rho-300", "cabs-rho-900", *MODELS]
        dear = c.post("/v1/chat/completions", json={"model": "cabs-rho-900", **ASK})
        assert log(place).decision(id=dear.headers["x-cabs-decision"]).rho == 900.0
        direct = c.post("/v1/chat/completions", json={"model": "claude-v1", **ASK})
        assert direct.status_code == 200 and "x-cabs-decision" not in direct.headers
        assert c.post("/v1/chat/completions", json={"model": "gpt-9", **ASK}).status_code == 404


def test_decision_only(place):
    with client(place, upstreams=None) as c:
        decided = c.post("/v1/decision", json={"text": "Hello there", "available": MODELS[:2], "rho": 0})
        assert decided.json()["model"] in MODELS[:2] and set(decided.json()["scores"]) == set(MODELS)
        assert c.post("/v1/chat/completions", json=ASK).status_code == 501
        for bad, words in (
            ({"text": ""}, "empty text"),
            ({"text": "x", "available": "all"}, "list of models"),
            ({"text": "x", "rho": "1"}, "rho"),
            ({"text": "x", "colour": 1}, "colour"),
            ({"text": 7}, "cannot route"),
            ({}, "nothing to route"),
        ):
            answer = c.post("/v1/decision", json=bad)
            assert answer.status_code == 400 and words in answer.json()["error"]["message"], bad
        assert c.post("/v1/decision", content=b"[1]", headers=JSON).status_code == 400
        assert c.post("/v1/decision", content=b"{", headers=JSON).status_code == 400
        assert len(log(place).decisions()) == 1


def test_bad_feedback(place):
    with client(place) as c:
        name = c.post("/v1/decision", json={"text": "Hello"}).json()["id"]
        for bad, status in (
            ({"id": "nobody", "score": 1}, 404),
            ({"call_id": "nobody", "score": 1}, 404),
            ({"id": name, "score": 1.2}, 400),
            ({"id": name}, 400),
            ({"score": 1}, 400),
            ({"id": name, "call_id": "x", "score": 1}, 400),
            ({"id": 3, "score": 1}, 400),
            ({"id": name, "score": 1, "source": "me"}, 400),
        ):
            assert c.post("/v1/feedback", json=bad).status_code == status, bad
        assert log(place).rewards() == []
        one = {"id": name, "score": 0.5, "idempotency_key": "k"}
        result = c.post("/v1/feedback", json=one).json()
        assert (
            result["result"] == "recorded"
            and result["learnt"] is False
            and "carrot does not learn" in result["note"]
        )
        assert c.post("/v1/feedback", json=one).json() == {"result": "duplicate"}


def test_timeouts_and_unreachable_upstreams(place, write_upstreams):
    nobody = {"url": f"http://127.0.0.1:{free_port()}/v1"}
    slow = {"model": "slow", "timeout": 0.2}
    write_upstreams(dict(zip(MODELS, [nobody, nobody, slow, slow], strict=True)), attempts=4)
    with client(place) as c:
        answer = c.post("/v1/chat/completions", json=ASK)
    assert answer.status_code in (502, 504) and answer.json()["error"]["type"] == "upstream_error"
    rows = {d.arm: d for d in log(place).decisions()}
    assert [rows[m].status for m in MODELS] == ["error", "error", "timeout", "timeout"]
    assert [rows[m].cost is None for m in MODELS] == [True, True, False, False]  # what was never sent is free


def test_keys_are_asked_for_and_name_the_source(place):
    with client(place, keys={"app": "secret-of-app"}, admin_keys={"judge": "secret-of-judge"}) as c:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            assert c.post("/v1/decision", json={"text": "Hi"}, headers=headers).status_code == 401
        assert c.get("/metrics").status_code == 401 and c.get("/healthz").status_code == 200
        app, judge = ({"authorization": f"Bearer secret-of-{n}"} for n in ("app", "judge"))
        name = c.post("/v1/decision", json={"text": "Hi there"}, headers=app).json()["id"]
        for headers, score in ((app, 1), (judge, 0)):
            answer = c.post("/v1/feedback", json={"id": name, "score": score}, headers=headers)
            assert answer.json()["result"] == "recorded"
        assert [r.source for r in log(place).rewards()] == ["app", "judge"]
        assert b"secret-of" not in (place / "log.sqlite").read_bytes()


def test_a_key_is_found_whatever_the_case_of_its_scheme_and_beside_another_scheme(place):
    with client(place, upstreams=None, echo=True, keys={"app": "secret-of-app"}) as c:
        for headers, status in (
            ({"authorization": "bearer secret-of-app"}, 200),
            ({"authorization": "BEARER  secret-of-app"}, 200),
            ({"authorization": "Basic YTpi", "x-api-key": "secret-of-app"}, 200),
            ({"authorization": "Bearer", "x-api-key": "secret-of-app"}, 200),
            ({"authorization": "", "x-api-key": "secret-of-app"}, 200),
            ({"authorization": "secret-of-app"}, 200),
            ({"authorization": "Basic secret-of-app"}, 401),
            ({"authorization": "Bearer wrong", "x-api-key": "secret-of-app"}, 401),
            ({"authorization": "Bearer"}, 401),
        ):
            assert c.get("/v1/models", headers=headers).status_code == status, headers


def test_upstream_keys_come_from_the_environment_and_cookies_go_nowhere(place, write_upstreams, monkeypatch):
    class Upstream(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append((self.headers["authorization"], self.headers["cookie"]))
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("set-cookie", "session=of-one-caller")
            self.end_headers()
            self.wfile.write(b'{"id": "x", "usage": null, "choices": [{}]}')

        def log_message(self, *_):
            pass

    seen = []
    with HTTPServer(("127.0.0.1", 0), Upstream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://localhost:{server.server_port}/v1"  # cookies of bare addresses are dropped anyway
        write_upstreams({m: {"url": url, "key_env": "TEST_UPSTREAM_KEY"} for m in MODELS})
        with pytest.raises(RouterError, match=r"TEST_UPSTREAM_KEY.*not set"):
            read_upstreams(place / "upstreams.yaml", MODELS)
        monkeypatch.setenv("TEST_UPSTREAM_KEY", "sk-1234567890")
        with client(place, keys={"a": "client-key-1"}) as c:
            for _ in range(2):
                c.post("/v1/chat/completions", json=ASK, headers={"authorization": "Bearer client-key-1"})
        server.shutdown()
    assert seen == [("Bearer sk-1234567890", None)] * 2
    assert b"sk-1234567890" not in (place / "log.sqlite").read_bytes()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: {a: {url: 'ftp://x'}}", "http://"),
        ("models: {a: {url: 'http://u:p@x/v1'}}", "without user"),
        ("models: {a: {}}", "url"),
        ("- a", "expected a mapping with `models` at the top"),
        ("", "found None"),
        ("models: {a: {url: 'http://x', keys: 1}}", "keys"),
        ("models: {a: {url: 'http://x', free: true, price: {input: 1, output: 1}}}", "price or free"),
        ("models: {b: {url: 'http://x'}}", "lacks 'a'"),
        ("models:\n  a: {url: x\nb: 1", r"u.yaml, line \d: not YAML: [^\n]*$"),
        ("!!python/object:os.system {}", "YAML"),
    ],
)
def test_bad_upstream_files(tmp_path, text, words):
    (tmp_path / "u.yaml").write_text(text)
    with pytest.raises(RouterError, match=words):
        read_upstreams(tmp_path / "u.yaml", ["a"])
    with pytest.raises(RouterError, match=r"upstreams file .*no.yaml does not exist"):
        read_upstreams(tmp_path / "no.yaml", ["a"])


def test_hosts_and_keys():
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        check_host(host, {})
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(RouterError, match="asks for a key"):
            check_host(host, {})
        check_host(host, {"a": "12345678"})
    assert read_keys("a=12345678, b=abcdefgh=") == {"a": "12345678", "b": "abcdefgh="}
    assert read_keys("12345678") == {"default": "12345678"} and read_keys(None) == {}
    for bad in ("a=1", "a=12345678,a=12345679", "short", "local=12345678"):
        with pytest.raises(RouterError) as error:
            read_keys(bad)
        assert "1234567" not in str(error.value)


def test_a_key_may_end_with_equals_signs_and_no_message_shows_a_part_of_a_key():
    padded = "c2VjcmV0LWtleS1vZi1tZQ=="
    assert read_keys(padded) == {"default": padded}
    assert read_keys(f"app={padded}, b=abcdefg=") == {"app": padded, "b": "abcdefg="}
    for bad, number in (
        ("secretsecret=", 1),  # a name whose variable is not set, or a short key
        ("secretsecret==,a=12345678", 1),
        ("a=12345678,secretsecret=x", 2),
        ("a=12345678,secretsecret=1234567é", 2),
        (f"{padded}, {padded[:-2]}", 2),
        ("secretsecret=12345678,secretsecret=12345679", 2),
    ):
        with pytest.raises(RouterError, match=f"{KEYS}, entry {number}: ") as error:
            read_keys(bad)
        assert not any(part in str(error.value) for part in ("secretsecret", "1234567", padded[:-2])), bad


def test_a_promoted_bundle_is_picked_up_and_a_damaged_one_is_not(place, make_bundle):
    def bundle(c):
        return c.get("/healthz").json()["bundle"]

    with client(place) as c:
        first, opened = bundle(c), c.app.state.keeper.router.log
        earlier = c.post("/v1/chat/completions", json=ASK).headers["x-cabs-decision"]
        promote(make_bundle("ridge", epsilon=0.1), place / "router")
        assert wait(lambda: bundle(c) != first)
        assert bundle(c) == read_manifest(place / "router").id
        assert c.app.state.keeper.router.log is opened  # no second connection
        answer = c.post("/v1/chat/completions", json=ASK)
        assert log(place).decision(id=answer.headers["x-cabs-decision"]).bundle == bundle(c)
        assert c.post("/v1/feedback", json={"id": earlier, "score": 1}).json()["result"] == "recorded"
        promote(make_bundle("carrot", epsilon=0.1), place / "router")
        assert wait(lambda: bundle(c) == first)
        header = place / "router" / "router.json"
        header.write_text(header.read_text().replace('"rho": 300.0', '"rho": 301.0'))
        assert wait(lambda: figure(c, "cabs_keeper_failures_total"))
        assert bundle(c) == first and c.post("/v1/chat/completions", json=ASK).status_code == 200
        shutil.rmtree(place / "router")
        time.sleep(0.2)  # the keeper looks every .05 s
        assert bundle(c) == first and c.post("/v1/chat/completions", json=ASK).status_code == 200


def test_a_promoted_bundle_has_a_checkpoint_though_its_learner_counts_as_far_as_the_old_one(
    place, make_bundle
):
    before = Router.load(place / "router", log=place / "log.sqlite")
    before.feedback(before.route("Hello").id, score=1.0)
    before.log.close()
    with client(place, checkpoint=0.0):  # both read the whole log in one step
        promote(make_bundle("ridge", epsilon=0.1), place / "router")
        name = read_manifest(place / "router").id
        assert wait((place / "log.learned" / name / "learned.json").is_file)


def test_the_log_gets_into_its_file_beside_requests(place):
    """Else every eightieth request or so would wait some 10 ms for it."""

    def in_file() -> bool:
        uri = f"{(place / 'log.sqlite').as_uri()}?mode=ro&immutable=1"  # as if there were no write-ahead log
        with closing(sqlite3.connect(uri, uri=True)) as db, suppress(sqlite3.Error):
            return db.execute("SELECT COUNT(*) FROM decisions").fetchone() == (1,)
        return False

    with client(place) as c:
        c.post("/v1/chat/completions", json=ASK)
        settle(c)
        assert wait(in_file)


def test_metrics_count_the_log(place):
    with client(place) as c:
        ids = [c.post("/v1/chat/completions", json=ASK).headers["x-cabs-decision"] for _ in range(5)]
        c.post("/v1/feedback", json={"id": ids[0], "score": 1})
        # numbers have gaps, as after PostgreSQL's rollbacks
        with sqlite3.connect(place / "log.sqlite") as db:
            db.execute("UPDATE sqlite_sequence SET seq = 9 WHERE name = 'rewards'")
        c.post("/v1/feedback", json={"id": ids[1], "score": 1})
        assert log(place).rewards()[-1].seq == 10
        assert (figure(c, "cabs_decisions_total"), figure(c, "cabs_rewards_total")) == (5, 2)
        text = c.get(f"{FIGURES}/metrics").text
    assert "cabs_decision_seconds_bucket{" in text and "cabs_learnt_rewards{" in text


def test_a_large_request_is_refused(place):
    with client(place) as c:
        answer = c.post("/v1/decision", json={"text": "x" * (21 << 20)})
        assert answer.status_code == 413 and "larger than 20 MiB" in answer.json()["error"]["message"]
        assert c.post("/v1/decision", json={"text": "word " * 200_000}).status_code == 200


def test_scores_are_taken_back_by_whoever_gave_them(place):
    keys = {"one": "key-of-one", "two": "key-of-two"}
    with client(place, keys=keys) as c:
        one, two = ({"authorization": f"Bearer {key}"} for key in keys.values())
        name = c.post("/v1/decision", json={"text": "a question", "call_id": "abc"}, headers=one).json()["id"]
        assert c.post("/v1/feedback", json={"call_id": "abc", "score": 1.0}, headers=one).status_code == 200
        taken = c.post("/v1/feedback/retract", json={"id": name}, headers=two)
        assert taken.status_code == 404
        taken = c.post("/v1/feedback/retract", json={"call_id": "abc"}, headers=one)
        assert taken.json() == {"result": "retracted", "scores": 1}
        assert c.app.state.keeper.router.learner.learnt == 0
        again = c.post("/v1/feedback", json={"id": name, "score": 0.0}, headers=one)
        assert again.json()["result"] == "recorded"
        assert c.post("/v1/feedback/retract", json={"id": "nobody"}, headers=one).status_code == 404
        assert c.post("/v1/feedback/retract", json={"score": 1.0}, headers=one).status_code == 400


def test_a_log_that_cannot_be_used_is_no_mistake_of_the_client(place, monkeypatch):
    with client(place) as c:
        monkeypatch.setattr(
            EventLog, "decision", lambda *a, **k: (_ for _ in ()).throw(LogError("at secret:5432"))
        )
        answer = c.post("/v1/feedback", json={"id": "x", "score": 1.0})
        assert answer.status_code == 503 and "secret" not in answer.text


def test_a_conversation_keeps_its_model_and_is_scored_as_one(place):
    """A tool loop of ten steps is one decision; a request without text goes to the fallback, whatever the
    policy."""
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    tool = [
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "tool_call_id": "t", "content": "42"},
    ]
    with client(place, epsilon=0.9) as c:
        body, headers = {"model": "cabs", "messages": list(ASK["messages"])}, {"x-session-id": "mine"}
        models = set()
        for _ in range(10):
            models.add(c.post("/v1/chat/completions", json=body, headers=headers).headers["x-cabs-model"])
            body["messages"] += tool
        assert len(models) == 1
        settle(c)
        decisions = log(place).decisions()
        assert len(decisions) == 10 and sum(d.kept is None for d in decisions) == 1
        assert c.post("/v1/feedback", json={"session": "mine", "score": 1.0}).json()["result"] == "recorded"
        assert [r.decision_id for r in log(place).rewards()] == [decisions[0].id]
        fallback = c.app.state.keeper.router.manifest.fallback
        for odd in ([image], [{"role": "system", "content": "rules"}]):
            answer = c.post("/v1/chat/completions", json={"model": "cabs", "messages": odd})
            assert answer.status_code == 200 and answer.headers["x-cabs-model"] == fallback
        decided = c.post("/v1/decision", json={"messages": [*ASK["messages"], *tool]}, headers=headers).json()
        assert decided["kept"] == decisions[0].id and decided["propensity"] == 1.0
