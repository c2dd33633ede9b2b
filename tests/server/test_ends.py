"""How things end: streams and workers with their server, leases with their holder, names that are too long, a
log that is full."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner
from server_support import ASK, FIGURES, MODELS, client, log, serving, settle, wait
from tests_support import started

from cabs_core.base.errors import LogError, RouterError, one_line
from cabs_core.base.secret import refuse_password, secret
from cabs_core.data.events.log import LONGEST_LEASE, EventLog
from cabs_core.router.options import RouterOptions
from cabs_core.router.promotion import promote
from cabs_core.router.router import Router
from cabs_server.lifetime import address_of
from cabs_server.logs import TextFormatter
from cabs_server.main import main
from cabs_server.metrics import OTHER, Counters, label_of
from tests.servers import free_port

# -- the log -------------------------------------------------------------------------------------------------


def test_a_lease_from_a_clock_that_was_ahead_holds_nobody_off(monkeypatch):
    events, now = EventLog(":memory:"), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_400.0)
    assert events.take_lease("ahead", 15.0)
    monkeypatch.setattr(time, "time", lambda: now)
    assert events.lease()[1] > LONGEST_LEASE
    assert events.take_lease("right", 15.0) and not events.take_lease("other", 15.0)
    assert events.lease()[0] == "right" and 0 < events.lease()[1] <= 15.0


@pytest.mark.parametrize("odd", ["x" * 5000, "\U0001f600" * 700, "é" * 300, "\udc80" * 200])
def test_a_very_long_name_is_found_by_itself(router, odd):
    """PostgreSQL takes 2,704 bytes into an index, and a call whose row is refused has no cost."""
    decision = router.route("a question", call_id=odd)
    router.finish(decision.id, status="answered", cost=1e-4, response_id=odd + "r")
    assert router.log.decision(call_id=odd).id == router.log.decision(response_id=odd + "r").id == decision.id
    assert router.log.decision(response_id=odd + "s") is None
    assert router.feedback(decision.id, score=1.0, key=odd) == "recorded"
    assert router.feedback(decision.id, score=1.0, key=odd) == "duplicate"
    run = router.log.database.transaction
    longest = "SELECT MAX(MAX(LENGTH(call_id), LENGTH(response_id))) FROM decisions"
    assert run(lambda r: r(longest).fetchone())[0] <= 512


def test_files_are_of_the_owner_alone(make_bundle, tmp_path):
    before = os.umask(0o022)
    try:
        router = Router.load(
            make_bundle("lin_ts"), RouterOptions(keep_prompts=True), log=tmp_path / "log.sqlite"
        )
        router.feedback(router.route("a prompt that is kept").id, score=1.0)
        router.checkpoint()
        paths = [*tmp_path.glob("log.sqlite*"), tmp_path / "log.learned"]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in paths}
        assert len(modes) == 4 and set(modes.values()) == {0}, modes
        router.log.database.copy_to(tmp_path / "copy.sqlite")
        assert stat.S_IMODE((tmp_path / "copy.sqlite").stat().st_mode) == 0o600
    finally:
        os.umask(before)


# -- what is said, and to whom -------------------------------------------------------------------------------


def test_readiness_knows_log_and_disk(place, monkeypatch):
    monkeypatch.setattr("cabs_server.readiness.HOLDS", 0.0)

    def fails(kind):
        def check(self):
            raise kind("the event log /secret/log.sqlite cannot be written: No space left on device")

        return check

    for closed, kind in ((False, LogError), (True, RuntimeError)):
        with client(
            place, fail_closed=closed, admin_keys={"boss": "key-of-boss"}, keys={"app": "key-of-app"}
        ) as c:
            boss, app = ({"authorization": f"Bearer key-of-{n}"} for n in ("boss", "app"))
            assert c.get("/readyz").json() == {"status": "ready"}
            with monkeypatch.context() as patch:
                patch.setattr("cabs_core.data.events.database.Database.check_disk", fails(kind))
                answers = [c.get("/readyz", headers=h) for h in ({}, app, boss)]
                lives = c.get("/healthz").status_code == 200
            assert {t.status_code for t in answers} == {503 if closed else 200}
            assert {t.json()["status"] for t in answers} == {"not ready" if closed else "degraded"}
            assert not any("problems" in t.json() for t in answers[:2]) and "secret" not in answers[1].text
            assert "No space left" in answers[2].json()["problems"][0] and lives
            assert c.get("/readyz").json() == {"status": "ready"}


def test_a_disk_without_room_is_noticed_though_the_logs_own_pages_have_some(tmp_path, monkeypatch):
    events = EventLog(tmp_path / "log.sqlite")
    events.check()

    def none_left(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", none_left)
    with pytest.raises(LogError, match="No space left"):
        events.check()


def test_an_ordinary_key_cannot_tell_anothers_decision_from_none(place):
    keys = {"one": "key-of-one", "two": "key-of-two"}
    with client(place, keys=keys) as c:
        one, two = ({"authorization": f"Bearer {key}"} for key in keys.values())
        name = c.post("/v1/decision", json={"text": "a question"}, headers=one).json()["id"]
        for path in ("/v1/feedback", "/v1/feedback/retract"):
            score = {"score": 1.0} if path == "/v1/feedback" else {}
            answers = [c.post(path, json={"id": n, **score}, headers=two) for n in (name, "nobody")]
            texts = {
                t.json()["error"]["message"].replace(name, "NAME").replace("nobody", "NAME") for t in answers
            }
            assert [t.status_code for t in answers] == [404, 404] and len(texts) == 1
            assert str(place) not in texts.pop()


def test_figures_are_for_admins_or_have_an_address(place):
    keys = {"keys": {"app": "key-of-app"}, "admin_keys": {"boss": "key-of-boss"}}
    with client(place, **keys) as c:
        seen = [
            c.get("/metrics", headers={"authorization": f"Bearer key-of-{n}"} if n else {}).status_code
            for n in ("", "app", "boss")
        ]
        assert seen == [401, 403, 200]
    with client(
        place, **keys, metrics="127.0.0.1:80"
    ) as c:  # the test client says that it came in at port 80
        assert c.get("/metrics").status_code == 200 and c.get("/readyz").status_code == 200
        assert c.get("/metrics", headers={"host": "evil.example"}).status_code == 403
        decided = c.post("/v1/decision", json={"text": "x"}, headers={"authorization": "Bearer key-of-app"})
        assert decided.status_code == 404


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9090", ("127.0.0.1", 9090)), ("0.0.0.0:9", ("0.0.0.0", 9)), ("[::1]:9", ("::1", 9))],
)
def test_addresses(text, expected):
    assert address_of(text) == expected and address_of(None) is None
    for bad in ("x", "host:", "1:70000", ":-1"):
        with pytest.raises(RouterError, match="HOST:PORT"):
            address_of(bad)


def test_labels_of_metrics_are_a_closed_set():
    counters = Counters()
    for i in range(50):
        counters.add("unrouted_total", reason=f"Odd{i}")
        counters.add("refused_total", status=str(600 + i))
        reason = label_of(f"no answer within {60 - i / 1000:g} s")
        counters.add("upstream_failures_total", model="m", reason=reason)
        for words in (
            f"answered 200 with an error: {i}",
            f"HTTP {600 + i}",
            f"whatever {i}",
            f"HTTP 503: {i}",
        ):
            counters.add("upstream_failures_total", model="m", reason=label_of(words))
    samples = [sample for family in counters.registry.collect() for sample in family.samples]
    labels = {sample.labels.get("reason", sample.labels.get("status")) for sample in samples}
    assert labels == {OTHER, "timeout", "no answer in it", "HTTP 503"} and len(samples) == 6


def test_a_line_of_the_text_log_is_one_line():
    evil = "boom\n2026-01-01 00:00:00 INFO  forged\r\x1b[2J\x85\u2028"
    try:
        raise ValueError(evil)
    except ValueError:
        record = logging.LogRecord("cabs", logging.WARNING, "", 0, "upstream: %s", (evil,), sys.exc_info())
    first, *rest = TextFormatter().format(record).splitlines()
    assert "\\nforged" not in first and "boom\\n2026" in first and first.isprintable()
    assert rest and all(line.startswith("    ") for line in rest)
    assert one_line("a\tb\nc") == "a\\tb\\nc"


# -- secrets -------------------------------------------------------------------------------------------------


def test_secrets_come_from_the_environment_or_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY_FILE", str(tmp_path / "key"))
    with pytest.raises(RouterError, match="cannot be read"):
        secret("A_KEY")
    (tmp_path / "key").write_text("of-a-file\n")
    assert secret("A_KEY") == "of-a-file"
    monkeypatch.setenv("A_KEY", "of-a-variable")
    with pytest.raises(RouterError, match="both set"):
        secret("A_KEY")
    monkeypatch.delenv("A_KEY_FILE")
    assert secret("A_KEY") == "of-a-variable" and secret("ANOTHER_KEY") is None


@pytest.mark.parametrize(
    "place",
    [
        "postgresql://u:hunter22@h/d",
        "postgresql://u@h/d?password=hunter22",
        "postgresql://u:hunter22@[::1",
        "s3://id:hunter22@b/p",
    ],
)
def test_a_password_on_the_command_line_is_refused(place):
    with pytest.raises(RouterError, match="CABS_LOG") as error:
        refuse_password(place, "--log", "set CABS_LOG")
    assert "hunter22" not in str(error.value)
    for fine in ("log.sqlite", "postgresql://u@h/d", "s3://bucket/a", None, "C:\\a:b@c"):
        refuse_password(fine, "--log", "")


def test_the_command_takes_a_password_from_the_environment_alone(make_bundle):
    url = "postgresql://u:hunter22@127.0.0.1:1/d"
    command = ["doctor", "--router", str(make_bundle("carrot"))]
    given = CliRunner().invoke(main, [*command, "--log", url])
    assert given.exit_code == 2 and "CABS_LOG" in given.output and "hunter22" not in given.output
    by_variable = CliRunner().invoke(main, command, env={"CABS_LOG": url})
    assert "cannot be opened" in by_variable.output or "extra" in by_variable.output
    assert "hunter22" not in by_variable.output


# -- what is taken back --------------------------------------------------------------------------------------


def test_what_is_taken_back_at_once_is_learnt_again_once(make_bundle, place, monkeypatch):
    from cabs_core.router import learner
    from cabs_core.router.promotion import promote

    promote(make_bundle("lin_ts", epsilon=0.1), place / "router")
    with client(place) as c:
        names = [c.post("/v1/decision", json={"text": f"question {i}"}).json()["id"] for i in range(20)]
        for name in names:
            c.post("/v1/feedback", json={"id": name, "score": 1.0})
        learners = []
        begin = learner.Learner.__init__
        monkeypatch.setattr(
            learner.Learner, "__init__", lambda self, *a, **k: (learners.append(1), begin(self, *a, **k))[1]
        )
        monkeypatch.setattr(c.app.state.keeper, "every", 0.4)
        time.sleep(0.1)
        threads = [
            threading.Thread(target=c.post, args=("/v1/feedback/retract",), kwargs={"json": {"id": n}})
            for n in names[:12]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wait(lambda: c.app.state.keeper.router.learner.learnt == 8)
        assert 1 <= len(learners) <= 4  # two where the threads are done within one wait


# -- feedback at another worker ------------------------------------------------------------------------------


def test_a_score_by_response_id_waits_for_a_row_that_another_worker_writes(place):
    with client(place) as c:
        decision = c.post("/v1/decision", json={"text": "a question"}).json()
        late = threading.Timer(
            0.15, lambda: log(place).finish(decision["id"], status="answered", response_id="resp_1")
        )
        late.start()
        answer = c.post("/v1/feedback", json={"response_id": "resp_1", "score": 1.0})
        late.join()
        assert answer.status_code == 200 and answer.json()["result"] == "recorded"


# -- upstreams and bundles that change -----------------------------------------------------------------------


def test_the_upstreams_file_is_read_again_and_a_model_without_endpoint_is_told(
    place, make_bundle, write_upstreams
):
    with client(place) as c:
        before = c.app.state.keeper.router
        write_upstreams({MODELS[0]: {"model": "renamed"}})
        assert wait(lambda: c.app.state.keeper.router is not before)
        answer = c.post("/v1/chat/completions", json={"model": MODELS[0], **ASK})
        assert answer.json()["choices"][0]["message"]["content"].startswith("renamed:")
        fewer = {m: {"url": "http://127.0.0.1:9/v1"} for m in MODELS[1:]}
        (place / "upstreams.yaml").write_text(json.dumps({"models": fewer}))
        assert wait(lambda: any(MODELS[0] in p for p in c.get(f"{FIGURES}/readyz").json()["problems"]))
        again = c.post("/v1/chat/completions", json={"model": MODELS[0], **ASK})
        assert again.status_code == 200 and c.get("/readyz").status_code == 200
        (place / "upstreams.yaml").write_text("models: [")
        assert wait(lambda: any("YAML" in p for p in c.get(f"{FIGURES}/readyz").json()["problems"]))
        write_upstreams()
        assert wait(lambda: c.get(f"{FIGURES}/readyz").json()["problems"] == [])
        settle(c)


# -- a server of its own -------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize("workers", ["1", "2"])
def test_figures_stand_apart_a_stream_is_cut_after_the_grace_and_what_was_learnt_is_kept(
    place, make_bundle, write_upstreams, workers
):
    promote(make_bundle("lin_ts", epsilon=0.1), place / "router")
    write_upstreams({model: {"model": "endless"} for model in MODELS})
    figures = f"127.0.0.1:{free_port()}"
    options = ["--metrics", figures, "--grace", "2", "--workers", workers]
    with serving(place, *options, CABS_SERVER_KEYS="team=12345678") as (process, url):
        assert "cabs_bundle" in requests.get(f"http://{figures}/metrics").text
        assert requests.get(f"http://{figures}/v1/models").status_code == 404
        assert requests.get(f"{url}/metrics").status_code == 401
        http = requests.Session()
        http.headers["authorization"] = "Bearer 12345678"
        name = http.post(f"{url}/v1/decision", json={"text": "a question"}).json()["id"]
        assert http.post(f"{url}/v1/feedback", json={"id": name, "score": 1.0}).status_code == 200
        answer = http.post(f"{url}/v1/chat/completions", json={**ASK, "stream": True}, stream=True)
        lines = answer.iter_lines()
        next(lines)
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert time.monotonic() - begin > 1.5
        answer.close()
    row = log(place).decision(id=answer.headers["x-cabs-decision"])
    assert row.status == "broken" and row.cost > 0, row
    checkpoint = json.loads(next((place / "log.learned").glob("*/learned.json")).read_text())
    assert checkpoint["learnt"] == 1


#: a server that never gets beyond compiling, in its workers too: they import their parent's script
ENDLESS = """
import time
from cabs_core import Router
from cabs_server.main import main

def compiles(router):
    print("compiling", flush=True)
    time.sleep(600)

Router.warm_up = compiles
if __name__ == "__main__":
    main()
"""


@pytest.mark.e2e
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_compiles_does_not_listen_and_ends_at_once(place, workers):
    script, out, port = place / "endless.py", place / "output.txt", free_port()
    script.write_text(ENDLESS)
    router = ["--router", place / "router", "--log", place / "log.sqlite"]
    command = [sys.executable, script, "serve", *router, "--port", port, "--workers", workers]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "CABS_HOME": str(place / "home"), "PYTHONPATH": paths}
    with started(command, out, environment) as process:
        assert wait(lambda: out.read_text().count("compiling") == int(workers), 120), out.read_text()[-2000:]
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        process.terminate()
        process.wait(60)


#: workers that start only while the file `away` does not exist; it fails as the argument says
FAILING = """
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from cabs_server.lifetime import run_server

def start():
    if Path("away").exists():
        raise OSError("the database is away")

@asynccontextmanager
async def starts(app):
    start()
    yield

def application(**options):
    return Starlette(routes=[Route("/healthz", lambda request: PlainTextResponse("ok"))], **options)

def fails_when_made():
    start()
    return application()

def fails_when_started():
    return application(lifespan=starts)

if __name__ == "__main__":
    make = globals()[sys.argv[1]]
    address = {"host": "127.0.0.1", "port": int(sys.argv[2]), "metrics": None}
    run_server(make, **address, workers=2, grace=1, timeout_worker_healthcheck=1)
"""


def children_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Process ids of a process's children (Linux)."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def command_of(process: int) -> bytes:
    """Command line of a process; empty if the process has ended."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def start_failing(folder: Path, how: str, port: int):
    """Start the script `FAILING` in a folder; `how` is the name of its application."""
    (folder / "failing.py").write_text(FAILING)
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, folder / "failing.py", how, port]
    return started(command, folder / "output.txt", {**os.environ, "PYTHONPATH": paths})


@pytest.mark.e2e
@pytest.mark.parametrize("how", ["fails_when_made", "fails_when_started"])
def test_workers_that_cannot_start_end_the_server_with_an_error(tmp_path, how):
    (tmp_path / "away").touch()
    with start_failing(tmp_path, how, free_port()) as process:
        assert process.wait(60) not in (0, None)
    assert "the database is away" in (tmp_path / "output.txt").read_text()


@pytest.mark.e2e
def test_a_worker_that_ends_later_is_started_again_until_it_can_while_the_other_answers(tmp_path):
    port = free_port()
    output = tmp_path / "output.txt"

    def answers() -> bool:
        with suppress(requests.RequestException):
            return requests.get(f"http://127.0.0.1:{port}/healthz", timeout=5).text == "ok"
        return False

    def workers() -> list[int]:
        return [child for child in children_of(process) if b"spawn_main" in command_of(child)]

    with start_failing(tmp_path, "fails_when_made", port) as process:
        assert wait(answers) and wait(lambda: output.read_text().count("startup complete") == 2)
        (tmp_path / "away").touch()
        os.kill(workers()[0], signal.SIGKILL)
        assert wait(lambda: output.read_text().count("OSError: the database is away") >= 2)
        assert answers() and process.poll() is None
        (tmp_path / "away").unlink()
        assert wait(lambda: output.read_text().count("startup complete") == 3)


IGNORING = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts background commands
import cabs_server.start
from cabs_server.main import main

def interrupted(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGINT)
    print("went on", flush=True)

cabs_server.start.serve = interrupted
main()
"""


def test_an_interrupt_ends_a_server_that_was_started_in_the_background(place):
    command = [sys.executable, "-c", IGNORING, "serve", "--router", place / "router"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "went on" not in done.stdout


def test_a_server_compiles_before_it_answers_and_a_rehearsal_leaves_no_trace(place, make_bundle, monkeypatch):
    warm_up, compiled = Router.warm_up, []

    def rehearse(router):
        compiled.append(router)
        warm_up(router)

    monkeypatch.setattr(Router, "warm_up", rehearse)
    with client(place) as c:
        router = c.app.state.keeper.router
        assert compiled == [router] and router.policy.round == 0 and not router.learner.policy.round
        assert not log(place).decisions() and c.post("/v1/decision", json={"text": "hi"}).status_code == 200
        promote(make_bundle("hier_mix"), place / "router")
        assert wait(lambda: c.app.state.keeper.router is not router)
        assert compiled[1:] == [c.app.state.keeper.router]


@pytest.mark.e2e
def test_workers_end_with_their_parent(place):
    with serving(place, "--workers", "2") as (process, url):
        children = children_of(process)
        process.kill()
        process.wait()
        port = int(url.rpartition(":")[2])

        def free() -> bool:
            with suppress(OSError), socket.create_server(("127.0.0.1", port)):
                return True
            return False

        assert wait(free), "a worker is left on the port"
        assert len(children) >= 2 and wait(lambda: not any(Path(f"/proc/{p}/cwd").exists() for p in children))
