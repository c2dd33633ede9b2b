"""`python -m benchmarks.speed.serve`, and beside it LiteLLM's own router with its default strategy
(`simple_shuffle`).

    python -m benchmarks.shuffle --router router [--rate 50] [--seconds 20] [--workers 1] [--json FILE]

Needs the extra `litellm`. The server forwards calls through `litellm.Router`, without keys, log or proxy,
which would take time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from benchmarks.script import Script, write_figures
from benchmarks.speed.serve import add_options, measure

_SETTINGS = "CABS_BENCH_SHUFFLE"


def start(port: int, models: Sequence[str], upstream: int, workers: int = 1) -> subprocess.Popen[bytes]:
    """Start the server in processes of its own; each of `models` is the stand-in at port `upstream`."""
    settings = json.dumps({"models": list(models), "url": f"http://127.0.0.1:{upstream}/v1"})
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        "benchmarks.shuffle:make_app",
        "--factory",
        "--port",
        str(port),
        "--workers",
        str(workers),
        "--log-level",
        "error",
        "--no-access-log",
    ]
    # otherwise LiteLLM waits for a price list from the internet
    environment = {**os.environ, _SETTINGS: settings, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def make_app() -> Starlette:
    """The application of one worker."""
    import litellm  # noqa: PLC0415  (an extra)

    settings = json.loads(os.environ[_SETTINGS])
    deployments = [
        {
            "model_name": "cabs",
            "litellm_params": {"model": f"openai/{model}", "api_base": settings["url"], "api_key": "none"},
        }
        for model in settings["models"]
    ]
    router = litellm.Router(deployments, routing_strategy="simple-shuffle", num_retries=0)

    async def complete(request: Request) -> Response:
        body = await request.json()
        answer = await router.acompletion(model="cabs", messages=body["messages"])
        return JSONResponse(answer.model_dump())

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, return the figures."""
    parser = Script(__file__, __doc__)
    add_options(parser)
    options = vars(parser.parse_args(argv))
    path = options.pop("json")
    figures = measure(**options, others={"simple_shuffle": start})
    print(json.dumps(figures, indent=1))
    write_figures(figures, path)
    return figures


if __name__ == "__main__":
    main()
