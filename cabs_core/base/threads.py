"""Limits of the number of threads in numerical libraries, and jobs in several threads.

If BLAS splits a product over threads, the order of the sums changes. The last digits then depend on the
number of threads, and a policy's actions depend on these digits. Results that end in an artifact are
therefore computed under `one_blas_thread` and `one_torch_thread`, which are context managers and decorators
and limit the whole process.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from threading import Lock

from threadpoolctl import OpenBLASController, ThreadpoolController

from cabs_core.base.errors import CabsError

#: True if torch was loaded when the limit began -> number of its users, and the function that lifts it; the
#: limit that began last is the last item
_limited: dict[bool, tuple[int, Callable[[], None]]] = {}
_lock = Lock()


def number_of_workers(variable: str) -> int:
    """Return the number in an environment variable, or that of the process's processors if it is not set.

    Raises:
        CabsError: the variable holds no whole number of at least 1.
    """
    value = os.environ.get(variable, "").strip()
    if value:
        if not value.isdecimal() or int(value) < 1:
            raise CabsError(f"{variable} is {value!r:.60}; expected a whole number of at least 1")
        return int(value)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit every BLAS that NumPy, SciPy and compiled loops call to one thread.

    Limits may overlap, in one thread or in several. The last one that ends restores the number of threads.
    Limits that begin after torch is loaded also hold for libraries that torch has loaded. For these, the last
    such limit that ends restores the number.
    """
    loaded = "torch" in sys.modules
    with _lock:
        if loaded in _limited:
            users, restore = _limited[loaded]
        else:
            users = 0
            with _any_thread_sets_blas():
                restore = _thread_pools(loaded).limit(limits=1, user_api="blas").restore_original_limits
        _limited[loaded] = (users + 1, restore)
    try:
        yield
    finally:
        with _lock:
            users, restore = _limited[loaded]
            _limited[loaded] = (users - 1, restore)
            # a limit restores the numbers that it found, which an earlier limit may have set: last one first
            while _limited and _limited[next(reversed(_limited))][0] == 0:
                _, restore = _limited.popitem()[1]
                with _any_thread_sets_blas():
                    restore()


@contextmanager
def _any_thread_sets_blas() -> Iterator[None]:
    """Let the calling thread set the number of BLAS threads within the block.

    Threadpoolctl lets only the thread that set it first do so, and passes over what others set, until that
    thread gives up its right.
    """
    OpenBLASController.clear_controlling_thread(force=True)
    try:
        yield
    finally:
        OpenBLASController.clear_controlling_thread(force=True)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Limit torch to one thread if it is loaded. Torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def over_threads(jobs: Sequence[Callable[[], None]], threads: int) -> None:
    """Run all jobs, at most `threads` at once, and raise the error of the first job in order that failed.

    The error is noticed once all jobs before that job have ended. Jobs that have not begun then are left out.

    Each job has the context variables of the caller, such as the places of `paths.at_places`.
    """
    if threads <= 1 or len(jobs) == 1:
        for job in jobs:
            job()
        return
    contexts = [copy_context() for _ in jobs]  # a context is in use by one thread at a time
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda context, job: context.run(job), contexts, jobs))


@cache
def _thread_pools(with_torch: bool) -> ThreadpoolController:
    """Thread pools of the loaded libraries, cached for each `with_torch` because the search is slow."""
    # compiled loops call this library, which must be loaded to be limited; the import takes .25 s
    import scipy.linalg.blas  # noqa: F401, PLC0415

    return ThreadpoolController()
