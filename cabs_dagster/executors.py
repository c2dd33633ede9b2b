"""The executor that runs the steps: `CABS_EXECUTOR` = in_process (default), multiprocess or ray.

Results do not depend on the executor: every trial has its own random streams and every artifact its own
folder.
"""

import os

import dagster as dg

from cabs_core.base.errors import CabsError
from cabs_core.base.threads import number_of_workers

#: prefixes of the names of environment variables that a step on another node gets. Credentials are left out,
#: because Ray shows the values that it is given, and nodes have credentials of their own
_PASSED = (
    "CABS_",
    "DAGSTER_HOME",
    "HF_",
    "OMP_NUM_THREADS",
    "PYTHONPATH",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)
EXECUTORS = ("in_process", "multiprocess", "ray")


def passed() -> list[str]:
    """Return NAME=value, sorted, of the environment variables that steps on a cluster's nodes need.

    Their names begin with one of `_PASSED`.
    """
    return [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(_PASSED)]


def executor() -> dg.ExecutorDefinition:
    """Return the executor of all jobs. Multiprocess has `CABS_WORKERS` workers, or else one for each core.

    Raises:
        CabsError: CABS_EXECUTOR names no known executor, or one that is not installed, or CABS_WORKERS is no
            number.
    """
    name = os.environ.get("CABS_EXECUTOR") or "in_process"
    if name not in EXECUTORS:
        raise CabsError(f"CABS_EXECUTOR is {name!r}; expected one of {', '.join(EXECUTORS)}")
    if name == "in_process":
        return dg.in_process_executor
    if name == "multiprocess":
        workers = number_of_workers("CABS_WORKERS")
        return dg.multiprocess_executor.configured({"max_concurrent": workers})
    try:
        from dagster_ray import ray_executor  # noqa: PLC0415  (an extra)
    except ImportError:
        raise CabsError(
            "CABS_EXECUTOR is ray, but dagster-ray is not installed: pip install 'cabs-routing[ray]'"
        ) from None
    return ray_executor.configured(
        {
            "ray": {
                "address": os.environ.get("RAY_ADDRESS"),
                "num_cpus": 1,  # Ray runs what asks for nothing on the head node alone
                "env_vars": passed(),
            }
        }
    )
