"""The asset graph as a text that is read in a few minutes: one paragraph an asset.

`python tests/graph/snapshot.py` writes it again after a change that was meant; then look at the diff.
"""

from __future__ import annotations

from pathlib import Path

import dagster as dg

SNAPSHOT = Path(__file__).with_name("assets.txt")


def check_specs(defs: dg.Definitions) -> dict[str, list[dg.AssetCheckSpec]]:
    """{asset: its checks}, for all assets of a code location."""
    found: dict[str, list[dg.AssetCheckSpec]] = {}
    for definition in defs.assets or []:
        for spec in definition.check_specs if isinstance(definition, dg.AssetsDefinition) else []:
            found.setdefault(spec.asset_key.to_user_string(), []).append(spec)
    return {asset: sorted(checks, key=lambda check: check.name) for asset, checks in found.items()}


def partition_sets(definition: dg.PartitionsDefinition | None) -> str:
    """Names of the partition sets of a definition, such as `pools x rhos`."""
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return " x ".join(partition_sets(part.partitions_def) for part in definition.partitions_defs)
    return definition.name or "" if isinstance(definition, dg.DynamicPartitionsDefinition) else "none"


def text(defs: dg.Definitions) -> str:
    """What of every asset is a decision. Code versions change with every edit and are left out."""
    checks, lines = check_specs(defs), []
    for spec in sorted(
        defs.resolve_all_asset_specs(), key=lambda spec: (spec.group_name or "", spec.key.path)
    ):
        key = spec.key.to_user_string()
        lines.append(
            f"{key}: {spec.group_name}; {' '.join(sorted(spec.kinds))}; partitions {partition_sets(spec.partitions_def)}"
        )
        lines.append(
            f"  from {', '.join(sorted(dep.asset_key.to_user_string() for dep in spec.deps)) or 'nothing'}"
        )
        if key in checks:
            said = [f"{check.name}{' (blocking)' if check.blocking else ''}" for check in checks[key]]
            lines.append(f"  checks {', '.join(said)}")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    from cabs_dagster.build import build_defs

    SNAPSHOT.write_text(text(build_defs()), encoding="utf-8")
