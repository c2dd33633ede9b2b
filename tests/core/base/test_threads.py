"""BLAS is limited to one thread while any thread asks for it, and numbers of workers are read and checked."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import ModuleType

import pytest
from threadpoolctl import ThreadpoolController

from cabs_core.base.errors import CabsError
from cabs_core.base.threads import number_of_workers, one_blas_thread


def threads(libraries: ThreadpoolController) -> list[int]:
    """Return the number of threads of each library, as it is set now."""
    return [library["num_threads"] for library in libraries.info()]


def test_the_last_that_ends_gives_the_threads_back():
    with one_blas_thread():  # loads what it limits
        pass
    libraries = ThreadpoolController().select(user_api="blas")

    with libraries.limit(limits=2):
        before = threads(libraries)  # a library that was built for one thread stays at 1
        first, second = ExitStack(), ExitStack()
        first.enter_context(one_blas_thread())
        second.enter_context(one_blas_thread())
        first.close()
        assert set(threads(libraries)) == {1}
        second.close()
        assert threads(libraries) == before
        assert 2 in before


def test_any_thread_limits_and_any_thread_gives_the_threads_back():
    with one_blas_thread():  # loads what it limits
        pass
    libraries = ThreadpoolController().select(user_api="blas")

    def limited() -> list[int]:
        with one_blas_thread():
            return threads(libraries)

    with libraries.limit(limits=2), ThreadPoolExecutor(1) as other:
        before = threads(libraries)
        assert 2 in before
        assert set(limited()) == {1}
        assert set(other.submit(limited).result()) == {1}, "a thread that is not the first one"
        here, there = ExitStack(), ExitStack()
        here.enter_context(one_blas_thread())
        other.submit(there.enter_context, one_blas_thread()).result()
        here.close()
        assert set(threads(libraries)) == {1}
        other.submit(there.close).result()
        assert threads(libraries) == before, "the last one is not the one that began"
        assert set(limited()) == {1}, "the first thread can limit again"


def test_a_limit_from_before_torch_was_loaded_may_end_before_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with one_blas_thread():
        pass
    libraries = ThreadpoolController().select(user_api="blas")
    # the libraries would be cached without those of torch, which is not really loaded
    monkeypatch.setattr("cabs_core.base.threads._thread_pools", lambda with_torch: libraries)

    with libraries.limit(limits=2):
        before = threads(libraries)
        earlier, later = ExitStack(), ExitStack()
        earlier.enter_context(one_blas_thread())
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
        later.enter_context(one_blas_thread())
        earlier.close()
        assert set(threads(libraries)) == {1}
        later.close()
        assert threads(libraries) == before


def test_the_number_of_workers_is_the_variables_or_that_of_the_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CABS_THREADS", " 3 ")
    assert number_of_workers("CABS_THREADS") == 3
    monkeypatch.setenv("CABS_THREADS", "")
    assert 1 <= number_of_workers("CABS_THREADS") <= (os.cpu_count() or 1)


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_a_number_of_workers_that_is_no_whole_number_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CABS_WORKERS", value)
    with pytest.raises(CabsError, match=f"CABS_WORKERS is '{value}'; expected a whole number of at least 1"):
        number_of_workers("CABS_WORKERS")
