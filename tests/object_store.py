"""An S3 store on 127.0.0.1 (moto), reached through the real s3fs, and the records of artifacts in it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import Request, urlopen

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from cabs_core.pipeline.artifacts.provenance import RECORD_NAME


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
    """{artifact: content hash} of everything below a folder."""
    paths = folder.rglob(RECORD_NAME)
    return {p.parent.relative_to(folder).as_posix(): json.loads(p.read_text())["content"] for p in paths}
