"""The demo's chain on an object store and on a folder: contents, time, a second run, a second machine.

    python -m benchmarks.object_store [--pool demo] [--rho 0,300] [--policies a,b] [--delay-ms 20]
    [--fail-every 50] [--json figures.json]

The store is moto's S3 on 127.0.0.1, reached through the real s3fs; two homes are two machines. `--delay-ms`
makes every answer of the store that late, `--fail-every` lets every n-th request fail with 503. Prints
seconds by the clock and of the processor, and compares the content hashes of all records with those of the
folder, which comes last: what has to be compiled counts against the store. Exits with 1 where a hash differs,
where the second run or the second machine computes something, or where the store takes more than three times
the folder's time.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import Request, urlopen

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from benchmarks.script import Script, write_figures
from cabs_core.pipeline.artifacts.provenance import RECORD_NAME

ROOT = Path(__file__).parents[1]
#: most that the store may take, as a multiple of the folder's time
FACTOR = 3.0
#: holds measured times, which no two runs share
TIMED = ("reports", "leaderboard", "theory")


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        """Thousands of lines otherwise."""


class Store:
    """An S3 store in a thread of this process with an empty bucket `cabs`, slow and unreliable if asked to
    be; one at a time.

    Attributes:
        settings: environment of a process that is to use it. requests: how many it has answered.
    """

    def __init__(self, *, delay_s: float = 0.0, fail_every: int = 0):
        self.delay_s, self.fail_every, self.requests = delay_s, fail_every, 0
        self._numbers = count(1)
        self._moto = DomainDispatcherApplication(create_backend_app)

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        self.requests = number = next(self._numbers)
        time.sleep(self.delay_s)
        if self.fail_every and number % self.fail_every == 0:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>reduce your request rate</Message></Error>"]
        answer: Iterable[bytes] = self._moto(environ, start)
        return answer

    def __enter__(self) -> Self:
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self._server.port}"
        self.settings = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.client = boto3.client(
            "s3",
            endpoint_url=url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
        )
        # moto keeps what it holds for the whole process: an earlier store's objects would be in this one
        with urlopen(Request(f"{url}/moto-api/reset", method="POST")):
            pass
        self.client.create_bucket(Bucket="cabs")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def records(self, prefix: str) -> dict[str, str]:
        """{artifact: content hash} of everything below a prefix."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket="cabs", Prefix=prefix)
        keys = [
            o["Key"]
            for page in pages
            for o in page.get("Contents", [])
            if o["Key"].endswith(f"/{RECORD_NAME}")
        ]
        bodies = {key: self.client.get_object(Bucket="cabs", Key=key)["Body"].read() for key in keys}
        return {
            k.removeprefix(prefix).rpartition("/")[0]: json.loads(b)["content"] for k, b in bodies.items()
        }


def folder_records(folder: Path) -> dict[str, str]:
    """The same of a folder."""
    paths = folder.rglob(RECORD_NAME)
    return {p.parent.relative_to(folder).as_posix(): json.loads(p.read_text())["content"] for p in paths}


def cabs_run(
    home: Path, words: list[str], settings: Mapping[str, str], pool_file: Path | None = None
) -> dict[str, float]:
    """Seconds of `cabs run` and the runs that it launched."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("CABS_", "DAGSTER_", "AWS_"))}
    more = {"CABS_HOME": str(home), "DAGSTER_HOME": str(home / "dagster"), "DAGSTER_DISABLE_TELEMETRY": "1"}
    if pool_file:
        (home / "pools").mkdir(parents=True, exist_ok=True)
        shutil.copy(pool_file, home / "pools")
    begin, used = time.perf_counter(), _processor_seconds()
    done = subprocess.run(
        [sys.executable, "-c", "from cabs_dagster.cli import main; main()", "run", *words],
        env={**keep, **more, **settings},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    took, used = time.perf_counter() - begin, _processor_seconds() - used
    if done.returncode:
        raise RuntimeError(f"cabs run failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    runs = re.search(r"(\d+) runs in", done.stdout)
    return {"seconds": took, "processor_seconds": used, "runs": float(runs[1]) if runs else float("nan")}


def _processor_seconds() -> float:
    """Of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(words: list[str], store: Store, pool_file: Path | None = None) -> dict[str, Any]:
    """All figures: the store, the store again, the store from another home, a folder."""
    with tempfile.TemporaryDirectory(prefix="object-store-") as temporary:
        folder = Path(temporary)
        remote = {**store.settings, "CABS_ARTIFACTS": "s3://cabs/team"}
        figures: dict[str, Any] = {"store": cabs_run(folder / "one", words, remote, pool_file)}
        figures["store"]["requests"] = store.requests
        made = store.records("team/")
        figures["second run"] = cabs_run(folder / "one", words, remote, pool_file)
        figures["second machine"] = cabs_run(folder / "two", words, remote, pool_file)
        figures["folder"] = cabs_run(folder / "alone", words, {}, pool_file)
        local = folder_records(folder / "alone" / "artifacts")
        figures["artifacts"] = len(made)
        figures["computed again"] = sorted(k for k, v in store.records("team/").items() if made.get(k) != v)
        figures["differ"] = sorted(
            k for k in local.keys() | made.keys() if local.get(k) != made.get(k) and not k.startswith(TIMED)
        )
        figures["ratio"] = figures["store"]["seconds"] / figures["folder"]["seconds"]
    return figures


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, exit with 1 where something does not hold."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--pool", default="demo")
    parser.add_argument(
        "--pool-file", type=Path, help="file of the pool, where it is not one that is shipped"
    )
    parser.add_argument("--rho", default="0,300", help="rhos to play")
    parser.add_argument("--policies", default="", help="policies to play; default: the pool's")
    parser.add_argument("--no-report", action="store_true", help="stop after the replays, as `cabs run` does")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--fail-every", type=int, default=0)
    given = parser.parse_args(arguments)
    with Store(delay_s=given.delay_ms / 1e3, fail_every=given.fail_every) as store:
        more = ["--policies", given.policies] if given.policies else []
        more += ["--no-report"] if given.no_report else []
        figures = measure(["--pool", given.pool, "--rho", given.rho, *more], store, given.pool_file)
    print(json.dumps(figures, indent=1))
    write_figures(figures, given.json)
    wrong = [
        f"{len(figures[name])} artifacts {name}" for name in ("differ", "computed again") if figures[name]
    ]
    if figures["ratio"] > FACTOR:
        wrong.append(f"the store takes {figures['ratio']:.1f} times as long, at most {FACTOR}")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
