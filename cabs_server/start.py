"""Start of the server: settings are checked first, then each process that answers makes the application.

The module of the application is imported in those processes only. A process that only watches workers takes
half the memory without it.
"""

import json
import os
from typing import Any

from starlette.applications import Starlette

from cabs_core.base.secret import secret
from cabs_core.data.endpoints.upstreams import read_upstreams
from cabs_core.router.bundle import read_manifest
from cabs_server.callers import ADMIN_KEYS, KEYS, check_host, read_keys
from cabs_server.lifetime import address_of, end_with_parent, ends_at_once, run_server
from cabs_server.limits import prepare_process
from cabs_server.logs import log_config

SETTINGS = "CABS_SERVE_SETTINGS"


def serve(
    settings: dict[str, Any], *, host: str, port: int, workers: int, grace: int, log_format: str = "json"
) -> None:
    """Run the server until it is stopped.

    Args:
        settings: arguments of `make_app` but for the keys, which come from environment variables.
        workers: number of processes that answer.
        grace: seconds that streams have to end after SIGTERM.
        log_format: `json` or `text`.

    Raises:
        RouterError: the settings, the upstreams file or the keys cannot be used.
        ProvenanceError: the bundle is missing or damaged.
    """
    keys, admins = _keys()
    check_host(host, keys | admins)
    metrics = address_of(settings.get("metrics"))
    read_manifest(settings["folder"])
    if settings.get("upstreams") is not None:
        read_upstreams(settings["upstreams"], read_manifest(settings["folder"], verify=False).names)
    os.environ[SETTINGS] = json.dumps(settings)
    run_server(
        from_environment,
        host=host,
        port=port,
        workers=workers,
        metrics=metrics,
        grace=grace,
        access_log=False,
        log_config=log_config(log_format),
        http="cabs_server.protocol:PlainHttpProtocol",
        ws="none",
        # A worker that does not answer in time is killed: on a busy machine 5 s are not enough. One that dies
        # between question and answer is noticed, and SIGTERM heard, when this time is over.
        timeout_worker_healthcheck=20,
        timeout_keep_alive=75,  # longer than clients wait (OpenAI's: 5 s), so that both never close at once
    )


def from_environment() -> Starlette:
    """Return the application of a worker, whose settings come from environment variables.

    The worker ends when its parent process ends.
    """
    end_with_parent()
    prepare_process()
    keys, admins = _keys()
    with ends_at_once():
        from cabs_server.app import make_app  # noqa: PLC0415  (see above)

        return make_app(**json.loads(os.environ[SETTINGS]), keys=keys, admin_keys=admins)


def _keys() -> tuple[dict[str, str], dict[str, str]]:
    """Return ({name: key} of callers, {name: key} of administrators) from their variables."""
    return read_keys(secret(KEYS), KEYS), read_keys(secret(ADMIN_KEYS), ADMIN_KEYS)
