"""End the process of a cancelled run that does not react, because a native call goes on.

Dagster interrupts a run by SIGINT, and Python answers between two of its own instructions. A call of compiled
code may run for minutes without one. A thread that sees the signal waits `PATIENCE` seconds. If the run has
not ended then, the thread marks the run as cancelled, says so in the run's log, and ends the process.
Artifacts are published whole or not at all, so that nothing half-made is left behind.
"""

import multiprocessing
import os
import signal
import threading
from functools import cache

import dagster as dg

#: seconds that a run gets to end by itself
PATIENCE = 8.0


@cache
def end_if_it_does_not_react(instance: dg.DagsterInstance, run_id: str) -> None:
    """Start a thread that waits for SIGINT in the process of a launched run, and return.

    The thread ends the process if the run goes on for `PATIENCE` seconds after the signal. Do nothing in any
    other process, outside of the main thread, or if the thread was started before.
    """
    is_launched = multiprocessing.parent_process() is not None  # by a code server, as a process of its own
    if not is_launched or threading.current_thread() is not threading.main_thread():
        return  # a command or a test, which an interrupt is not to end
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(
        target=end_held_run, args=(instance, run_id, read), name="cabs-terminate", daemon=True
    ).start()


def end_held_run(instance: dg.DagsterInstance, run_id: str, read: int) -> None:
    """Wait for SIGINT in the pipe `read`, and end the process if its run goes on for `PATIENCE` seconds."""
    while signal.SIGINT not in os.read(read, 64):
        pass
    ended = threading.Event()  # never set: it is a sleep that ends with the process
    ended.wait(PATIENCE)
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return
    text = (
        f"The run did not end within {PATIENCE:g} s of the interrupt, because a native call goes on: its "
        "process is ended. What was finished before stays; the next run goes on from there."
    )
    instance.report_engine_event(text, run)
    instance.report_run_canceled(run, text)
    instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    os._exit(1)
