"""Marts for tests: all of them built, one model run or tested alone, and the rows of one."""

import duckdb
import pandas as pd

from dbt_like_sql import runner
from dbt_like_sql.runner import ModelRun, TestResult, load_project, model_path, open_session, rebuild_database


def run_model(name, artifacts, *, root=None) -> ModelRun:
    """One model, run in a session of its own."""
    with open_session(artifacts, root=root) as session:
        return runner.run_model(name, session)


def run_tests(name, artifacts, *, root=None) -> list[TestResult]:
    """The results of the tests of one model, in a session of their own."""
    with open_session(artifacts, root=root) as session:
        return runner.run_tests(name, session)


def build_all(artifacts, *, database=True, root=None) -> dict[str, ModelRun]:
    """Every model in dependency order, then the database."""
    with open_session(artifacts, root=root) as session:
        runs = {name: runner.run_model(name, session) for name in load_project(root).models}
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
    with open_session(artifacts) as session:
        for name in models:
            if name in needed:
                runner.run_model(name, session)


def read_model(name, artifacts, where="true") -> pd.DataFrame:
    """Rows of a model's parquet; where: a condition in SQL."""
    with duckdb.connect() as connection:
        return connection.execute(f"FROM '{model_path(name, artifacts)}' WHERE {where}").df()
