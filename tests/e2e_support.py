"""A real `dagster dev` with its own CABS_HOME, a tiny pool, `cabs` commands, what they left on disk."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.dev_server import DevServer
from tests.gauntlet import homes
from tests.postgres import Postgres

ROOT = Path(__file__).resolve().parents[1]

#: environment of a process with its own CABS_HOME; one thread, no network
environment = homes.anew
fingerprints = homes.fingerprints


def command(*arguments: str) -> list[str]:
    """`cabs ...` by the interpreter that runs the tests."""
    return [sys.executable, "-c", "from cabs_dagster.cli import main; main()", *arguments]


def patience() -> float:
    """Factor for time limits on a busy machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def wait_for(what: str, condition: Callable[[], Any], seconds: float, step: float = 0.5) -> Any:
    """The first true value of `condition`, asked every `step` seconds; fails after `seconds` (times the load
    meanwhile)."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds * patience():
        value = condition()
        if value:
            return value
        time.sleep(step)
    raise AssertionError(f"waited {seconds:.0f} s (times {patience():.1f}) in vain for: {what}")


#: asks for a run
LAUNCH = """mutation($p: ExecutionParams!) { launchRun(executionParams: $p) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
#: asks for a run of each partition
BACKFILL = """mutation($p: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $p) {
  __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message } } }"""
_LAST_TICK = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor { sensorState {
  ticks(limit: 1) { status } } } } }"""
_SENSOR = """query($s: SensorSelector!) { sensorOrError(sensorSelector: $s) { ... on Sensor {
  sensorState { id } } } }"""


class Dev(DevServer):
    """A running `dagster dev` whose CABS_HOME is its folder."""

    def __init__(self, home: Path, **more: str):
        super().__init__(home, environment(home, **more))

    def switch_on(self, *sensors: str) -> None:
        """Start sensors."""
        for sensor in sensors:
            self._switch("startSensor(sensorSelector: $s)", s=sensor_selector(sensor))

    def switch_off(self, *sensors: str) -> None:
        """Stop sensors, and wait until their last ticks have ended and no run is under way.

        A tick that had begun before would otherwise ask for a run in the middle of the test.
        """
        for sensor in sensors:
            state = self.query(_SENSOR, s=sensor_selector(sensor))["sensorOrError"]["sensorState"]
            self._switch("stopSensor(id: $id)", id=state["id"])
        for sensor in sensors:
            wait_for(f"the last tick of {sensor}", lambda sensor=sensor: self._has_ended(sensor), 180)
        ended = {"SUCCESS", "FAILURE", "CANCELED"}
        wait_for("the last run", lambda: all(run["status"] in ended for run in self.runs()), 180)

    def _has_ended(self, sensor: str) -> bool:
        """Return whether the newest tick of a sensor has ended, or there is none."""
        state = self.query(_LAST_TICK, s=sensor_selector(sensor))["sensorOrError"]["sensorState"]
        return all(tick["status"] != "STARTED" for tick in state["ticks"])

    def _switch(self, call: str, **variables: Any) -> None:
        kind = "$s: SensorSelector!" if "s" in variables else "$id: String!"
        (result,) = self.query(f"mutation({kind}) {{ {call} {{ __typename }} }}", **variables).values()
        assert result["__typename"] in ("Sensor", "StopSensorMutationResult"), result

    def runs(self) -> list[dict[str, Any]]:
        """All runs, newest first."""
        runs = self.query(
            "{ runsOrError { ... on Runs { results { runId jobName status tags { key value } } } } }"
        )["runsOrError"]["results"]
        return [{**run, "tags": {t["key"]: t["value"] for t in run["tags"]}} for run in runs]

    def of_chain(self, pool: str) -> list[dict[str, Any]]:
        """Runs of a pool's chain that sensors asked for; fails when one failed."""
        runs = [run for run in self.runs() if run["tags"].get("cabs/chain", "").startswith(f"{pool}:")]
        assert not [run for run in runs if run["status"] in ("FAILURE", "CANCELED")], runs
        return runs

    def finished(self, pool: str) -> bool:
        """Whether such a run has built marts and report."""
        runs = self.of_chain(pool)
        return any(run["jobName"] == "build_results" and run["status"] == "SUCCESS" for run in runs)


def sensor_selector(name: str) -> dict[str, str]:
    """A sensor of the code location, for GraphQL."""
    return {"repositoryLocationName": "cabs", "repositoryName": "__repository__", "sensorName": name}


def processes(home: Path) -> dict[int, str]:
    """{process id: command line} of everything alive that has this DAGSTER_HOME (Linux)."""
    marker, commands = f"DAGSTER_HOME={home / 'dagster'}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it ended meanwhile
            continue
    return commands


def listening(home: Path) -> set[str]:
    """Addresses on which these processes accept TCP connections (Linux)."""
    sockets = set()
    for pid in processes(home):
        try:
            sockets |= {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            continue
    addresses = set()
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                words = bytes.fromhex(fields[1].partition(":")[0])
                address = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                addresses.add(socket.inet_ntop(family, address))
    return addresses


def cabs(home: Path, *arguments: str, expect: int = 0, **more: str) -> str:
    """Run `cabs ...` to its end; its output. Fails when the exit code is another one."""
    done = subprocess.run(
        command(*arguments),
        env=environment(home, **more),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600 * patience(),
    )
    output = done.stdout + done.stderr
    assert done.returncode == expect, output
    return output


def of_database(server: Postgres) -> dict[str, str]:
    """The environment variables by which an instance finds a PostgreSQL server."""
    names = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD", "dbname": "DB"}
    return {f"CABS_PG_{names[key]}": value for key, value in server.settings.items()}


def drop_pool(home: Path, name: str) -> Path:
    """Write a tiny pool's file into the pool folder, as a user would."""
    return homes.drop(home, name, queries=200, budget=0)


def records(home: Path) -> dict[str, bytes]:
    """{cell: its record} of all replays: equal bytes mean that nothing was computed again."""
    replays = home / "artifacts" / "replay"
    return {
        str(path.parent.relative_to(replays)): path.read_bytes() for path in replays.rglob("provenance.json")
    }
