"""Conversations of a log: from a column, an event log or a trace to intervals
whose decisions depend on each other."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests_support import chain_of, event_row, home_with

from cabs_core import read_log
from cabs_core.base.errors import DataError, PoolError
from cabs_core.base.statistics.clusters import clusters_of
from cabs_core.data.events.log import EventLog
from cabs_core.data.outcomes import Outcomes, load_outcomes
from cabs_core.data.outcomes.from_logs import read_logged
from cabs_core.data.pool_files.read import read_pool_file
from cabs_core.evaluation.ope.data import read_table
from cabs_core.evaluation.ope.evaluate import evaluate
from cabs_core.pipeline.artifacts import make_artifact
from cabs_core.router.compare_on_log import compare_policies
from cabs_core.router.policies_on_log import held_out

MODELS = ["large", "small"]
POOL = """\
name: tiny
source: {kind: logs, path: calls.csv}
models: [large, small]
split: {fractions: [0.3, 0.1, 0.6]}
encoder: {name: tfidf-svd}
oracle: {kind: ridge}
replay: {rhos: [0]}
policies: [best_single]
"""


def calls(n: int = 1200, turns: int = 12, seed: int = 0) -> pd.DataFrame:
    """Conversations of so many calls: in each all answers are right,
    or nearly all are wrong; models at random."""
    rng = np.random.default_rng(seed)
    session, arm = np.arange(n) // turns, rng.integers(0, 2, n)
    mood = rng.random(n // turns + 1) < 0.5
    return pd.DataFrame(
        {
            "prompt": [f"question {i} about {'sums' if i % 3 else 'poems'}" for i in range(n)],
            "model": [MODELS[a] for a in arm],
            "score": (rng.random(n) < np.where(mood[session], 0.95, 0.1)).astype(float),
            "cost": np.array([1e-3, 1e-4])[arm],
            "propensity": np.full(n, 0.5),
            "session": [f"s{s}" for s in session],
        }
    )


def read(tmp_path: Path, frame: pd.DataFrame, columns: str = "") -> Outcomes:
    frame.to_csv(tmp_path / "calls.csv", index=False)
    mapped = f", columns: {{{columns}}}" if columns else ""
    (tmp_path / "tiny.yaml").write_text(POOL.replace("calls.csv", f"calls.csv{mapped}"))
    return load_outcomes(read_pool_file(tmp_path / "tiny.yaml"))


def test_the_column_becomes_part_of_the_outcomes(tmp_path: Path, cabs_home: Path) -> None:
    frame = calls(240)
    frame.loc[:9, "session"] = ["", "null", "NaN", "  ", "none", "7", "7", "s 1", "s 1", ""]
    outcomes = read(tmp_path, frame)
    assert outcomes.sessions.tolist() == [*[""] * 5, "7", "7", "s 1", "s 1", "", *frame["session"][10:]]
    back = Outcomes.load(outcomes.save(tmp_path / "saved"))
    assert back.sessions.tolist() == outcomes.sessions.tolist()
    assert outcomes.take(np.array([8, 5])).sessions.tolist() == ["s 1", "7"]
    without = read(tmp_path, frame.drop(columns="session"))
    assert without.sessions is None and Outcomes.load(without.save(tmp_path / "plain")).sessions is None
    assert without.content_hash() != outcomes.content_hash()
    assert replace(without, sessions=outcomes.sessions).content_hash() != without.content_hash()
    renamed = read(tmp_path, frame.rename(columns={"session": "thread"}), "session: thread")
    assert renamed.sessions.tolist() == outcomes.sessions.tolist()
    assert read(tmp_path, frame, "session: null").sessions is None


def test_mistakes_are_said(tmp_path: Path, cabs_home: Path) -> None:
    frame = calls(240)
    with pytest.raises(DataError, match=r"'thread'.*source\.columns\.session"):
        read(tmp_path, frame, "session: thread")
    with pytest.raises(DataError, match=r"row 5: session has 501 characters"):
        read(tmp_path, frame.assign(session=["x" * 501 if i == 3 else "s" for i in range(240)]))
    (tmp_path / "other.yaml").write_text("source: {kind: synthetic, columns: {session: s}}\n")
    with pytest.raises(PoolError, match=r"source\.columns: .*file or logs or collect"):
        read_pool_file(tmp_path / "other.yaml")
    with pytest.raises(DataError, match="sessions has 2 entries for 240 queries"):
        replace(read(tmp_path, frame), sessions=np.array(["a", "b"]))


def test_held_out_decisions_are_clustered_by_conversation(tmp_path_factory: pytest.TempPathFactory) -> None:
    """From the pool file to the interval: with the column it is as much wider
    as the conversations ask for."""
    home = tmp_path_factory.mktemp("home")
    with home_with(POOL, home):
        calls().to_csv(home / "pools" / "calls.csv", index=False)
        names = ("outcomes", "splits", "prompt_embeddings")
        inputs = {name: make_artifact(chain_of(), chain_of().stage(name)).folder for name in names}
        data, prompts = held_out(inputs)
    assert data.clusters is not None and len(prompts) == len(data)
    target = np.tile([0.0, 1.0], (len(data), 1))
    one = evaluate(data, target, 0.0).row("snips", "score")
    apart = evaluate(replace(data, clusters=None), target, 0.0).row("snips", "score")
    assert one.value == apart.value
    assert one.high - one.low > 1.5 * (apart.high - apart.low)
    by_hand = evaluate(replace(data, clusters=None), target, 0.0, cluster=data.clusters).row("snips", "score")
    assert by_hand == one


def test_a_users_table_is_clustered_too_and_so_is_the_comparison() -> None:
    frame = calls()
    data, plain = read_table(frame), read_table(frame.drop(columns="session"))
    assert len(np.unique(data.dependent())) == 100 and plain.clusters is None
    old, new = np.tile([1.0, 0.0], (len(data), 1)), np.tile([0.0, 1.0], (len(data), 1))
    joint, apart = compare_policies(data, old, new, 0.0), compare_policies(plain, old, new, 0.0)
    assert joint.difference == pytest.approx(apart.difference, abs=0.02) and joint.high > joint.low
    assert joint.high - joint.low != apart.high - apart.low


def test_one_conversation_is_no_sample() -> None:
    frame = calls().assign(session="the only one")
    evaluation = evaluate(read_table(frame), np.tile([0.0, 1.0], (len(frame), 1)), 0.0)
    assert "conversation" in evaluation.refused and not evaluation.rows


def test_few_conversations_have_wide_intervals() -> None:
    """Student's t has the degrees of freedom of the conversations, not of the decisions."""
    frame = calls(1200, turns=300)
    data, target = read_table(frame), np.tile([0.0, 1.0], (len(frame), 1))
    row = evaluate(data, target, 0.0).row("snips", "score")
    reach = (row.high - row.low) / 2
    w, r = 2.0 * (data.actions == 1), data.scores
    sums = [(w * (r - row.value))[i : i + 300].sum() for i in range(0, 1200, 300)]
    drawn = np.sqrt(np.square(sums).sum() * 4 / 3) / w.sum()
    assert 3.182 * drawn <= reach < 5 * drawn  # t of 3 degrees of freedom, and the sums are skewed


def test_an_event_log_hands_its_conversations_on(tmp_path: Path, cabs_home: Path) -> None:
    frame = calls(60, turns=3)
    with closing(EventLog(tmp_path / "log.sqlite")) as log:
        log.add_decisions(
            [
                event_row(str(i), row.model, prompt=row.prompt, session=None if i < 3 else row.session)
                for i, row in enumerate(frame.itertuples())
            ]
        )
        for i, row in enumerate(frame.itertuples()):
            log.add_reward(str(i), row.score, row.cost, "test", str(i))
    (tmp_path / "tiny.yaml").write_text(POOL.replace("calls.csv", "log.sqlite"))
    raw = read_logged(read_pool_file(tmp_path / "tiny.yaml"))
    assert raw.sessions.tolist() == ["", "", "", *frame["session"][3:]]


def test_a_trace_hands_its_conversations_on(tmp_path: Path, cabs_home: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [
        {
            "model": MODELS[i % 2],
            "messages": [{"role": "user", "content": f"question {i}"}],
            "score": i % 2,
            "cost": 1e-4,
            "user": "u",
            "session_id": f"t{i // 4}",
        }
        for i in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "tiny.yaml").write_text(POOL.replace("path: calls.csv", "format: openai, path: log.jsonl"))
    raw = read_logged(read_pool_file(tmp_path / "tiny.yaml"))
    assert raw.sessions.tolist() == [f"t{i // 4}" for i in range(40)]
    for line in lines:
        del line["session_id"]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert read_log(path, "openai").frame["session"].isna().all(), "a user is no conversation"


@given(st.lists(st.tuples(st.sampled_from("pqr"), st.sampled_from(["", None, "a", "b"])), max_size=12))
def test_a_cluster_is_what_prompts_and_conversations_link(rows) -> None:
    """Against links followed one by one."""
    prompts, sessions = [p for p, _ in rows], [s for _, s in rows]
    clusters = clusters_of(prompts, sessions)
    linked = [
        [a == b or bool(s and s == t) for b, t in zip(prompts, sessions, strict=True)]
        for a, s in zip(prompts, sessions, strict=True)
    ]
    reached = np.array(linked, dtype=bool).reshape(len(rows), len(rows))
    for _ in rows:
        reached = reached @ reached
    assert ((clusters[:, None] == clusters) == reached).all()


def test_a_greeting_links_no_conversations() -> None:
    prompts = [text for i in range(40) for text in ("hello", f"question {i}")]
    sessions = [f"s{i}" for i in range(40) for _ in range(2)]
    assert len(set(clusters_of(prompts, sessions))) == 40
    assert len(set(clusters_of(prompts, None))) == 41
