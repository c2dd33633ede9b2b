"""docs/litellm.md followed literally: a virtual environment of its own, the real proxy, an
answer, its score."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests
import yaml
from e2e_support import wait_for
from fresh_environments import copy_sources

from cabs_core.data.endpoints.upstreams import Upstreams
from cabs_core.data.events.log import EventLog
from cabs_core.router.cold import build_cold
from tests.servers import free_port, start_provider

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "litellm.md").read_text(encoding="utf-8")
DEPLOY = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
#: what pip says where an index cannot be reached, or lacks a package
_AWAY = re.compile(
    r"No matching distribution|Could not find a version|ConnectionError|NewConnectionError|Temporary failure"
)
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]


def block(language: str) -> str:
    """Return the only block of the page in a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return text


def test_the_proxy_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only ports and the providers' addresses differ."""
    monkeypatch.setenv("CABS_HOME", str(tmp_path / "home"))
    place = copy_sources(tmp_path / "checkout")
    upstreams = re.search(r"cat > upstreams.yaml <<'YAML'\n(.*?)YAML", DEPLOY, re.DOTALL)
    assert upstreams is not None
    models = Upstreams.model_validate(yaml.safe_load(upstreams[1])).models
    build_cold(place / "router", models, encoder="tfidf-svd")
    install, _, start = block("sh").partition("export LITELLM_MASTER_KEY")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CABS_", "PYTHON"))}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    done = subprocess.run(
        ["bash", "-ec", install],
        cwd=place,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0 and _AWAY.search(done.stdout):
        pytest.skip(f"packages cannot be installed here: {done.stdout[-300:]}")
    assert done.returncode == 0, done.stdout[-3000:]

    provider, upstream = start_provider()
    port = free_port()
    (place / "config.yaml").write_text(block("yaml").replace(":8000/", f":{upstream}/"))
    (place / "cabs_proxy.py").write_text(re.findall(r"```\n(from cabs_server.*?)```", PAGE, re.DOTALL)[0])
    environment |= {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{upstream}/v1",
        "NO_PROXY": "*",
        "OPENAI_API_BASE": f"http://127.0.0.1:{upstream}/v1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    script = f"export LITELLM_MASTER_KEY{start}".replace(
        "proxy/bin/litellm", "echo $LITELLM_MASTER_KEY > key\nexec proxy/bin/litellm"
    )
    with open(place / "output.txt", "w") as out:
        proxy = subprocess.Popen(
            ["bash", "-ec", script.replace("4000", str(port))],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:

        def lives() -> bool:
            assert proxy.poll() is None, (place / "output.txt").read_text()[-3000:]
            with contextlib.suppress(requests.RequestException):
                return requests.get(f"{url}/health/liveliness", timeout=5).status_code == 200
            return False

        wait_for("the proxy", lives, 180)
        headers = {"authorization": f"Bearer {(place / 'key').read_text().strip()}"}
        body = {
            "model": "cabs",
            "messages": [{"role": "user", "content": "How many legs do three spiders have?"}],
        }
        answers = [
            requests.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120)
            for _ in range(6)
        ]
        assert {a.status_code for a in answers} == {200}, [a.text for a in answers]
        name = answers[0].headers["x-cabs-decision"]
        call = {"call_id": answers[1].headers["x-litellm-call-id"], "score": 0.5}
        for score in ({"id": name, "score": 1.0}, call):
            # the first one compiles
            answer = requests.post(f"{url}/cabs/feedback", json=score, headers=headers, timeout=600)
            assert answer.json() == {"result": "recorded"}, answer.text
        stranger = requests.post(
            f"{url}/cabs/feedback", json=call, headers={"authorization": "Bearer sk-wrong"}, timeout=60
        )
        assert stranger.status_code in (
            400,
            401,
        )  # 400: without a database the proxy knows no keys but the master key
        log = EventLog(place / "router.events.sqlite", read_only=True)
        wait_for("the calls' ends", lambda: all(d.status == "answered" for d in log.decisions()), 120)
        rows = log.decisions()
        assert (
            len(rows) == 6
            and {d.arm for d in rows} <= set(models)
            and all(d.cost and d.cost > 0 for d in rows)
        )
        assert len(log.rewards()) == 2
        failing = rows[-1].arm
        names = {
            entry["model_info"]["id"]: entry["litellm_params"]["model"].partition("/")[2]
            for entry in yaml.safe_load(block("yaml"))["model_list"]
        }
        requests.post(f"http://127.0.0.1:{upstream}/behave", json={names[failing]: "broken"}, timeout=60)
        body["messages"][0]["content"] = "And four?"
        again = [
            requests.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=120)
            for _ in range(6)
        ]
        assert {a.status_code for a in again} == {200}, [a.text for a in again]
        wait_for("their ends", lambda: all(d.status != "decided" for d in log.decisions()), 120)
        calls = [[d for d in log.decisions() if d.call_id == a.headers["x-litellm-call-id"]] for a in again]
        for tries in calls:  # each retry another model and a closed row
            assert len({d.arm for d in tries}) == len(tries) and tries[-1].status == "answered"
            assert all((d.status == "error") == (d.arm == failing) for d in tries)
        log.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(proxy.pid, signal.SIGKILL)
        proxy.wait()
        provider.kill()
        provider.wait()
