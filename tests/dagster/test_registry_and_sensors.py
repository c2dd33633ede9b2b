"""Pools: adding, changing, retiring; the sensor, the schedules, the alerts. No run is executed here."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
import yaml

from cabs_core.errors import PoolError
from cabs_core.pools import find_pool
from cabs_dagster import registry
from cabs_dagster.resources import CabsResource
from cabs_dagster.schedules import nightly_checks, weekly_rerun
from cabs_dagster.sensors import alerts
from cabs_dagster.sensors.pool_files import pool_files
from cabs_dagster.storage import ArtifactStore

LOGGED: list[str] = []


class _Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOGGED.append(record.getMessage())


@pytest.fixture
def instance(tmp_path: Path):
    LOGGED.clear()
    (tmp_path / "instance").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "instance")) as found:
        yield found


def tick(instance, cursor: str | None = None) -> dg.SensorResult:
    context = dg.build_sensor_context(instance=instance, cursor=cursor, resources={"cabs": CabsResource()})
    context.log.addHandler(_Keep())
    LOGGED.clear()
    result = pool_files(context)
    for request in result.dynamic_partitions_requests or []:
        instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
    return result


def test_a_new_pool_is_registered_and_launched_once(tiny_pool: Path, instance) -> None:
    first = tick(instance)
    assert [r.job_name for r in first.run_requests] == ["prepare_pool"]
    assert first.run_requests[0].partition_key == "tiny"
    assert first.run_requests[0].tags["cabs/pool"] == "tiny"
    assert instance.get_dynamic_partitions("pools") == ["tiny"]
    assert {"0000", "0500"} <= set(instance.get_dynamic_partitions("rhos"))
    assert not tick(instance, first.cursor).run_requests
    assert tick(instance).run_requests[0].run_key == first.run_requests[0].run_key


def test_shipped_pools_are_not_launched(cabs_home: Path, instance) -> None:
    assert not tick(instance).run_requests


def test_a_change_is_reported_field_by_field_and_gives_another_key(tiny_pool: Path, instance) -> None:
    first = tick(instance)
    tiny_pool.write_text(tiny_pool.read_text().replace("queries: 240", "queries: 260"))
    second = tick(instance, first.cursor)
    (event,) = (e for e in second.asset_events if "changed settings" in e.metadata)
    assert event.partition == "tiny"
    observed = {e.asset_key.to_user_string() for e in second.asset_events if e is not event}
    assert "settings/outcomes" in observed  # so that Dagster colours what reads it
    assert "| source.queries | 240 | 260 |" in event.metadata["changed settings"].md_str
    assert event.metadata["concerns"].text == "outcomes"
    assert second.run_requests[0].run_key != first.run_requests[0].run_key
    third = tick(instance, second.cursor).asset_events
    assert not [e for e in third if "changed settings" in e.metadata]


def test_an_invalid_file_is_reported_once_and_blocks_nothing(tiny_pool: Path, instance) -> None:
    (tiny_pool.parent / "broken.yaml").write_text("name: broken\nsource: {kind: file}\nnonsense: 1\n")
    first = tick(instance)
    assert len(first.run_requests) == 1
    assert sum("broken.yaml" in text for text in LOGGED) == 1
    second = tick(instance, first.cursor)
    assert not [text for text in LOGGED if "broken.yaml" in text]
    assert "broken.yaml" in second.skip_reason.skip_message


def test_a_pool_without_its_table_concerns_that_pool_alone(tiny_pool: Path, instance) -> None:
    (tiny_pool.parent / "absent.yaml").write_text("name: absent\nsource: {kind: file, path: nowhere.csv}\n")
    result = tick(instance)
    assert [r.partition_key for r in result.run_requests] == ["tiny"]
    assert any("nowhere.csv" in text for text in LOGGED)


def test_nothing_is_asked_for_while_a_run_of_the_pool_is_under_way(tiny_pool: Path, instance) -> None:
    from dagster._core.test_utils import create_run_for_test

    create_run_for_test(
        instance, "prepare_pool", status=dg.DagsterRunStatus.STARTED, tags={"cabs/work": "prepare:tiny"}
    )
    assert not tick(instance).run_requests


def test_add_copies_the_file_and_reports_changes(cabs_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "mine.yaml"
    source.write_text("source: {kind: synthetic, queries: 300}\n")
    added = registry.add_pool(source)
    assert (added.verb, added.pool_file.pool.name, added.changes) == ("added", "mine", [])
    assert find_pool("mine").path == cabs_home / "pools" / "mine.yaml"
    source.write_text("source: {kind: synthetic, queries: 400}\n")
    assert registry.add_pool(source).changes == ["source.queries: 300 -> 400"]
    assert registry.add_pool(source).changes == ["nothing changed"]


def test_add_keeps_the_way_to_the_table(cabs_home: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("prompt,model,score,cost\n")
    (tmp_path / "own.yaml").write_text("source: {kind: file, path: t.csv}\n")
    added = registry.add_pool(tmp_path / "own.yaml")
    assert added.pool_file.table_path() == tmp_path / "t.csv"


def test_add_refuses_a_taken_name_and_an_invalid_file_and_writes_nothing(
    cabs_home: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.yaml").write_text("name: demo\nsource: {kind: synthetic}\n")
    with pytest.raises(PoolError, match="'demo' is taken"):
        registry.add_pool(tmp_path / "x.yaml")
    (tmp_path / "y.yaml").write_text("source: {kind: synthetic}\ntypo: 1\n")
    with pytest.raises(PoolError, match="typo"):
        registry.add_pool(tmp_path / "y.yaml")
    assert not (cabs_home / "pools").exists()


def test_retire_and_restore(tiny_pool: Path, instance) -> None:
    tick(instance)
    store = ArtifactStore()
    with store.write(("replay", "tiny", "0000", "random")) as folder:
        (folder / "x").write_text("1")
    registry.retire_pool("tiny", store, instance)
    assert "tiny" not in instance.get_dynamic_partitions("pools")
    assert "tiny" not in {p.pool.name for p in registry.active_pools()[0]}
    assert store.children(("replay",)) == []
    assert not tick(instance).run_requests
    registry.restore_pool("tiny", store, instance)
    assert store.children(("replay", "tiny", "0000")) == ["random"]
    assert "tiny" in instance.get_dynamic_partitions("pools")
    with pytest.raises(PoolError, match="not retired"):
        registry.restore_pool("tiny", store, instance)
    with pytest.raises(PoolError, match="no pool called"):
        registry.retire_pool("nothing", store, instance)


def test_affected_stages() -> None:
    change = [("features.dim", 8, 9)]
    assert registry.affected_stages(change) == ["oracles", "replay_problem"]
    assert registry.affected_stages([("replay.trials", 1, 2)]) == ["replay"]
    assert registry.affected_stages([("title", "a", "b")]) == []


def test_weekly_rerun(tiny_pool: Path, instance) -> None:
    at = datetime(2030, 1, 6, 3, tzinfo=UTC)
    context = dg.build_schedule_context(instance=instance, scheduled_execution_time=at)
    assert isinstance(next(iter(weekly_rerun(context))), dg.SkipReason)
    tick(instance)
    (request,) = list(weekly_rerun(context))
    assert (request.run_key, request.partition_key) == ("weekly:tiny:2030-W01", "tiny")
    assert registry.followed() == {"tiny"}


def test_nightly_checks(tiny_pool: Path, instance) -> None:
    from tests_support import finished_replay

    from cabs_dagster.planning import Chain

    at = datetime(2030, 1, 6, 2, tzinfo=UTC)
    context = dg.build_schedule_context(instance=instance, scheduled_execution_time=at)
    tick(instance)
    assert isinstance(next(iter(nightly_checks(context))), dg.SkipReason)
    finished_replay(Chain(ArtifactStore(), find_pool("tiny")), 500.0, "lin_ucb")
    (request,) = list(nightly_checks(context))
    assert str(request.partition_key) == "tiny|0500"
    assert {check.name for check in request.asset_check_keys} == {"trace", "plausible", "reproducible"}
    assert {"/".join(check.asset_key.path) for check in request.asset_check_keys} == {"replay/lin_ucb"}


def test_an_alert_is_given_once_a_day(cabs_home: Path) -> None:
    assert alerts.once_a_day("a", now=0.0)
    assert not alerts.once_a_day("a", now=3600.0)
    assert alerts.once_a_day("b", now=3600.0)
    assert alerts.once_a_day("a", now=25 * 3600.0)


def test_alerts_go_to_the_webhook_or_to_the_log(cabs_home: Path, monkeypatch, caplog) -> None:
    import requests

    log = logging.getLogger("alerts")
    with caplog.at_level(logging.ERROR):
        assert alerts.post("hello", log)
    assert "hello" in caplog.text
    sent = []

    class Answer:
        def raise_for_status(self) -> None:
            return None

    monkeypatch.setenv("CABS_WEBHOOK_URL", "http://127.0.0.1:9/hook")
    monkeypatch.setattr(requests, "post", lambda url, json, timeout: sent.append((url, json)) or Answer())
    assert alerts.post("hello", log)
    assert sent == [("http://127.0.0.1:9/hook", {"text": "hello"})]

    def fail(*_args, **_kwargs):
        raise requests.ConnectionError

    monkeypatch.setattr(requests, "post", fail)
    caplog.clear()
    with caplog.at_level(logging.ERROR):
        assert not alerts.post("hello again", log)
    assert "hello again" in caplog.text and "127.0.0.1" not in caplog.text


def test_the_registry_is_plain_json_and_a_pool_file_plain_yaml(tiny_pool: Path, instance) -> None:
    tick(instance)
    data = json.loads((tiny_pool.parent.parent / "registry.json").read_text())
    assert data["pools"]["tiny"]["source"]["queries"] == 240
    assert yaml.safe_load(tiny_pool.read_text())["name"] == "tiny"
