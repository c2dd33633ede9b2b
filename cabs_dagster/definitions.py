from cabs_dagster.build import build_defs

defs = build_defs()
