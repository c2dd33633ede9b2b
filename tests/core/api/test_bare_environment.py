"""The library where the server's packages are not installed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import importlib, pkgutil, sys

SERVER = {"starlette", "uvicorn", "aiohttp"}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in SERVER:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
import cabs_core

for module in pkgutil.walk_packages(cabs_core.__path__, "cabs_core."):
    importlib.import_module(module.name)
for name in cabs_core.__all__:
    getattr(cabs_core, name)
problem = cabs_core.synthetic_problem(n=60, K=3, d=4)
table = cabs_core.replay_many(problem, ["lin_ucb", "random"], rhos=[100.0], trials=2)
assert set(table["policy"]) == {"lin_ucb", "random"}, table
assert not SERVER & {name.partition(".")[0] for name in sys.modules}
try:
    import cabs_server.app
except ModuleNotFoundError as error:
    print(error.name)
"""


@pytest.mark.slow
def test_the_library_is_imported_and_replays_without_the_packages_of_the_server():
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["starlette"]  # only the server needs it
