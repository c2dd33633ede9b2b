"""Alerts: failed runs and failed checks, each said once a day, to a webhook or to the log.

`CABS_WEBHOOK_URL` names the webhook (a JSON POST with a `text` field, which Slack, Mattermost and Teams accept).
Without it, alerts are written to the sensor's log. Open-source Dagster has no alert policies.
"""

import json
import os
import time

import dagster as dg

from cabs_core.atomic import write_text
from cabs_core.paths import cabs_home
from cabs_dagster.provenance import stable_hash

QUIET_SECONDS = 24 * 3600
_WEBHOOK = "CABS_WEBHOOK_URL"


def post(text: str, log) -> bool:
    """Send a text to the webhook, or to the log when there is none or it cannot be reached."""
    url = os.environ.get(_WEBHOOK)
    if url:
        import requests

        try:
            requests.post(url, json={"text": text}, timeout=10).raise_for_status()
            return True
        except requests.RequestException as error:
            log.error(f"the webhook could not be reached ({type(error).__name__}); the alert was: {text}")
            return False
    log.error(text)
    return True


def once_a_day(identity: str, now: float | None = None) -> bool:
    """Whether an alert of this identity has not been given within a day; remembers that it is given now."""
    now = time.time() if now is None else now
    path = cabs_home() / "alerts.json"
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        given = {}
    given = {name: at for name, at in given.items() if now - at < QUIET_SECONDS}
    key = stable_hash(identity)
    if key in given:
        return False
    write_text(path, json.dumps(given | {key: now}))
    return True


def failed_checks(instance: dg.DagsterInstance, run_id: str) -> list[tuple[str, str]]:
    """[(identity, text)] of the checks that failed in a run."""
    found = []
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION).records
    for record in records:
        evaluation = record.event_log_entry.dagster_event.asset_check_evaluation_data
        if evaluation.passed:
            continue
        place = "/".join(evaluation.asset_key.path)
        where = f"{place} [{evaluation.partition}]" if evaluation.partition else place
        text = f"{evaluation.severity.value}: check {evaluation.check_name} of {where}: {evaluation.description or ''}"
        found.append((f"{where}:{evaluation.check_name}:{evaluation.severity.value}", text))
    return found


def _where(run: dg.DagsterRun) -> str:
    return f"{run.job_name}" + (
        f" [{run.tags['dagster/partition']}]" if "dagster/partition" in run.tags else ""
    )


def _report_checks(context: dg.RunStatusSensorContext) -> None:
    run = context.dagster_run
    new = [text for identity, text in failed_checks(context.instance, run.run_id) if once_a_day(identity)]
    if new:
        post(
            f"{len(new)} checks failed in run {run.run_id} of {_where(run)}:\n" + "\n".join(new[:20]),
            context.log,
        )


@dg.run_failure_sensor(
    name="alert_on_failure",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Tells a webhook or the log of failed runs, the same failure once a day.",
)
def alert_on_failure(context: dg.RunFailureSensorContext) -> None:
    from cabs_dagster.running import failure_texts

    run = context.dagster_run
    texts = failure_texts(context.get_step_failure_events()) if context.get_step_failure_events() else []
    texts = texts or [context.failure_event.message or "no message"]
    if once_a_day(f"{_where(run)}:{texts}"):
        post(f"run {run.run_id} of {_where(run)} failed:\n" + "\n".join(texts)[:3000], context.log)
    _report_checks(context)


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.SUCCESS,
    name="alert_on_checks",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.STOPPED,
    description="Tells a webhook or the log of failed checks in runs that succeeded, the same check once a day.",
)
def alert_on_checks(context: dg.RunStatusSensorContext) -> None:
    _report_checks(context)
