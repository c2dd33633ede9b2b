"""Sensors, schedules and alerts: what is asked for, once. No run of a chain is executed here."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import dagster as dg
import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.event import listen, remove
from tests_support import chain_of, event_row, finished_replay, finished_stages, stand_in

from cabs_core.data.events.log import EventLog
from cabs_core.data.pools.registry import active_pools, edit_retired
from cabs_core.pipeline.artifacts import ArtifactStore, Options, make_artifact
from cabs_core.pipeline.artifacts.materialize import produce
from cabs_core.pipeline.artifacts.provenance import Recipe
from cabs_core.pipeline.chain_order import Planner
from cabs_core.pipeline.pages import OLDER_DATA, page_parts
from cabs_dagster import partitions
from cabs_dagster.due import planner_of
from cabs_dagster.job_names import JOIN, PREPARE, REPLAY, RESULTS
from cabs_dagster.jobs import jobs
from cabs_dagster.resources import AlertResource, CabsResource
from cabs_dagster.schedules import schedules
from cabs_dagster.sensors import follow_up, keep_partitions, report_failures, sensors, watch_pool_files

LOGGED: list[str] = []


class _Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        LOGGED.append(record.getMessage())


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    LOGGED.clear()
    (tmp_path / "instance").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "instance")) as local:
        yield local


def logging_context(instance: dg.DagsterInstance, cursor: str | None) -> dg.SensorEvaluationContext:
    """The context of a tick whose lines, and no others, are in LOGGED."""
    context = dg.build_sensor_context(instance=instance, cursor=cursor)
    context.log.addHandler(_Keep())
    LOGGED.clear()
    return context


def tick(instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    result = watch_pool_files(logging_context(instance, cursor), ArtifactStore())
    assert isinstance(result, dg.SensorResult)
    for event in result.asset_events:
        instance.report_runless_asset_event(event)
    return result


def test_a_new_pool_is_registered_and_asked_for_once(tiny_pool: Path, instance) -> None:
    first = tick(instance)
    (request,) = first.run_requests or []  # none for the pools that are shipped
    assert (request.job_name, request.partition_key, request.tags["cabs/pool"]) == (PREPARE, "tiny", "tiny")
    assert list(instance.get_dynamic_partitions("pools")) == ["tiny"]
    assert list(instance.get_dynamic_partitions("rhos")) == ["0000", "0500"]
    assert not tick(instance, first.cursor).run_requests
    (again,) = (
        tick(instance).run_requests or []
    )  # a lost cursor gives the same key, which Dagster does not run twice
    assert again.run_key == request.run_key


def test_a_change_is_told_field_by_field_and_a_change_back_is_run_too(tiny_pool: Path, instance) -> None:
    text, keys = tiny_pool.read_text(), []
    cursor = None
    for content in (text, text.replace("queries: 240", "queries: 260"), text):
        tiny_pool.write_text(content)
        result = tick(instance, cursor)
        cursor = result.cursor
        keys.append((result.run_requests or [])[0].run_key)
    assert len(set(keys)) == 3
    assert any("source.queries: 260 -> 240" in line for line in LOGGED)
    assert not tick(instance, cursor).asset_events
    named = "name: named\nsource: {kind: file, path: t.csv}\nreplay: {rhos: [0]}\n"
    tiny_pool.with_name("named.yaml").write_text(named)
    for score in (0, 1):
        tiny_pool.with_name("t.csv").write_text(f"prompt,model,score,cost\na,x,{score},0\n")
        tick(instance, cursor)
    assert "pool named: table changed" in LOGGED


def test_an_invalid_file_and_a_lost_table_are_told_once_and_concern_no_other_pool(
    tiny_pool: Path, instance
) -> None:
    (tiny_pool.parent / "broken.yaml").write_text("name: broken\nsource: {kind: file}\nnonsense: 1\n")
    (tiny_pool.parent / "absent.yaml").write_text("name: absent\nsource: {kind: file, path: nowhere.csv}\n")
    first = tick(instance)
    assert [r.partition_key for r in first.run_requests or []] == ["tiny"]
    assert sum("broken.yaml" in text for text in LOGGED) == 1
    assert sum("nowhere.csv" in text for text in LOGGED) == 1
    second = tick(instance, first.cursor)
    assert not LOGGED and second.skip_reason is not None
    assert "broken.yaml" in (second.skip_reason.skip_message or "")


@contextmanager
def counted_queries() -> Iterator[list[str]]:
    """The SQL statements of all instances while the block runs."""
    statements: list[str] = []

    def keep(connection, cursor, statement: str, *others) -> None:
        statements.append(statement)

    listen(Engine, "before_cursor_execute", keep)
    try:
        yield statements
    finally:
        remove(Engine, "before_cursor_execute", keep)


def test_a_tick_asks_the_instance_as_often_about_many_pools_as_about_one(tiny_pool: Path, instance) -> None:
    text = tiny_pool.read_text()
    numbers = []
    for names in (["tiny"], [f"tiny{number}" for number in range(9)]):
        for name in names:
            tiny_pool.with_name(f"{name}.yaml").write_text(text.replace("name: tiny", f"name: {name}"))
            (ArtifactStore().root / "outcomes" / name).mkdir(parents=True)
        cursor = tick(instance).cursor
        with counted_queries() as statements:
            assert not tick(instance, cursor).asset_events
        numbers.append(len(statements))
    assert 0 < numbers[0] == numbers[1]


def due() -> Planner:
    return planner_of(ArtifactStore(), active_pools()[0])


def test_after_the_first_part_come_the_replays_then_the_results_once_for_all_pools(tiny_pool: Path) -> None:
    finished_stages()
    asked = [r for r in follow_up(due(), "tiny", PREPARE, "c", set()) if isinstance(r, dg.RunRequest)]
    assert [(r.job_name, str(r.partition_key)) for r in asked] == [
        (REPLAY, "tiny|0000"),
        (REPLAY, "tiny|0500"),
    ]
    (skipped,) = follow_up(due(), "tiny", REPLAY, "c", {"tiny"})
    assert isinstance(skipped, dg.SkipReason) and "come first" in (skipped.skip_message or "")
    for policy in chain_of().pool.policies:
        for rho in (0.0, 500.0):
            finished_replay(rho, policy)
    (skipped,) = follow_up(due(), "tiny", REPLAY, "c", {"another"})
    assert isinstance(skipped, dg.SkipReason) and "another" in (skipped.skip_message or "")
    tiny_pool.with_name("gone.yaml").write_text("name: gone\nsource: {kind: file, path: deleted.csv}\n")
    (ArtifactStore().root / "outcomes" / "gone").mkdir()  # a pool whose table is gone concerns no other
    for done in (PREPARE, REPLAY, ""):  # empty: the last part of another chain failed
        (request,) = follow_up(due(), "tiny", done, "c", set())
        assert isinstance(request, dg.RunRequest)
        assert (request.job_name, request.partition_key) == (RESULTS, "tiny")
        assert dg.AssetKey("leaderboard") in (request.asset_selection or [])


def test_results_are_asked_for_also_where_the_replay_of_one_rho_failed_and_another_ended_last(
    tiny_pool: Path,
) -> None:
    finished_stages()
    for policy in chain_of().pool.policies:
        finished_replay(0.0, policy)
    produce(ArtifactStore(), page_parts("tiny"), Recipe("report", "tiny", "", {}, {}), lambda folder: {}, "")
    for done in (REPLAY, ""):
        requests = [r for r in follow_up(due(), "tiny", done, "c", set()) if isinstance(r, dg.RunRequest)]
        assert [r.job_name for r in requests] == [RESULTS]
    (skipped,) = follow_up(due(), "tiny", REPLAY, "c", {"tiny"})  # the other rho is under way
    assert isinstance(skipped, dg.SkipReason)


def test_a_pool_that_a_check_stopped_has_no_results_to_ask_for_unless_a_report_is_there(
    tiny_pool: Path, instance
) -> None:
    finished_stages("outcomes")
    make_artifact(
        chain_of(),
        chain_of().stage("outcomes"),
        Options(force=True),
        build=stand_in("outcomes", blocked=["costs_in_range"]),
    )
    assert due().in_words("tiny").startswith("nothing: ") and "costs_in_range" in due().in_words("tiny")
    (skipped,) = follow_up(due(), "tiny", "", "c", set())
    assert isinstance(skipped, dg.SkipReason) and not tick(instance).run_requests
    recipe = Recipe("report", "tiny", "", {}, {})
    produce(ArtifactStore(), page_parts("tiny"), recipe, lambda folder: {}, "")
    (request,) = follow_up(due(), "tiny", "", "c", set())  # it is to say that its figures are of older data
    assert isinstance(request, dg.RunRequest) and request.job_name == RESULTS


def test_a_stage_that_failed_leaves_no_report_with_figures_of_older_data(tiny_pool: Path, instance) -> None:
    """A run that a sensor began failed, so that the stage stays due. No other pool asks for results."""
    finished_stages()
    for policy in chain_of().pool.policies:
        for rho in (0.0, 500.0):
            finished_replay(rho, policy)
    recipe = Recipe("report", "tiny", "", {OLDER_DATA: ""}, {})
    produce(ArtifactStore(), page_parts("tiny"), recipe, lambda folder: {}, "")
    tiny_pool.write_text(tiny_pool.read_text().replace("queries: 240", "queries: 260"))
    assert due().pending("tiny")
    for ended in (PREPARE, ""):  # it goes on with the stages, or it failed or was cancelled
        requests = [r for r in follow_up(due(), "tiny", ended, "c", set()) if isinstance(r, dg.RunRequest)]
        assert [r.job_name for r in requests] == ([] if ended else [RESULTS])
    assert dg.AssetKey("report") in (requests[0].asset_selection or [])
    (skipped,) = follow_up(due(), "tiny", "", "c", {"another"})
    assert isinstance(skipped, dg.SkipReason)


def test_results_are_asked_for_when_no_chain_is_under_way_nor_between_two_parts(
    tiny_pool: Path, instance, monkeypatch
) -> None:
    finished_stages()
    for policy in chain_of().pool.policies:
        for rho in (0.0, 500.0):
            finished_replay(rho, policy)
    (request,) = tick(instance).run_requests or []
    assert request.job_name == RESULTS
    run = instance.create_run_for_job(
        broken_job, status=dg.DagsterRunStatus.STARTED, tags={"cabs/pool": "another", "cabs/chain": "c"}
    )
    assert not tick(instance).run_requests
    instance.report_run_canceled(run)
    assert not tick(instance).run_requests  # the sensors of ended runs ask for what follows it
    later = time.time() + 61
    monkeypatch.setattr("time.time", lambda: later)
    assert len(tick(instance).run_requests or []) == 1


def test_what_failed_is_asked_for_again_and_what_is_fresh_is_not(
    tiny_pool: Path, instance, monkeypatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr("time.time", lambda: now[0])
    first = tick(instance)
    now[0] += 3599
    assert not tick(instance, first.cursor).run_requests
    now[0] += 1
    second = tick(instance, first.cursor)
    now[0] += 3600
    keys = [
        (result.run_requests or [])[0].run_key or ""
        for result in (first, second, tick(instance, second.cursor))
    ]
    assert [key.split(":")[2] for key in keys] == ["1", "2", "3"]
    finished_stages()
    parts = tick(instance, first.cursor).run_requests or []
    assert {r.job_name for r in parts} == {REPLAY}  # not from the start


def test_a_pool_with_a_part_of_its_chain_under_way_is_not_asked_for(tiny_pool: Path, instance) -> None:
    run = instance.create_run_for_job(
        broken_job, status=dg.DagsterRunStatus.STARTED, tags={"cabs/pool": "tiny", "cabs/chain": "c"}
    )
    assert not tick(instance).run_requests
    instance.report_run_canceled(run)
    assert [request.partition_key for request in tick(instance).run_requests or []] == ["tiny"]


def ended_run(instance: dg.DagsterInstance, job_name: str, tags: dict[str, str]) -> dg.RunStatusSensorContext:
    """Return the context of a sensor that follows a run of a job."""

    @dg.job(name=job_name)
    def job() -> None:
        breaks()

    run = instance.create_run_for_job(job, tags=tags)
    instance.report_run_failed(run)
    event = instance.get_records_for_run(run.run_id).records[-1].event_log_entry.dagster_event
    assert event is not None
    return dg.build_run_status_sensor_context("next_part", event, instance, run)


@pytest.mark.parametrize(
    ("sensor_name", "job_name", "jobs_asked"),
    [
        ("next_part", PREPARE, [REPLAY, REPLAY]),
        ("results_after_failure", PREPARE, []),
        ("results_after_failure", JOIN, [REPLAY, REPLAY]),  # where no model could join, the rest goes on
        ("results_after_cancel", REPLAY, []),
    ],
)
def test_a_chain_goes_on_after_a_part_that_succeeded_and_after_models_that_could_not_join(
    tiny_pool: Path, instance, sensor_name: str, job_name: str, jobs_asked: list[str]
) -> None:
    finished_stages()
    found = {sensor.name: sensor for sensor in sensors(CabsResource(), AlertResource(), jobs())}
    context = ended_run(instance, job_name, {"cabs/pool": "tiny", "cabs/chain": "c"})
    asked = list(found[sensor_name](context))
    assert [r.job_name for r in asked if isinstance(r, dg.RunRequest)] == jobs_asked


def test_a_run_that_no_sensor_began_is_followed_by_nothing(tiny_pool: Path, instance) -> None:
    finished_stages()
    (sensor,) = (s for s in sensors(CabsResource(), AlertResource(), jobs()) if s.name == "next_part")
    (skipped,) = sensor(ended_run(instance, PREPARE, {}))
    assert isinstance(skipped, dg.SkipReason)
    assert "not a part of a chain" in (skipped.skip_message or "")


def test_partitions_that_follow_say_when_nothing_changed(tiny_pool: Path, instance) -> None:
    def reason() -> str | None:
        result = keep_partitions(logging_context(instance, None), ArtifactStore())
        for event in result.asset_events:
            instance.report_runless_asset_event(event)
        return None if result.skip_reason is None else result.skip_reason.skip_message

    assert [reason(), reason()] == [None, "all is known"]
    instance.add_dynamic_partitions("rhos", ["9999"])  # no pool has this rho, and no file changed
    assert [reason(), reason()] == [None, "all is known"]


def test_partitions_follow_the_pools_and_rhos_stand_in_numeric_order(tiny_pool: Path, instance) -> None:
    def watch() -> tuple[list[str], list[str]]:
        """As the daemon does, which refuses some of what a sensor may ask for."""
        sensor = sensors(CabsResource(), AlertResource(), jobs())[0]
        sensor.evaluate_tick(dg.build_sensor_context(instance=instance))
        return list(instance.get_dynamic_partitions("pools")), list(instance.get_dynamic_partitions("rhos"))

    assert watch() == (["tiny"], ["0000", "0500"])  # nobody asked for the shipped ones
    second = tiny_pool.with_name("second.yaml")
    second.write_text(
        tiny_pool.read_text().replace("name: tiny", "name: second").replace("[0, 500]", "[20000, 70]")
    )
    assert watch() == (["tiny", "second"], ["0000", "0070", "0500", "20000"])
    good = second.read_text()
    second.write_text(good + "nonsense: 1\n")  # while it is edited, nothing of it goes
    assert watch() == (["tiny", "second"], ["0000", "0070", "0500", "20000"])
    second.unlink()
    assert watch() == (["tiny"], ["0000", "0500"])
    instance.add_dynamic_partitions("pools", ["demo"])  # chosen in the UI
    pools, rhos = watch()
    assert pools == ["tiny", "demo"] and "0300" in rhos and rhos == sorted(rhos)
    with edit_retired() as names:
        names.add("demo")
    assert watch() == (["tiny"], ["0000", "0500"])


def test_schedules_ask_for_pools_that_were_run_or_are_the_users_own(tiny_pool: Path, instance) -> None:
    weekly_rerun, nightly_audit, _ = schedules()
    at = datetime(2030, 1, 6, 3, tzinfo=UTC)
    # Without `with`, the context is closed at any time after the test, in the midst of another one.
    with dg.build_schedule_context(instance=instance, scheduled_execution_time=at) as context:
        assert isinstance(next(iter(nightly_audit(context))), dg.SkipReason)  # nothing was replayed
        (weekly,) = weekly_rerun(context)
        for pool in ("demo", "tiny"):
            instance.report_runless_asset_event(dg.AssetMaterialization("outcomes", partition=pool))
        instance.add_dynamic_partitions("pools", ["demo"])
        assert [request.partition_key for request in weekly_rerun(context)] == ["demo", "tiny"]
        (_, nightly) = nightly_audit(context)
    assert (weekly.run_key, weekly.partition_key) == ("weekly:tiny:2030-W01", "tiny")
    assert (nightly.run_key, nightly.partition_key) == ("audit:tiny:2030-01-06", "tiny")
    assert nightly.run_config["ops"]["replay_audit"]["config"]["seed"] == at.toordinal()


def test_the_audit_of_replays_leaves_pools_of_logs_out(tiny_pool: Path, instance) -> None:
    text = "name: calls\nsource: {kind: logs, path: calls.csv}\n"
    tiny_pool.with_name("calls.yaml").write_text(text)
    _, nightly_audit, _ = schedules()
    at = datetime(2030, 1, 6, 3, tzinfo=UTC)
    with dg.build_schedule_context(instance=instance, scheduled_execution_time=at) as context:
        for pool in ("calls", "tiny"):
            instance.report_runless_asset_event(dg.AssetMaterialization("outcomes", partition=pool))
        assert [request.partition_key for request in nightly_audit(context)] == ["tiny"]


@dg.op
def breaks() -> None:
    raise dg.Failure("the table is empty")


@dg.job
def broken_job() -> None:
    breaks()


@dg.asset(check_specs=[dg.AssetCheckSpec(name, asset="checked") for name in ("sums", "signs")])
def checked() -> dg.MaterializeResult:
    failed = dg.AssetCheckResult(
        passed=False, check_name="sums", severity=dg.AssetCheckSeverity.WARN, description="2 is not 3"
    )
    passed = dg.AssetCheckResult(passed=True, check_name="signs")
    return dg.MaterializeResult(check_results=[failed, passed])


def alert(instance: dg.DagsterInstance, cursor: str | None, sent: AlertResource) -> str | None:
    return report_failures(logging_context(instance, cursor), sent).cursor


def test_failed_runs_and_checks_are_told_once_a_day(instance) -> None:
    cursor = alert(instance, None, AlertResource())
    assert not LOGGED
    broken_job.execute_in_process(instance=instance, raise_on_error=False)
    dg.materialize([checked], instance=instance)
    cursor = alert(instance, cursor, AlertResource())
    (text,) = LOGGED
    assert "broken_job failed" in text and "the table is empty" in text
    assert "WARN: check sums of checked: 2 is not 3" in text
    assert "signs" not in text
    broken_job.execute_in_process(instance=instance, raise_on_error=False)
    alert(instance, cursor, AlertResource())
    assert not LOGGED


def test_a_failure_that_goes_on_is_told_again_after_a_day(instance, monkeypatch) -> None:
    now = [time.time()]
    monkeypatch.setattr("time.time", lambda: now[0])
    cursor = alert(instance, None, AlertResource())
    told = []
    for seconds in (1, 86_399, 1):
        now[0] += seconds
        broken_job.execute_in_process(instance=instance, raise_on_error=False)
        cursor = alert(instance, cursor, AlertResource())
        told.append(len(LOGGED))
    assert told == [1, 0, 1]
    alert(instance, cursor, AlertResource())
    assert not LOGGED


def test_a_failed_run_that_gets_a_tag_after_its_end_is_not_told_again_after_a_day(
    instance, monkeypatch
) -> None:
    cursor = alert(instance, None, AlertResource())
    run = broken_job.execute_in_process(instance=instance, raise_on_error=False)
    cursor = alert(instance, cursor, AlertResource())
    assert len(LOGGED) == 1
    instance.add_run_tags(run.run_id, {"looked": "at"})
    later = time.time() + 86_401
    monkeypatch.setattr("time.time", lambda: later)
    alert(instance, cursor, AlertResource())
    assert not LOGGED


def fail_runs(instance: dg.DagsterInstance, partitions: list[str]) -> None:
    """Let a run of each partition fail."""
    for partition in partitions:
        run = instance.create_run_for_job(broken_job, tags={"dagster/partition": partition})
        instance.report_run_failed(run)


def test_one_message_tells_twenty_failures_and_3000_characters_at_most(instance) -> None:
    cursor = alert(instance, None, AlertResource())
    fail_runs(instance, [str(number) for number in range(21)])
    cursor = alert(instance, cursor, AlertResource())
    (text,) = LOGGED
    assert text.count(" failed:\n") == 20
    cursor = alert(instance, cursor, AlertResource())
    assert not LOGGED  # the one that did not fit counts as told
    fail_runs(instance, ["x" * 2_000, "y" * 2_000])
    alert(instance, cursor, AlertResource())
    (text,) = LOGGED
    assert len(text) == 3_000


def test_a_tick_without_requests_says_why_in_1500_characters_at_most(tiny_pool: Path, instance) -> None:
    cursor = tick(instance).cursor
    for number in range(30):
        tiny_pool.with_name(f"broken{number}.yaml").write_text(f"name: broken{number}\nnonsense: 1\n")
    (reason,) = [tick(instance, cursor).skip_reason]
    assert reason is not None
    assert len(reason.skip_message or "") == 1500


def test_sensors_look_every_ten_or_thirty_seconds_and_only_partitions_follow_from_the_start() -> None:
    found = {
        sensor.name: (sensor.minimum_interval_seconds, sensor.default_status.value)
        for sensor in sensors(CabsResource(), AlertResource(), jobs())
    }
    assert found == {
        "partitions_of_pools": (30, "RUNNING"),
        "pool_files": (10, "STOPPED"),
        "next_part": (10, "STOPPED"),
        "results_after_failure": (10, "STOPPED"),
        "results_after_cancel": (10, "STOPPED"),
        "alerts": (30, "STOPPED"),
    }


@pytest.mark.slow
def test_a_failure_is_told_however_many_runs_are_newer(instance) -> None:
    """In a backfill all runs are created at once; the first to fail may be far from the newest."""
    cursor = alert(instance, None, AlertResource())
    failed = instance.create_run_for_job(broken_job)
    for _ in range(250):
        instance.create_run_for_job(broken_job, status=dg.DagsterRunStatus.SUCCESS)
    instance.report_run_failed(failed)
    alert(instance, cursor, AlertResource())
    (text,) = LOGGED
    assert failed.run_id in text


@pytest.mark.parametrize("status", [200, 307])
def test_alerts_go_to_the_webhook_and_to_the_log_when_it_does_not_take_them(caplog, status: int) -> None:
    """The webhook's address is the operator's; where its server sends the caller is not, so no redirect is
    followed."""
    received: list[tuple[str, bytes]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_arguments) -> None:
            pass

    log = logging.getLogger("alerts")
    with HTTPServer(("127.0.0.1", 0), Hook) as server, caplog.at_level(logging.ERROR):
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        AlertResource(webhook_url=f"http://127.0.0.1:{server.server_port}/secret").send("hello", log)
        server.shutdown()
    assert received == [("/secret", b'{"text": "hello"}')] and ("hello" in caplog.text) == (status == 307)
    with caplog.at_level(logging.ERROR):
        AlertResource(webhook_url="http://127.0.0.1:9/secret").send("hello again", log)
    assert "hello again" in caplog.text and "secret" not in caplog.text


def test_a_pool_has_a_partition_for_estimates_once_its_log_holds_a_score(tiny_pool: Path, instance) -> None:
    def registered() -> list[str]:
        partitions.register(instance, ArtifactStore())
        return list(instance.get_dynamic_partitions("pools_with_log"))

    assert registered() == []
    place = chain_of().pool_file.log_path
    place.parent.mkdir(parents=True)
    log = EventLog(place)
    log.add_decisions([event_row("asked")])
    assert registered() == []
    log.add_reward("asked", 1.0, 0.0, "user", "first")
    log.close()
    assert registered() == ["tiny"]
    named = tiny_pool.with_name("calls.csv")
    tiny_pool.write_text(tiny_pool.read_text() + "router: {log: calls.csv}\n")
    assert registered() == []
    named.write_text("prompt,model,score,cost\n")  # the run that reads it says what is wrong with it
    assert registered() == ["tiny"]
