"""Marts for tests: all of them built, and the rows of one."""

import duckdb
import pandas as pd

from dbt_like_sql.runner import ModelRun, load_project, model_path, rebuild_database, run_model


def build_all(artifacts, *, database=True, root=None) -> dict[str, ModelRun]:
    """Every model in dependency order, then the database."""
    runs = {name: run_model(name, artifacts, root=root) for name in load_project(root).models}
    if database:
        rebuild_database(artifacts, root=root)
    return runs


def build_models(artifacts, *names) -> None:
    """These models and all that they read."""
    models = load_project().models
    needed = set(names)
    for name in reversed(models):
        if name in needed:
            needed.update(models[name].depends_on)
    for name in models:
        if name in needed:
            run_model(name, artifacts)


def read_model(name, artifacts, where="true") -> pd.DataFrame:
    """Rows of a model's parquet; where: a condition in SQL."""
    with duckdb.connect() as connection:
        return connection.execute(f"FROM '{model_path(name, artifacts)}' WHERE {where}").df()
