"""BLAS is limited to one thread while any thread asks for it."""

from contextlib import ExitStack

from threadpoolctl import ThreadpoolController

from cabs_core.base.threads import one_blas_thread


def test_the_last_that_ends_gives_the_threads_back():
    with one_blas_thread():  # loads what it limits
        pass
    libraries = ThreadpoolController().select(user_api="blas")

    def threads() -> list[int]:
        return [library["num_threads"] for library in libraries.info()]

    with libraries.limit(limits=2):
        before = threads()  # a library that was built for one thread stays at 1
        first, second = ExitStack(), ExitStack()
        first.enter_context(one_blas_thread())
        second.enter_context(one_blas_thread())
        first.close()
        assert set(threads()) == {1}
        second.close()
        assert threads() == before
        assert 2 in before
