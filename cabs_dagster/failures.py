"""Messages of the failed steps and checks of a run, as text without stack traces."""

from collections.abc import Iterable

import dagster as dg


def step_text(event: dg.DagsterEvent) -> str:
    """Return `step: message` of a failed step.

    The message is the description of the failure, or if there is none, that of the error's first cause.
    """
    data = event.step_failure_data
    description = getattr(data.user_failure_data, "description", None)
    if not description and data.error is not None:
        cause = data.error
        while cause.cause is not None:
            cause = cause.cause
        description = cause.message.strip()
    return f"{event.step_key}: {description}"


def check_place(check: dg.AssetCheckEvaluation) -> str:
    """Return the asset of a check's result, with the partition if there is one."""
    return check.asset_key.to_user_string() + (f" [{check.partition}]" if check.partition else "")


def check_text(check: dg.AssetCheckEvaluation) -> str:
    """Return the name of a check, its asset and partition, and the description of its result."""
    return f"check {check.check_name} of {check_place(check)}: {check.description or ''}"


def run_texts(events: Iterable[dg.DagsterEvent]) -> list[str]:
    """Return the messages of the failed steps of a run, and of its failed checks of severity ERROR.

    A step that failed only because of such a check is left out. If there is no message, the list holds the
    error of the run itself, or a sentence that there is none.
    """
    texts: list[str] = []
    of_run: list[str] = []
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
