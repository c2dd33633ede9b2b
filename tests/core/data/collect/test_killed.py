"""kill -9 while models are asked and answers are judged:
no answered call is asked again, no answer is lost."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from collect_support import JUDGE, MODELS, serving, write_pool

from cabs_core.data.collect.plan import collection_of
from cabs_core.data.collect.store import AnswerStore

WORK = """
import sys
from pathlib import Path
from cabs_core.data.collect.answers import collect_answers, write_answers
from cabs_core.data.collect.plan import collection_of
from cabs_core.data.collect.scoring import score_cells
from cabs_core.data.collect.source import cells_of
from cabs_core.data.collect.store import AnswerStore
from cabs_core.data.pool_files import read_pool_file

folder = Path(sys.argv[1])
collection = collection_of(read_pool_file(folder / "asked.yaml"))
print("ready", flush=True)
with AnswerStore() as store:
    found = collect_answers(collection, store, lambda text: print(text, flush=True))
    (folder / "a").mkdir(exist_ok=True)
    write_answers(collection, found, store, folder / "a")
    scored = score_cells(collection, cells_of(folder / "a"), store)
print(f"done {len(scored.score)} {found.in_flight}", flush=True)
"""
KILLS, CONCURRENCY = 5, 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_pay_for_nothing_twice(tmp_path, cabs_home):
    rng = random.Random(0)
    with serving(delay=0.02) as provider:
        limits = {m: {"concurrency": CONCURRENCY} for m in (*MODELS, "judge")}
        pool = write_pool(tmp_path, provider.port, n=300, scores=[JUDGE], limits=limits)
        kills, in_flight = 0, 0
        while True:
            process = subprocess.Popen(
                [sys.executable, "-c", WORK, str(tmp_path)], stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            if kills < KILLS:
                time.sleep(rng.uniform(0.05, 0.5))
                process.send_signal(signal.SIGKILL)
                kills += process.wait() == -signal.SIGKILL
                process.stdout.close()
                continue
            out = process.stdout.read()
            assert process.wait() == 0
            break
        again, answered = provider.again(), provider.answered()
    assert "done 1200" in out
    with AnswerStore() as store:
        collection = collection_of(pool)
        keys = [call.key for target in collection.models for call in collection.calls(target)]
        in_flight = store.spent(keys)[2]
        assert len(store.known(keys)) == len(keys) == 1200
        path = store.path
    with closing(sqlite3.connect(path)) as table:
        (judged,) = table.execute(
            "select count(*) from received where model = 'judge' and final = 1"
        ).fetchone()
        (lost,) = table.execute(
            "select count(*) from sent where id not in (select sent from received)"
        ).fetchone()
    # what was answered twice was under way at a kill, and the run says how many those are
    assert again <= lost <= KILLS * CONCURRENCY * len(MODELS)
    assert f"{in_flight} calls were under way" in out or in_flight == 0
    assert answered == 1200 + judged
