"""Dependencies and column lineage, derived from the SQL by sqlglot."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import lineage
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope

#: ((column, ((upstream relation, column), ...)), ...)
Lineage = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


def tables_read(sql: str) -> set[str]:
    """Names of the tables that a query reads, common table expressions and table functions left out."""
    try:
        tree = sqlglot.parse_one(sql, read="duckdb")
    except SqlglotError:  # DuckDB says where it is wrong
        return set()
    inner = {cte.alias_or_name for cte in tree.find_all(exp.CTE)}
    return {t.name for t in tree.find_all(exp.Table) if isinstance(t.this, exp.Identifier)} - inner


@lru_cache(maxsize=256)
def column_lineage(
    sql: str, upstream: tuple[tuple[str, tuple[tuple[str, str], ...]], ...], described: tuple[str, ...]
) -> Lineage:
    """Which columns each column of a query comes from; () where sqlglot does not see DuckDB's columns.

    Args:
        sql: the compiled query.
        upstream: ((relation, ((column, type), ...)), ...) of everything that it reads.
        described: its columns as DuckDB's DESCRIBE gives them.
    """
    schema: dict[str, Any] = {name: dict(columns) for name, columns in upstream}
    try:
        tree: Any = qualify(
            sqlglot.parse_one(sql, read="duckdb"), dialect="duckdb", schema=schema,
            validate_qualify_columns=False, quote_identifiers=False,
        )  # fmt: skip
        if [c.lower() for c in tree.named_selects] != [c.lower() for c in described]:
            return ()
        scope, result = build_scope(tree), []
        for column in described:
            node = lineage(column, tree, schema=schema, dialect="duckdb", scope=scope, trim_selects=False)
            origins: dict[tuple[str, str], None] = {}
            for leaf in node.walk():
                if leaf.downstream or not isinstance(leaf.expression, exp.Table):
                    continue
                name = leaf.name.rpartition(".")[2].strip('"')
                if name in schema.get(leaf.expression.name, {}):
                    origins[leaf.expression.name, name] = None
            result.append((column, tuple(origins)))
        return tuple(result)
    except (SqlglotError, ValueError, KeyError, RecursionError):
        return ()
