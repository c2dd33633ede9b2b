"""What failing steps and checks of a run said, as text without stack traces."""

from collections.abc import Iterable

import dagster as dg


def step_text(event: dg.DagsterEvent) -> str:
    """What a failing step said."""
    data = event.step_failure_data
    description = getattr(data.user_failure_data, "description", None)
    if not description and data.error is not None:
        cause = data.error
        while cause.cause is not None:
            cause = cause.cause
        description = cause.message.strip()
    return f"{event.step_key}: {description}"


def check_place(check: dg.AssetCheckEvaluation) -> str:
    """Asset and partition of a check's result."""
    return check.asset_key.to_user_string() + (f" [{check.partition}]" if check.partition else "")


def check_text(check: dg.AssetCheckEvaluation) -> str:
    """What a check found."""
    return f"check {check.check_name} of {check_place(check)}: {check.description or ''}"


def run_texts(events: Iterable[dg.DagsterEvent]) -> list[str]:
    """What the failing steps and blocking checks of a run said; what the run itself said where none did."""
    texts, of_run = [], []
    for event in events:
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            if not check.passed and check.severity == dg.AssetCheckSeverity.ERROR:
                texts.append(check_text(check))
        elif event.is_step_failure and not (texts and "AssetCheckFailed" in step_text(event)):
            texts.append(step_text(event))
        elif event.is_job_failure and event.job_failure_data.error:
            of_run.append(event.job_failure_data.error.message.strip())
    return texts or of_run or ["it ended without saying why; see the UI"]
