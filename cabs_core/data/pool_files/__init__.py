"""Model pools: validated YAML files that name the models, the data and the settings of an experiment."""

from cabs_core.base.catalog.roles import DEFAULT_POLICIES
from cabs_core.data.pool_files.config import ModelPool, flatten, pool_from
from cabs_core.data.pool_files.read import PoolFile, read_pool_file
from cabs_core.data.pool_files.rhos import parse_rho_key, rho_key

__all__ = [
    "DEFAULT_POLICIES",
    "ModelPool",
    "PoolFile",
    "flatten",
    "parse_rho_key",
    "pool_from",
    "read_pool_file",
    "rho_key",
]
