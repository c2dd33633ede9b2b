"""Grammar of a `schema.yml`: sources, models, columns and tests, as dbt has them.

A field of dbt that these classes lack is an error here, so that a file means the same to the runner and to
dbt.
"""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cabs_core.base.errors import SqlModelError

#: how `external_location` begins once its env_var is filled in: files below the artifacts folder
ARTIFACTS = "$CABS_HOME/artifacts"
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Closed(BaseModel):
    """Immutable part of a schema.yml in which an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Meta(_Closed):
    """Settings under `config.meta`, which dbt itself does not interpret.

    Attributes:
        external_location: table function that reads the files of a source.
        plugin: name of the dbt plug-in that loads a source from the package; empty for a source with files.
        outcomes: columns of the asset `outcomes` that a source's column is made of.
    """

    external_location: str = ""
    plugin: str = ""
    outcomes: tuple[str, ...] = ()


class _Config(_Closed):
    """Settings under `config`: the severity of a test, and `meta`."""

    severity: Literal["error", "warn"] = "error"
    meta: Meta = Meta()


class _Entry(_Closed):
    """Entry with a name, a description and settings: a source, table, model or column."""

    name: str
    description: str = ""
    config: _Config = _Config()

    @field_validator("description")
    @classmethod
    def _on_one_line(cls, text: str) -> str:
        """Return the description without white space at its ends, and with one space for each run inside."""
        return " ".join(text.split())


class WrittenTest(_Closed):
    """Settings of a test, which a schema.yml has below the kind of the test."""

    name: str = ""
    description: str = ""
    arguments: dict[str, Any] = {}
    config: _Config = _Config()


class _Tested(_Entry):
    """An entry with tests: each is {kind: settings}."""

    data_tests: tuple[dict[str, WrittenTest], ...] = ()

    @field_validator("data_tests", mode="before")
    @classmethod
    def _with_settings(cls, items: Any) -> Any:
        """Return the tests as mappings, so that `unique` becomes `{unique: {}}`."""
        return [{item: {}} if isinstance(item, str) else item for item in items or ()]


class Column(_Tested):
    """A column; `data_type` is DuckDB's name of its type."""

    data_type: str = ""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """Columns of the asset `outcomes` that this column is made of."""
        return self.config.meta.outcomes


class SourceTable(_Entry):
    """A table that models read and that no model makes: files of the chain, or rows of the package.

    Attributes:
        source: name of the source that the table belongs to.
        location: table function that reads the files, with `ARTIFACTS` for their folder; empty for a table
            of the package.
    """

    source: str = ""
    location: str = ""
    columns: tuple[Column, ...] = Field(min_length=1)

    @property
    def relation(self) -> str:
        """Name of the table in rendered SQL: `source__name`."""
        return f"{self.source}__{self.name}"

    @property
    def path(self) -> str:
        """Glob of the files below the artifacts folder; empty for a table of the package."""
        return self.location.partition(f"{ARTIFACTS}/")[2].partition("'")[0]


class Source(_Entry):
    """A source and its tables. The source's settings hold for tables without settings of their own."""

    tables: tuple[SourceTable, ...]


class DescribedModel(_Tested):
    """Description, columns and tests of the SQL file with the same name."""

    columns: tuple[Column, ...] = ()


class Schema(BaseModel):
    """Content of a schema.yml."""

    model_config = ConfigDict(extra="forbid")
    version: int = 2
    sources: tuple[Source, ...] = ()
    models: tuple[DescribedModel, ...] = ()


def read_schema(path: Path) -> Schema:
    """Read a schema.yml.

    Raises:
        SqlModelError: the file is not YAML, or a field is missing, of a wrong type or not in the grammar. The
            message names the place of the first such field.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_YamlLoader)
        return Schema.model_validate(data or {})
    except yaml.YAMLError as error:
        raise SqlModelError(f"{path} is not plain YAML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise SqlModelError(f"{path}: {place}: {first['msg']}, found {first['input']!r}"[:1000]) from None
