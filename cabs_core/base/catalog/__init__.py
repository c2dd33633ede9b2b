"""The catalog: a record per policy, source, encoder, condition and cost regime; all derives from it.

The registry of classes, asset descriptions, labels in reports, the SQL of the marts, tuning grids and tests
read these records, so that adding one is adding a record. Other packages add theirs by entry points
(`plugins`). Light: importing it imports no policy.
"""

from cabs_core.base.catalog.conditions import (
    CONDITIONS,
    STREAM_CONDITIONS,
    Condition,
    check_condition,
    condition_record,
    condition_that_changes,
)
from cabs_core.base.catalog.encoders import EncoderRecord, encoder_record, encoders
from cabs_core.base.catalog.policies import (
    all_policies,
    asset_name,
    canonical_name,
    check_policy_name,
    families,
    name_and_options,
    policies,
    policy_description,
    policy_label,
    policy_record,
    policy_table,
    random_key,
    split_name,
    with_options,
)
from cabs_core.base.catalog.policy_record import FIXED_PRESETS, PRESET_TEXT, PolicyRecord
from cabs_core.base.catalog.regimes import (
    REGIMES,
    Regime,
    is_paper_grid,
    regime_of,
    regime_table,
)
from cabs_core.base.catalog.roles import (
    BEST_SINGLE,
    COLD_START,
    DEFAULT_POLICIES,
    NO_ROUTERS,
    ORACLE_BEST,
    PROPOSED,
    RANDOM,
    REFERENCE,
)
from cabs_core.base.catalog.sources import SourceRecord, sources

__all__ = [
    "BEST_SINGLE",
    "COLD_START",
    "CONDITIONS",
    "DEFAULT_POLICIES",
    "FIXED_PRESETS",
    "NO_ROUTERS",
    "ORACLE_BEST",
    "PRESET_TEXT",
    "PROPOSED",
    "RANDOM",
    "REFERENCE",
    "REGIMES",
    "STREAM_CONDITIONS",
    "Condition",
    "EncoderRecord",
    "PolicyRecord",
    "Regime",
    "SourceRecord",
    "all_policies",
    "asset_name",
    "canonical_name",
    "check_condition",
    "check_policy_name",
    "condition_record",
    "condition_that_changes",
    "encoder_record",
    "encoders",
    "families",
    "is_paper_grid",
    "name_and_options",
    "policies",
    "policy_description",
    "policy_label",
    "policy_record",
    "policy_table",
    "random_key",
    "regime_of",
    "regime_table",
    "sources",
    "split_name",
    "with_options",
]
