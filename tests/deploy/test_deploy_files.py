"""What is under deploy/: manifests against the schemas, and the commands of the images as processes (no
engine needed)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests_support import output_of, started

from cabs_core.router.bundle import read_manifest
from cabs_dagster.instance import template
from cabs_server.main import main
from cabs_server.metrics import HELP
from tests.servers import free_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """(instruction, rest) of a Dockerfile, lines joined."""
    text = re.sub(r"^\s*#.*$", "", dockerfile.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def words_of(dockerfile: Path, name: str) -> list[str]:
    """The words of the last ENTRYPOINT, CMD or HEALTHCHECK's CMD."""
    rest = [rest for word, rest in instructions(dockerfile) if word == name][-1]
    words: list[str] = json.loads(rest[rest.index("[") :])
    return words


def documents() -> list[dict[str, Any]]:
    """Those of the router's manifest."""
    return list(yaml.safe_load_all((DEPLOY / "router" / "router.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "kind", ["Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget", "HorizontalPodAutoscaler"]
)
def test_the_router_manifest_fits_the_schema(kind: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs the extra dev").validate
    (manifest,) = [d for d in documents() if d["kind"] == kind]
    validate(manifest, "1.31", strict=True)
    with pytest.raises(Exception, match="typo"):
        validate(manifest | {"spec": manifest["spec"] | {"typo": 1}}, "1.31", strict=True)


def test_the_router_is_not_root_and_its_secrets_are_references() -> None:
    deployment = next(d for d in documents() if d["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert all("secretKeyRef" in item["valueFrom"] for item in container["env"])
    for name in ("router", "dagster"):
        users = [rest for word, rest in instructions(DEPLOY / name / "Dockerfile") if word == "USER"]
        assert users == ["10001"] == [str(pod["securityContext"]["runAsUser"])]


def test_compose_publishes_on_this_machine_alone_and_holds_no_secret() -> None:
    services = COMPOSE["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    secret = re.compile(r"PASSWORD|SECRET|KEYS|ACCESS_KEY")
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            assert not secret.search(name) or value.startswith("${"), name
        for name in service.get("depends_on", []):
            assert name in services
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in COMPOSE["volumes"] or volume.startswith("./dagster/")


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("compose-spec", "deploy/compose.yaml"),
        ("github-workflows", ".github/workflows/*.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_of_other_tools_fit_their_schemas(schema: str, pattern: str) -> None:
    """The schemas, with their licences, are those that check-jsonschema keeps."""
    package = pytest.importorskip("check_jsonschema", reason="needs the extra dev")
    text = Path(package.__file__).parent.joinpath(f"builtin_schemas/vendor/{schema}.json").read_text("utf-8")
    validator = jsonschema.validators.validator_for(json.loads(text))(json.loads(text))
    paths = sorted(ROOT.glob(pattern))
    assert paths
    for path in paths:
        read = yaml.safe_load(path.read_text("utf-8"))
        content = {
            "on" if k is True else k: v for k, v in read.items()
        }  # YAML 1.1 takes `on` for a truth value
        assert [e.message for e in validator.iter_errors(content)] == [], path.name
        assert list(validator.iter_errors(content | {"typo": 1})), path.name


def _fields(required: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": required.split(),
        "additionalProperties": False,
    }


_FLAG, _TEXT, _NUMBER = {"type": "boolean"}, {"type": "string"}, {"type": "integer"}
_OBJECT, _OBJECTS = {"type": "object"}, {"type": "array", "items": {"type": "object"}}
_WORDS = {"type": "array", "items": _TEXT}
#: The names that our values use, with their types, as Dagster's own chart has them (values.schema.json of the
#: chart and of its user deployments); the chart's defaults give the others.
CHART = _fields(
    **{
        "dagster-user-deployments": _fields(
            enabled=_FLAG,
            deployments={
                "type": "array",
                "items": _fields(
                    "name image port",
                    name=_TEXT,
                    image=_fields(
                        "repository pullPolicy",
                        repository=_TEXT,
                        tag={"type": ["string", "integer", "null"]},
                        pullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
                    ),
                    port=_NUMBER,
                    codeServerArgs=_WORDS,
                    env={"anyOf": [_OBJECTS, {"type": "object", "additionalProperties": _TEXT}]},
                    envSecrets=_OBJECTS,
                    includeConfigInLaunchedRuns=_fields("enabled", enabled=_FLAG),
                    volumes=_OBJECTS,
                    volumeMounts=_OBJECTS,
                    podSecurityContext=_OBJECT,
                ),
            },
        ),
        "global": _fields(postgresqlSecretName=_TEXT),
    },
    postgresql=_fields(
        enabled=_FLAG, postgresqlHost=_TEXT, postgresqlUsername=_TEXT, postgresqlDatabase=_TEXT
    ),
    generatePostgresqlPasswordSecret=_FLAG,
    telemetry=_fields(enabled=_FLAG),
    concurrency=_fields(
        enabled=_FLAG,
        pools=_fields(granularity=_TEXT, defaultLimit=_NUMBER, opGranularityRunBuffer=_NUMBER),
        runs=_fields(maxConcurrentRuns=_NUMBER),
    ),
    dagsterDaemon=_fields(runRetries=_OBJECT),
)


def test_the_values_of_the_chart_make_a_pod_that_fits_the_schema() -> None:
    """What the chart puts into a pod from our values is Kubernetes' own; the names around it are the
    chart's."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs the extra dev").validate
    values = yaml.safe_load((DEPLOY / "dagster" / "values.yaml").read_text(encoding="utf-8"))
    assert [e.message for e in jsonschema.Draft202012Validator(CHART).iter_errors(values)] == []
    for place in (values, values["concurrency"]["pools"], values["dagsterDaemon"], values["postgresql"]):
        place["typo"] = 1
        assert list(jsonschema.Draft202012Validator(CHART).iter_errors(values))
        del place["typo"]
    (code,) = values["dagster-user-deployments"]["deployments"]
    concurrency = values["concurrency"]
    # and they say what the instance's own template says
    instance = yaml.safe_load(template("postgres"))
    assert concurrency["pools"]["granularity"] == instance["concurrency"]["pools"]["granularity"] == "op"
    assert values["dagsterDaemon"]["runRetries"]["maxRetries"] == instance["run_retries"]["max_retries"]
    container = {
        "name": code["name"],
        "image": "{repository}:{tag}".format(**code["image"]),
        "imagePullPolicy": code["image"]["pullPolicy"],
        "args": ["dagster", "code-server", "start", *code["codeServerArgs"]],
        "ports": [{"containerPort": code["port"]}],
        "env": code["env"],
        "envFrom": [{"secretRef": secret} for secret in code["envSecrets"]],
        "volumeMounts": code["volumeMounts"],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "cabs"},
        "spec": {
            "containers": [container],
            "volumes": code["volumes"],
            "securityContext": code["podSecurityContext"],
        },
    }
    validate(pod, "1.31", strict=True)
    places = {entry["name"]: entry["value"] for entry in code["env"]}
    mounted = {mount["mountPath"] for mount in code["volumeMounts"]}
    assert {places["CABS_HOME"], places["CABS_POOLS_DIR"]} == mounted
    assert values["postgresql"]["enabled"] is values["generatePostgresqlPasswordSecret"] is False
    assert not any("password" in name.lower() for name in values["postgresql"])


def test_what_the_images_copy_is_there_and_the_extras_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for word, rest in instructions(DEPLOY / "dagster" / "Dockerfile"):
        if word == "COPY":
            assert all((ROOT / name).exists() for name in rest.split()[:-1]), rest
        if extras := re.search(r'"\.\[(.*?)\]"', rest):
            assert all(re.search(rf"^{name} = \[", project, re.MULTILINE) for name in extras[1].split(","))
    chart = yaml.safe_load((DEPLOY / "dagster" / "values.yaml").read_text(encoding="utf-8"))
    (code,) = chart["dagster-user-deployments"]["deployments"]
    assert code["codeServerArgs"] == ["-m", "cabs_dagster.definitions"]


def test_the_dashboard_asks_for_figures_that_a_router_has() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "router.json").read_text(encoding="utf-8"))
    known = {f"cabs_{name}" + ("_bucket" if kind == "histogram" else "") for name, (kind, _) in HELP.items()}
    asked = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    assert len(asked) > 8 and set(re.findall(r"\bcabs_\w+", " ".join(asked))) <= known
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def wait_for(command: list[str], process: subprocess.Popen[bytes], folder: Path) -> None:
    end = time.monotonic() + 120
    while subprocess.run(command, capture_output=True).returncode != 0:
        assert process.poll() is None and time.monotonic() < end, (folder / "output.txt").read_text()[-3000:]
        time.sleep(0.5)


@pytest.mark.e2e
def test_the_command_of_the_image_and_of_the_pod(ran: Path, tmp_path: Path) -> None:
    """Their own words, with folders and ports changed for this machine's: what the image does by itself is
    read, the pod is started, with its probes and what Prometheus asks, none of which brings a key."""
    bundle, dockerfile = tmp_path / "router", DEPLOY / "router" / "Dockerfile"
    output_of("export", "tiny", "--policy", "ridge", "--out", str(bundle))
    pod = next(d for d in documents() if d["kind"] == "Deployment")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {p["name"]: str(free_port()) for p in container["ports"]}
    changed = {
        "/srv/router": str(bundle),
        "/data/router.events.sqlite": str(tmp_path / "log.sqlite"),
        "/etc/cabs/upstreams.yaml": str(tmp_path / "upstreams.yaml"),
        "0.0.0.0:9090": f"127.0.0.1:{ports['metrics']}",
        "0.0.0.0": "127.0.0.1",  # a test listens on this machine alone
        "8080": ports["http"],
    }
    name, command, *start = words_of(dockerfile, "ENTRYPOINT")
    assert (name, command) == ("cabs-router", "serve") and start[start.index("--host") + 1] == "0.0.0.0"
    start = [changed.get(w, w) for w in start]
    rest = [changed.get(w, w) for w in words_of(dockerfile, "CMD")]
    main.commands["serve"].make_context("serve", [*start, *rest])
    nowhere = {"url": "http://127.0.0.1:9/v1", "free": True}
    models = dict.fromkeys(read_manifest(bundle).names, nowhere)
    (tmp_path / "upstreams.yaml").write_text(json.dumps({"models": models}))
    program = [sys.executable, "-c", "from cabs_server.main import main; main()", "serve", *start]
    program += [changed.get(w, w) for w in container["args"]]
    settings = {k: v for k, v in os.environ.items() if not k.startswith("CABS_")}
    settings |= {
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)),
        "CABS_HOME": str(tmp_path / "home"),
        "CABS_SERVER_KEYS": "team=12345678",
        "CABS_SERVER_ADMIN_KEYS": "boss=87654321",
        "CABS_LOG": str(tmp_path / "log.sqlite"),
    }
    assert {item["name"] for item in container["env"]} <= set(settings)
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")]
    notes = pod["metadata"]["annotations"]
    assert notes["prometheus.io/port"] == "9090" and probes[1]["path"] == "/readyz"
    health = [w.replace("8080", ports["http"]) for w in words_of(dockerfile, "HEALTHCHECK")[1:]]
    with started(program, tmp_path / "output.txt", settings) as server:
        wait_for([sys.executable, *health], server, tmp_path)
        for probe in probes:
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}") as answer:
                assert answer.status == 200
        with urllib.request.urlopen(
            f"http://127.0.0.1:{ports['metrics']}{notes['prometheus.io/path']}"
        ) as answer:
            assert b"cabs_bundle" in answer.read()
        for key, status in (("", 401), ("12345678", 403)):
            request = urllib.request.Request(
                f"http://127.0.0.1:{ports['http']}/metrics",
                headers={"authorization": f"Bearer {key}"} if key else {},
            )
            with pytest.raises(urllib.error.HTTPError, match=str(status)):
                urllib.request.urlopen(request)
