"""The compiled kernels: against each other, restarts, threads, caches and allocation."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest

from cabs_core.algorithms.solver import workspace as layout
from cabs_core.algorithms.solver.api import make_workspace, solve_exploration_batch
from cabs_core.algorithms.solver.workspace import solve_kernel
from tests.solver_instances import bernoulli_batch, mixed_batch

K = 8


@numba.njit(nogil=True)
def _many(f, G, gammas, tol, workspace, p, certified):
    for b in range(f.shape[0]):
        _, _, certified[b] = solve_kernel(f[b], G[b], gammas[b], tol, workspace, p[b])


def _run(f, G, gammas, workspace, tol=1e-8):
    p, certified = np.empty_like(f), np.empty(len(f), dtype=bool)
    _many(f, G, gammas, tol, workspace, p, certified)
    return p, certified


@pytest.fixture(scope="module")
def instances():
    f, G = bernoulli_batch(np.random.default_rng(0), K, 400)
    return f, G, 10.0 ** np.random.default_rng(1).uniform(0, 3, 400)


def test_the_fast_kernel_and_the_fallback_agree(instances):
    f, G, gammas = instances
    p, certified = _run(f, G, gammas, make_workspace(K))
    slow = make_workspace(K)
    slow[layout.PRIMARY] = slow[layout.FALLBACK]
    by_fallback, fallback_certified = _run(f, G, gammas, slow)
    assert certified.all() and fallback_certified.all()
    assert (
        np.abs(p - by_fallback).max() < 1e-3
    )  # both within 1e-8 of the optimum; the objective is flat around it
    assert not np.array_equal(p, by_fallback)


def test_the_fallback_takes_over(instances):
    """A first kernel that finds nothing leaves the answer to the second."""
    f, G, gammas = instances

    @numba.cfunc(layout.SIGNATURE)
    def useless(losses, graph, gamma, tol, ws, p_out):
        ws[layout.ITERATIONS] = 7.0

    workspace = make_workspace(K)
    layout.put_address(workspace, layout.PRIMARY, useless.address)
    p, certified = _run(f[:20], G[:20], gammas[:20], workspace)
    assert certified.all() and np.allclose(p.sum(1), 1, atol=1e-12)
    assert workspace[layout.ITERATIONS] > 7


def test_a_better_first_point_survives_the_fallback(instances):
    """An impossible tolerance: the result is the better of the two kernels' points, with an honest gap."""
    f, G, gammas = instances
    p = np.empty(K)
    gap, iterations, certified = solve_kernel(f[0], G[0], gammas[0], 1e-30, make_workspace(K), p)
    assert not certified and iterations > 0
    assert 0 <= gap < 1e-8
    assert abs(p.sum() - 1) <= 1e-12


def test_a_workspace_carries_nothing_over(instances):
    """Hard instances and failures in between do not change an answer."""
    f, G, gammas = instances
    fresh, _ = _run(f[:50], G[:50], gammas[:50], make_workspace(K))
    workspace, again = make_workspace(K), np.empty((50, K))
    hard_f, hard_G, hard_gammas, _ = mixed_batch(np.random.default_rng(2), K, 50)
    p = np.empty(K)
    for b in range(50):
        solve_kernel(hard_f[b], hard_G[b], hard_gammas[b], 1e-12, workspace, p)
        solve_kernel(np.full(K, np.nan), hard_G[b], 1.0, 1e-8, workspace, p)
        solve_kernel(f[b], G[b], gammas[b], 1e-8, workspace, again[b])
    assert np.array_equal(fresh, again)


def test_threads_with_a_workspace_each(instances):
    f, G, gammas = instances
    expected, _ = _run(f, G, gammas, make_workspace(K))
    with ThreadPoolExecutor(4) as pool:
        alone = [pool.submit(lambda: _run(f, G, gammas, make_workspace(K))[0]) for _ in range(4)]
        batches = [pool.submit(lambda: solve_exploration_batch(f, G, gammas).p) for _ in range(2)]
    assert all(np.array_equal(expected, answer.result()) for answer in (*alone, *batches))


def test_nothing_is_allocated(instances):
    """numba's runtime counts every array that compiled code allocates."""
    f, G, gammas = instances
    workspace, p, certified = make_workspace(K), np.empty_like(f), np.empty(len(f), dtype=bool)
    numba.core.runtime.rtsys  # noqa: B018  (the runtime must exist before statistics are switched on)
    _many(f, G, gammas, 1e-8, workspace, p, certified)
    from numba.core.runtime import _nrt_python as nrt

    nrt.memsys_enable_stats()
    try:
        before = nrt.memsys_get_stats_mi_alloc()
        _many(f, G, gammas, 1e-8, workspace, p, certified)
        # Views of the arrays passed in are not allocations of data; entering from Python makes none either.
        assert nrt.memsys_get_stats_mi_alloc() - before <= 16
    finally:
        nrt.memsys_disable_stats()


@pytest.mark.parametrize("wrong", ["float32", "transposed"])
def test_wrong_arrays_are_refused_when_the_caller_is_compiled(wrong):
    G = np.eye(3, dtype=np.float32) if wrong == "float32" else np.asfortranarray(np.eye(3))
    with pytest.raises(numba.TypingError, match="C-contiguous float64"):
        solve_kernel(np.zeros(3), G, 1.0, 1e-8, make_workspace(3), np.empty(3))


KERNELS = """
from numba import types
from cabs_core.base.compiled.jit import c_kernel, kernel

@kernel
def double(x):
    return 2.0 * x

@c_kernel(types.float64(types.float64))
def half(x):
    return 0.5 * x
"""


def output_of_process(folder, kernels, code, *arguments, **settings):
    """What a process prints that runs this code in a folder with the module `kernels`."""
    (folder / "kernels.py").write_text(kernels, encoding="utf-8")
    root = Path(__file__).resolve().parents[4]
    words = [sys.executable, "-c", code, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(root)} | {name: str(value) for name, value in settings.items()}
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_works_where_no_cache_can_be_written(tmp_path):
    """A read-only installation: kernels compile in memory."""
    code = (
        "import numba.core.caching as c\n"
        "def refuse(*a, **k): raise OSError('read-only')\n"
        "c._CacheLocator.ensure_cache_path = refuse\n"
        "import kernels\n"
        "assert kernels.double(2.0) == 4.0 == 2.0 * kernels.half.ctypes(4.0)\n"
    )
    output_of_process(tmp_path, KERNELS, code, NUMBA_CACHE_DIR="")


def test_a_cache_in_a_read_only_image_is_used(tmp_path):
    """The image of a router holds compiled code, and its containers cannot write: nothing is compiled a
    second time."""
    code = (
        "import os, sys\n"
        "folder, may_write, real = sys.argv[1], sys.argv[2] == 'writable', os.access\n"
        "os.access = lambda path, mode: (may_write or str(path) != folder) and real(path, mode)\n"
        "import numba.core.config as c\n"
        "from cabs_core.base.compiled.jit import share_compiled\n"
        "import kernels\n"
        "before = share_compiled()\n"
        "assert kernels.double(2.0) == 4.0\n"
        "print(before, c.CACHE_DIR)\n"
    )
    image, temporary = tmp_path / "image", tmp_path / "tmp"
    image.mkdir()
    temporary.mkdir()
    (built, folder), (started, copy) = (
        output_of_process(
            tmp_path, KERNELS, code, image, kind, NUMBA_CACHE_DIR=image, TMPDIR=temporary
        ).split()
        for kind in ("writable", "read-only")
    )
    assert (float(built), float(started)) == (0.0, 1.0) and folder == str(image) != copy
    assert not list(temporary.iterdir())  # the copy goes with the process


def test_compiled_code_of_an_older_version_is_not_even_opened(tmp_path):
    """Its index may name classes that have moved since; the files of changed code have other names."""
    code = "import kernels; print(kernels.f(kernels.Pair(1.0, 2.0)))"
    text = (
        "from typing import NamedTuple\nfrom cabs_core.base.compiled.jit import kernel\n"
        "class {0}(NamedTuple):\n    a: float\n    b: float\n"
        "Pair = {0}\n@kernel\ndef f(p):\n    return p.a + {1} * p.b\n"
    )
    cache = {"NUMBA_CACHE_DIR": tmp_path / "cache", "PYTHONDONTWRITEBYTECODE": "1"}
    for name, factor, expected in (("Old", 1, "3.0"), ("New", 3, "7.0")):
        assert output_of_process(tmp_path, text.format(name, factor), code, **cache).strip() == expected
    assert len(list((tmp_path / "cache").rglob("kernels*.nbi"))) == 2
