"""Steps of a request through the server: our functions that hand the request on, from its body to the reply.

    python -m benchmarks.steps --router router

Counted are functions of the server, of `endpoints`, of `sessions` and `router`, each once, in the order in
which a routed chat enters them. A step hands on: it calls another one of them. Functions that only compute
for their caller (`leaf`) are listed beside the steps. Calls inside policies, predictors, the encoder and the
log's database are no steps.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.testclient import TestClient

from benchmarks.script import Script, write_figures
from cabs_core.router.bundle import read_manifest
from cabs_server.app import make_app
from tests.servers import start_provider, write_upstreams

ROOMS = (
    "cabs_core/data/endpoints/",
    "cabs_server/",
    "cabs_core/router/sessions.py",
    "cabs_core/router/router.py",
)


def steps(bundle: Path) -> list[tuple[str, bool]]:
    """Return the functions that a routed chat enters, in order, each with True if it hands the request on."""
    entered: dict[str, bool] = {}

    def named(frame: FrameType | None) -> str | None:
        if frame is None or frame.f_code.co_name.startswith("<"):
            return None
        place = frame.f_code.co_filename
        room = next((place[place.index(room) :] for room in ROOMS if room in place), None)
        return None if room is None else f"{room.removeprefix('cabs_core/')}: {frame.f_code.co_qualname}"

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (name := named(frame)) is not None:
            entered.setdefault(name, False)
            outer = named(frame.f_back)
            if outer in entered and outer != name:
                entered[outer] = True

    provider, port = start_provider()
    try:
        with tempfile.TemporaryDirectory() as name:
            file = write_upstreams(Path(name) / "upstreams.yaml", read_manifest(bundle).names, port)
            for profile in (None, note):  # what is compiled at first is compiled without it
                threading.setprofile(profile)
                app = make_app(bundle, file, log=str(Path(name) / "log.sqlite"), every=3_600.0)
                with TestClient(app, base_url="http://127.0.0.1") as client:
                    for text in ("warm up", "What is two plus two?"):
                        entered.clear()
                        body = {"messages": [{"role": "user", "content": text}]}
                        assert client.post("/v1/chat/completions", json=body).status_code == 200
                    app.state.forwarder.worker.wait_idle()
            calls = list(entered.items())
    finally:
        threading.setprofile(None)
        provider.kill()
        provider.wait()
    first = next(i for i, (name, _) in enumerate(calls) if "read_body" in name)
    return calls[first:]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the steps with their number."""
    parser = Script(__file__, __doc__)
    parser.add_argument("--router", type=Path, default=Path("router"), help="folder of the bundle")
    given = parser.parse_args(argv)
    calls = steps(given.router)
    handing = [name for name, hands_on in calls if hands_on]
    print("\n".join(f"{i:3d} {name}" for i, name in enumerate(handing, 1)))
    print("\n".join(f"leaf {name}" for name, hands_on in calls if not hands_on))
    print(f"{len(handing)} steps, {len(calls)} functions")
    write_figures(calls, given.json)


if __name__ == "__main__":
    main()
