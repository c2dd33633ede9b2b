"""Resources: where artifacts lie, which device computes, where alerts go.

What belongs here: settings that differ between machines. What does not: settings that change results; those
stand in the pool file, so that they are part of every artifact's key.
"""

from collections.abc import Sequence
from typing import Any, Literal

import dagster as dg
from pydantic import Field

from cabs_core.base.paths import Places, at_places
from cabs_core.data.pools.find import find_pool
from cabs_core.pipeline.artifacts import ArtifactStore, Chain, Options
from cabs_dagster.instance.recover import hold_run
from cabs_dagster.instance.terminate import end_if_it_does_not_react
from cabs_dagster.names import named

#: keys of the resources in the code location; `named` puts the location's name before them
CABS = "cabs"
ALERTS = "alerts"
TABLES = "tables"


class CabsResource(dg.ConfigurableResource[Any]):
    """Artifact storage and compute device of this machine."""

    home: str = Field("", description="Folder of artifacts and caches. Empty: as the environment says.")
    pools: str = Field("", description="Folder of the pool files. Empty: as the environment says.")
    artifacts_url: str = Field(
        "",
        description="Folder or fsspec URL (s3://..., gs://...) of the artifacts. Empty: as the environment "
        "says, else in the home.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where embeddings and oracles are computed. auto: CUDA when there is one."
    )

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Register the process in which Dagster executes a run, for noticing its death and for Terminate.

        The process locks a file until it ends. A run whose file is no longer locked has been killed and is
        marked as failed. If a code server launched the process, a thread also ends it when the run goes on
        after somebody pressed Terminate. Nothing happens outside of a run, or in a process that only executes
        a step of the run. With the executors `multiprocess` and `ray` nothing happens at all, since Dagster
        then initialises resources only in the processes of the steps.
        """
        if context.run is None or context.instance is None:
            return
        with at_places(self.places):
            is_worker = hold_run(context.instance, context.run.run_id)
        if is_worker:
            end_if_it_does_not_react(context.instance, context.run.run_id)

    @property
    def places(self) -> Places:
        """Folders and store of pool files, artifacts and caches."""
        return Places(self.home, self.pools, self.artifacts_url)

    def store(self) -> ArtifactStore:
        """Open the artifact store at `artifacts_url`.

        If that is empty, the store lies where the code that runs has its artifacts: at the places of its
        location (`names.Location.active`), or else where the environment says.
        """
        return ArtifactStore(self.artifacts_url)

    def chain(self, pool: str, policies: Sequence[str] = ()) -> Chain:
        """Return the chain of a pool: the stages to make for the pool, with their inputs and settings.

        The pool file is read at each call.

        Args:
            policies: names of the policies that the chain tunes and plays, besides those of the pool that are
                tuned already. Empty keeps all of the pool's policies.

        Raises:
            PolicyError: one of the names is no policy's.
            PoolError: there is no such pool, its file is invalid, or it does not have one of the policies.
        """
        from cabs_core.pipeline.commands.options import chosen_policies  # noqa: PLC0415  (loading stays quick)

        pool_file = find_pool(pool)
        chosen = chosen_policies(policies, pool_file.pool)
        return Chain(self.store(), pool_file).over(chosen)

    def options(self, context: dg.AssetExecutionContext, force: bool, device: str = "") -> Options:
        """Return the options with which a run makes artifacts.

        Args:
            force: also make what is up to date.
            device: device in place of the resource's own. Empty: the resource's.
        """
        return Options(force, device or self.device, context.run.run_id, context.log.info)


class AlertResource(dg.ConfigurableResource[Any]):
    """A webhook that takes a JSON POST with a `text` field (Slack, say), or else the log."""

    webhook_url: str = Field("", description="Address of the webhook. Empty: the sensor's log.")

    def send(self, text: str, log: Any) -> None:
        """Send a text to the webhook, or write it to the log as an error if there is no webhook or it fails.

        A redirect is not followed and counts as a failure.
        """
        if self.webhook_url:
            import requests  # noqa: PLC0415  (for alerts alone)

            try:
                answer = requests.post(
                    self.webhook_url, json={"text": text}, timeout=10, allow_redirects=False
                )
                answer.raise_for_status()
                if answer.is_redirect:
                    raise requests.TooManyRedirects("the webhook has moved")
                return
            except requests.RequestException as error:  # its message may hold the address, which is a secret
                log.error(f"the webhook could not be reached ({type(error).__name__}); the alert was:")
        log.error(text)


def cabs_of(context: Any) -> CabsResource:
    """Return the resource that holds the artifacts, from the context of a step, sensor or schedule."""
    cabs: CabsResource = getattr(context.resources, named(CABS))
    return cabs
