"""Dependencies and column lineage, derived from the SQL by sqlglot."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from cabs_core.errors import SqlModelError
from dbt_like_sql.project import SqlModel


def tables_read(sql: str, path: Path) -> list[tuple[str, int]]:
    """(name, line) of every table the query reads, common table expressions and table functions left out.

    Raises:
        SqlModelError: the SQL does not parse; file and line are named.
    """
    import sqlglot
    from sqlglot import exp

    try:
        tree = sqlglot.parse_one(sql, read="duckdb")
    except sqlglot.errors.ParseError as error:
        first = error.errors[0] if error.errors else {}
        raise SqlModelError(
            f"{path}:{first.get('line', 1)}: {first.get('description', error)} near {first.get('highlight', '')!r}"
        ) from None
    names = {cte.alias_or_name for cte in tree.find_all(exp.CTE)}
    found = []
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or (table.name in names and not table.db):
            continue
        position = table.this.meta.get("line", 1)
        found.append((".".join(p for p in (table.catalog, table.db, table.name) if p), position))
    return found


def check_dependencies(model: SqlModel) -> None:
    """Every table that the SQL reads must come through ref() or source().

    Raises:
        SqlModelError: a table is named directly; lineage and order would not know of it.
    """
    known = {*model.depends_on, *model.sources}
    for name, line in tables_read(model.compiled, model.path):
        if name not in known:
            raise SqlModelError(
                f"{model.path}:{line}: reads {name!r} directly; write {{{{ ref('{name}') }}}} or a source, so that "
                "it is run before and shows in the lineage"
            )


def column_lineage(
    model: SqlModel, upstream: dict[str, dict[str, str]], described: list[str]
) -> dict[str, list[tuple[str, str]]]:
    """{column: [(upstream relation, column), ...]} of a model; {} where sqlglot does not see DuckDB's columns.

    Args:
        upstream: {relation: {column: type}} of everything that the model reads.
        described: the model's columns as DuckDB's DESCRIBE gives them.
    """
    key = tuple((name, tuple(columns.items())) for name, columns in sorted(upstream.items()))
    return {c: list(v) for c, v in _lineage(model.compiled, key, tuple(described))}


@lru_cache(maxsize=256)
def _lineage(sql: str, upstream: tuple, described: tuple[str, ...]):
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError
    from sqlglot.lineage import lineage
    from sqlglot.optimizer.qualify import qualify
    from sqlglot.optimizer.scope import build_scope

    schema = {name: dict(columns) for name, columns in upstream}
    try:
        tree = qualify(
            sqlglot.parse_one(sql, read="duckdb"), dialect="duckdb", schema=schema,
            validate_qualify_columns=False, quote_identifiers=False,
        )  # fmt: skip
        if [c.lower() for c in tree.named_selects] != [c.lower() for c in described]:
            return ()
        scope = build_scope(tree)
        result = []
        for column in described:
            node = lineage(column, tree, schema=schema, dialect="duckdb", scope=scope, trim_selects=False)
            origins = {}
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
