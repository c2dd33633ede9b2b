"""Dependencies and column lineage, derived from the SQL by sqlglot."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import lineage
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope


def tables_read(sql: str) -> set[str]:
    """Return the names of the tables that a query reads, without common table expressions and functions.

    A name has no schema in front: the table `a.b` gives `b`. The result is empty if sqlglot cannot parse
    the query.
    """
    try:
        tree = sqlglot.parse_one(sql, read="duckdb")
    except SqlglotError:  # DuckDB says where it is wrong
        return set()
    inner = {cte.alias_or_name for cte in tree.find_all(exp.CTE)}
    return {t.name for t in tree.find_all(exp.Table) if isinstance(t.this, exp.Identifier)} - inner


def column_lineage(
    sql: str, upstream: Mapping[str, Sequence[tuple[str, str]]], described: Sequence[str]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return {column of a query: sorted ((relation, column), ...) from which the column is computed}.

    A column that no table's column enters has an empty tuple. The result is empty if sqlglot cannot follow
    the query, or finds other columns than DuckDB.

    Args:
        sql: the compiled query.
        upstream: {relation: [(column, type)]} of every relation that the query reads.
        described: the query's columns as DuckDB's DESCRIBE gives them.
    """
    read = tuple((relation, tuple(columns)) for relation, columns in sorted(upstream.items()))
    return _lineage(sql, read, tuple(described))


@lru_cache(maxsize=256)
def _lineage(
    sql: str, upstream: tuple[tuple[str, tuple[tuple[str, str], ...]], ...], described: tuple[str, ...]
) -> dict[str, tuple[tuple[str, str], ...]]:
    """Compute the result of `column_lineage` from arguments that can be keys of a cache."""
    schema: dict[str, Any] = {name: dict(columns) for name, columns in upstream}
    origins: dict[str, set[tuple[str, str]]] = {column: set() for column in described}
    try:
        tree: Any = qualify(
            sqlglot.parse_one(sql, read="duckdb"),
            dialect="duckdb",
            schema=schema,
            validate_qualify_columns=False,
            quote_identifiers=False,
        )
        if [c.lower() for c in tree.named_selects] != [c.lower() for c in described]:
            return {}
        scope = build_scope(tree)
        nodes = lineage(
            None, tree, schema=schema, dialect="duckdb", scope=scope, trim_selects=False, copy=False
        )
        for column in described:
            for leaf in nodes[column.lower()].walk():
                if not leaf.downstream and isinstance(leaf.expression, exp.Table):
                    name = leaf.name.rpartition(".")[2].strip('"')
                    if name in schema.get(leaf.expression.name, {}):
                        origins[column].add((leaf.expression.name, name))
    except (SqlglotError, ValueError, KeyError, RecursionError):
        return {}
    return {column: tuple(sorted(parents)) for column, parents in origins.items()}  # sqlglot gives sets
