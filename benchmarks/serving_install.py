"""What a machine pays that only serves a router: a fresh virtual environment from the bundle's own
requirements.txt.

    python -m benchmarks.serving_install --router router [--router other] [--json figures.json]

For each bundle: builds the wheel of this checkout, installs it and the list into a new virtual environment
(pip's cache makes the second time quick; the time is not measured), starts `cabs-router serve` there on one
thread, asks `/v1/decision` with prompts of the given number of words, and prints installed size, time to the
first answer, resident memory after the last, and p50 and p99 of a decision as the client sees it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.script import Script, write_figures
from benchmarks.speed.servers import free_port

ROOT = Path(__file__).parents[1]
#: (figure, most that it may be)
BOUNDS = {"size_mb": 600.0, "first_answer_s": 3.0}
MEMORY = {"fitted": 260.0, "transformer": 450.0}
#: seconds for an answer and for the end, the first compilation on a busy machine included
_LONGEST = 300.0
_WORDS = "how many different legs would three of the small green spiders have when one is missing".split()


def prompts(count: int, words: int, seed: int = 0) -> list[str]:
    """`count` different texts of `words` English words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(_WORDS, words)) + f" {i}?" for i in range(count)]


def copy_sources(folder: Path) -> Path:
    """Put a copy of what the wheel is built from into `folder`: building leaves files behind."""
    for name in ("cabs_core", "cabs_server", "cabs_dagster", "dbt_like_sql", "assets"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def build_wheel(folder: Path) -> None:
    """Put a wheel of this checkout into `folder`."""
    source = copy_sources(folder / "source")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "-w", str(folder), str(source)], check=True)


def surroundings() -> dict[str, str]:
    """Environment variables without those of this Python: pip takes what lies on its path for installed."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CABS_"))}


def fresh_environment(folder: Path, bundle: Path, wheels: Path) -> Path:
    """Folder of the programs of a new virtual environment that holds what the bundle lists."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    programs = folder / "bin"
    pip = [str(programs / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    words = [*pip, "--find-links", str(wheels), "-r", str(bundle / "requirements.txt")]
    subprocess.run(words, check=True, env=surroundings())
    return programs


def installed_mb(folder: Path) -> float:
    """Megabytes of the files of an environment, without pip, which it does not need."""
    files = [
        p
        for p in folder.rglob("*")
        if p.is_file() and not p.is_symlink() and "site-packages/pip" not in str(p)
    ]
    return sum(p.stat().st_size for p in files) / 1e6


def resident_mb(pid: int) -> float:
    """Resident memory of a process, Linux."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1e3
    raise RuntimeError(f"/proc/{pid}/status has no VmRSS")


def ask(port: int, text: str) -> dict[str, Any]:
    """One decision."""
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/decision", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_LONGEST) as answer:
        decision: dict[str, Any] = json.load(answer)
        return decision


def serve(programs: Path, bundle: Path, folder: Path, texts: list[str]) -> dict[str, float]:
    """Start a server, ask it, end it: the figures."""
    port = free_port()
    settings = surroundings() | {"OMP_NUM_THREADS": "1", "CABS_HOME": str(folder / "home")}
    words = [
        programs / "cabs-router",
        "serve",
        "--router",
        bundle,
        "--log",
        folder / "log.sqlite",
        "--port",
        str(port),
    ]
    begin = time.perf_counter()
    with open(folder / "said.txt", "w") as out:
        server = subprocess.Popen([str(w) for w in words], cwd=folder, env=settings, stdout=out, stderr=out)
    try:
        while True:
            try:
                ask(port, texts[0])
                break
            except (urllib.error.URLError, ConnectionError):
                if server.poll() is not None or time.perf_counter() - begin > _LONGEST:
                    raise RuntimeError(
                        f"the server did not start:\n{(folder / 'said.txt').read_text()}"
                    ) from None
                time.sleep(0.02)
        first = time.perf_counter() - begin
        took = []
        for text in texts[1:]:
            start = time.perf_counter()
            ask(port, text)
            took.append(1e3 * (time.perf_counter() - start))
        return {
            "first_answer_s": first,
            "memory_mb": resident_mb(server.pid),
            "p50_ms": float(np.percentile(took, 50)),
            "p99_ms": float(np.percentile(took, 99)),
        }
    finally:
        server.terminate()
        server.wait(_LONGEST)


def measure(bundle: Path, wheels: Path, requests: int, words: int) -> dict[str, Any]:
    """All figures of one bundle; the first start compiles, the second is measured, as in an image that was
    warmed."""
    with tempfile.TemporaryDirectory(prefix="serving-") as temporary:
        folder = Path(temporary)
        programs = fresh_environment(folder / "venv", bundle, wheels)
        size = installed_mb(folder / "venv")
        texts = prompts(requests, words)
        cold = serve(programs, bundle, folder, texts[:3])["first_answer_s"]
        figures = serve(programs, bundle, folder, texts)
    kind = "transformer" if (bundle / "encoder" / "model.onnx").exists() else "fitted"
    return {"router": str(bundle), "encoder": kind, "size_mb": size, "first_start_ever_s": cold, **figures}


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, exit with 1 where a bound is missed."""
    parser = Script(__file__, __doc__)
    parser.add_argument(
        "--router", type=Path, action="append", help="a bundle; may be repeated; default: router"
    )
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--words", type=int, default=75, help="words a prompt; 75 are about 100 tokens")
    given = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory(prefix="wheel-") as wheels:
        build_wheel(Path(wheels))
        for bundle in given.router or [Path("router")]:
            rows.append(measure(bundle.absolute(), Path(wheels), given.requests, given.words))
            print(json.dumps(rows[-1], indent=1), flush=True)
    missed = [
        f"{row['router']}: {name} {row[name]:.1f}, at most {most}"
        for row in rows
        for name, most in {**BOUNDS, "memory_mb": MEMORY[row["encoder"]]}.items()
        if row[name] > most
    ]
    write_figures(rows, given.json)
    sys.exit("\n".join(missed) or 0)


if __name__ == "__main__":
    main()
