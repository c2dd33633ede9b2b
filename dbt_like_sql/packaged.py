"""Source tables that come with the package: the catalog of policies, and the paper's figures."""

from importlib import resources

import pyarrow as pa
import pyarrow.csv

from cabs_core.base.catalog.policies import policy_table
from cabs_core.base.errors import SqlModelError


def packaged_table(name: str) -> pa.Table:
    """Rows of a source table whose `meta` says `plugin: cabs`, by its name as `source.table`."""
    if name == "catalog.policies":
        return pa.Table.from_pylist(policy_table())
    if name == "paper.published":
        with (resources.files("cabs_core.algorithms.paper") / "published.csv").open("rb") as file:
            return pyarrow.csv.read_csv(file)
    raise SqlModelError(
        f"source {name}: the package has no such table; remove `plugin`, or give an external_location"
    )
