"""What keeps a routed request cheap does what the plain way would do."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cabs_core.data.events.log import EventLog
from cabs_core.data.events.rows import INDEXES
from cabs_core.router.requirements import serving_requirements
from cabs_server.metrics import BOUNDS, Counters, metrics_text
from tests.servers import free_port, from_anywhere


@given(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0.0, 1e4)), min_size=1, max_size=30))
def test_buckets_are_cumulative(seconds: list[float]) -> None:
    counters = Counters()
    for value in seconds:
        counters.observe("request_seconds", value)
    with closing(EventLog(":memory:")) as log:
        text = metrics_text(log, "b", counters, [])
    found = re.findall(r'cabs_request_seconds_bucket\{le="([^"]+)",worker="\d+"\} (\S+)', text)
    expected = [(bound, float(sum(s <= bound for s in seconds))) for bound in (*BOUNDS, math.inf)]
    assert [(float(bound), float(count)) for bound, count in found] == expected
    assert re.search(rf"cabs_request_seconds_count\{{[^}}]*\}} {float(len(seconds))}\n", text)
    assert "_created" not in text


def test_a_serving_machine_gets_the_quick_event_loop() -> None:
    assert {"uvloop", "httptools"} <= {
        line.partition("==")[0] for line in serving_requirements("ridge", "tfidf-svd").splitlines()
    }


@pytest.mark.parametrize(("table", "column"), INDEXES)
def test_rows_are_looked_up_by_an_index_which_those_without_a_name_do_not_touch(
    table: str, column: str
) -> None:
    with closing(EventLog(":memory:")) as log:
        query = f"EXPLAIN QUERY PLAN SELECT seq FROM {table} WHERE {column} = ? AND ts > 0"
        ((*_, plan),) = log.database.stream(query, ("x",))
        assert f"INDEX {table}_{column} ({column}=?)" in plan
        kind = f"SELECT partial FROM pragma_index_list('{table}') WHERE name = '{table}_{column}'"
        assert list(log.database.stream(kind)) == [(int(table == "decisions"),)]  # whose names may be empty


#: a server that prints how many modules its first stream loads; arguments: a bundle's folder, a port
FIRST_STREAM = """
import sys, threading, time, urllib.request
import uvicorn
from cabs_server.app import make_app

folder, port = sys.argv[1:]
app = make_app(folder, None, echo=True, log=":memory:")
server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=int(port), log_level="warning"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.05)

def ask(body):
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).read()

body = b'{"model": "cabs", "messages": [{"role": "user", "content": "Hi"}]'
ask(body + b"}")
before = len(sys.modules)
assert b"data:" in ask(body + b', "stream": true}')
print("modules:", len(sys.modules) - before)
"""


@pytest.mark.e2e
def test_the_first_stream_loads_no_modules_while_others_wait(make_bundle, tmp_path) -> None:
    command = [sys.executable, "-c", FIRST_STREAM, make_bundle("carrot", epsilon=0.1), str(free_port())]
    settings = {**from_anywhere(), "CABS_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120)
    assert "modules: 0\n" in done.stdout, done.stdout + done.stderr[-2000:]
