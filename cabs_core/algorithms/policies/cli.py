"""`cabs policies`: lists the policies and their options."""

import json
from dataclasses import asdict
from typing import Any

import click


@click.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, for scripts.")
def policies(names: tuple[str, ...], as_json: bool) -> None:
    """List policies, their presets, and their options with defaults and ranges.

    NAMES: those to show with their options; without any, all policies, a line each. Policies of other
    packages (entry point group cabs.policies) are among them.
    """
    from cabs_core.base.catalog.policies import policies as catalog
    from cabs_core.base.catalog.policies import split_name

    records = [catalog()[split_name(name)[0]] for name in names] or list(catalog().values())
    if as_json:
        click.echo(json.dumps([_described(record) for record in records], indent=1, ensure_ascii=False))
        return
    for record in records:
        presets = "".join(f" @{preset}" for preset in record.presets[1:])
        click.echo(f"{click.style(record.name, bold=True)}{presets}: {record.description}")
        if names:
            from cabs_core.algorithms.policies.describe import policy_options, signature_text

            for option in policy_options(record.name):
                click.echo(f"    {signature_text(option)}")
            click.echo(f"    tuned over: {dict(record.tuning)}" if record.tuning else "    never tuned")


def _described(record: Any) -> dict[str, Any]:
    """Return a policy's record and options as values for JSON."""
    from cabs_core.algorithms.policies.describe import policy_options

    return {
        "name": record.name,
        "title": record.title,
        "description": record.description,
        "kind": record.kind,
        "presets": list(record.presets),
        "references": list(record.references),
        "tuning": {key: list(values) for key, values in record.tuning.items()},
        "options": [asdict(option) for option in policy_options(record.name)],
    }
