"""kill -9 in the middle of a download: the next `cabs data fetch` gets what is missing, and reads the same
table.

The data are small files of the published form on a server of this machine; the code that fetches them is the
real one.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from e2e_support import ROOT, environment, patience
from hub_server import HubServer
from published_files import openllm_files, sprout_part

from cabs_core.data.outcomes.sources import openllm_v2, sprout

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

POOL = """\
name: fetched
source: {{kind: {kind}}}
"""

#: the published matrix has a pin in the code; the small one needs its own
PINNED = "from cabs_core.data.outcomes.sources import openllm_v2; openllm_v2.MATRIX = {pin!r}; "


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


def start(home: Path, hub: HubServer, preamble: str) -> subprocess.Popen:
    """`cabs data fetch` with every data server pointed at the local one."""
    places = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home / "hf"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "CABS_GITHUB_RAW": hub.url,
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    code = preamble + "from cabs_dagster.cli import main; main()"
    with open(home / "run.log", "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", code, "data", "fetch", "fetched"],
            env=environment(home, **places),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(home: Path, process: subprocess.Popen) -> str:
    """Wait for a command that must succeed; its output without bars of progress."""
    code = process.wait(timeout=300 * patience())
    text = (home / "run.log").read_text()
    assert code == 0, text
    return "\n".join(line for line in text.splitlines() if line.strip() and "B/s]" not in line)


def check_killed_download(
    tmp_path: Path,
    hub: HubServer,
    kind: str,
    slow: str,
    sent: int,
    part: Callable[[Path], int],
    preamble: str = "",
) -> tuple[int, list[tuple[str, str | None]]]:
    """Kill while `part` (bytes on disk of the file `slow`) grows no more, go on, compare with an undisturbed
    run.

    Returns the bytes that the killed process left and the (path, Range) of what was asked for afterwards.
    """
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for home in (whole, broken):
        (home / "pools").mkdir(parents=True)
        (home / "pools" / "fetched.yaml").write_text(POOL.format(kind=kind), encoding="utf-8")
    expected = finish(whole, start(whole, hub, preamble))

    hub.state.stall_after[slow] = sent
    process = start(broken, hub, preamble)
    try:
        assert hub.state.stalled.wait(120 * patience()), (broken / "run.log").read_text()
        end, before = time.monotonic() + 10 * patience(), -1
        while (before != part(broken) or before == 0) and time.monotonic() < end:
            before = part(broken)
            time.sleep(0.5)
        assert process.poll() is None, (broken / "run.log").read_text()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    left = part(broken)

    hub.state.stall_after.clear()
    before = len(hub.gets())
    assert finish(broken, start(broken, hub, preamble)) == expected, "sizes, hashes and what the table holds"
    asked = hub.gets()[before:]
    finish(broken, start(broken, hub, preamble))
    assert len(hub.gets()) == before + len(asked), "nothing is downloaded again"
    return left, asked


def test_killed_download_from_a_raw_file_host_asks_for_the_unfinished_file_only(
    tmp_path: Path, hub: HubServer
) -> None:
    rng = np.random.default_rng(3)
    skills = np.linspace(0.2, 0.9, len(openllm_v2.MODELS))[:, None]
    tasks = {}  # models agree on what is hard, or the check on misaligned rows stops the chain
    for task, n in (("bbh_snarks", 90), ("mmlu_pro", 110)):
        tasks[task] = (rng.random(n) + 0.1 * rng.normal(size=(len(skills), n)) < skills).astype(float)
    matrix, questions = openllm_files(tasks)
    questions = questions.replace(b"few shots.", b"few shots. " + b"All work and no play. " * 20)
    name = openllm_v2.MATRIX[0]
    hub.put_raw(f"/{openllm_v2.FOLDER}/{name}", matrix)
    hub.put_raw(f"/{openllm_v2.FOLDER}/{openllm_v2.QUESTIONS}", questions)
    pin = (name, len(matrix), hashlib.sha256(matrix).hexdigest())

    def part(home: Path) -> int:
        return sum(p.stat().st_size for p in home.glob(f"downloads/*/.{openllm_v2.QUESTIONS}.*.tmp"))

    left, asked = check_killed_download(
        tmp_path, hub, "openllm_v2", openllm_v2.QUESTIONS, len(questions) // 2, part, PINNED.format(pin=pin)
    )
    assert 0 < left < len(questions)
    assert asked == [(f"/{openllm_v2.FOLDER}/{openllm_v2.QUESTIONS}", None)]
    assert part(tmp_path / "broken") == 0, "what the killed process left is still there"


def test_killed_download_from_the_hub_asks_for_the_unfinished_files_only(
    tmp_path: Path, hub: HubServer
) -> None:
    names = [name for group in sprout.FILES.values() for name in group]
    rng = random.Random(5)
    for number, name in enumerate(names):
        # what does not compress: the client writes pieces of 10 MB
        answers = [rng.randbytes(150_000).hex() for _ in range(60)] if number == 2 else None
        hub.put(sprout.REPO, name, sprout_part(60, 60 * number, answers))
    slow = names[2].rpartition("/")[2]

    def part(home: Path) -> int:
        return sum(p.stat().st_size for p in (home / "hf").rglob("*.incomplete"))

    left, asked = check_killed_download(tmp_path, hub, "sprout", slow, 10_600_000, part)
    assert left >= 10 << 20
    assert [path.rpartition("/")[2] for path, _ in asked] == [name.rpartition("/")[2] for name in names[2:]]
