"""Threads: one for matrix products whose results are hashed, several for jobs that hold no lock.

When BLAS splits a product over threads, the order of its sums changes, so the last digits depend on the
number of threads, and a policy's actions depend on those digits. Whatever ends in an artifact is therefore
computed under these limits. Both work as context managers and as decorators, and limit the whole process.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from threading import Lock

from threadpoolctl import ThreadpoolController

#: libraries that are loaded -> how many limit them now, and how they stop
_limited: dict[bool, tuple[int, Callable[[], None]]] = {}
_lock = Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """One thread for every BLAS that NumPy, SciPy and compiled loops call.

    Within another one, of any thread, nothing is left to do; the last that ends gives the threads back.
    """
    loaded = "torch" in sys.modules
    with _lock:
        users, restore = _limited.get(loaded) or (
            0,
            _thread_pools(loaded).limit(limits=1, user_api="blas").restore_original_limits,
        )
        _limited[loaded] = users + 1, restore
    try:
        yield
    finally:
        with _lock:
            users, restore = _limited.pop(loaded)
            if users > 1:
                _limited[loaded] = users - 1, restore
            else:
                restore()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """One thread for torch where something has imported it; imports nothing itself."""
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
    """Run all jobs, at most so many at once; the first error of a job is raised.

    Each job has the context variables of the caller, such as the places of its home.
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
    """Thread pools of the loaded libraries; cached with and without torch, for finding them is slow."""
    # compiled loops call this library, so it must be loaded to be limited; here, for it takes .25 s
    import scipy.linalg.blas  # noqa: F401, PLC0415

    return ThreadpoolController()
