"""Tables of users: parquet, CSV, TSV, JSON lines or JSON, packed or not, in one file or several.

    table = open_table(path)  # its columns are known, no row is held
    frame = table.read(["prompt", "meta.scores.0"])  # only these; text stays text, nothing is guessed
    scores = number_column(frame["meta.scores.0"], "score", table.place("meta.scores.0"))

The last line raises an error that names the row if a cell is no score.
"""

from pathlib import Path

from cabs_core.base.errors import DataError
from cabs_core.data.tables.delimited import Delimited
from cabs_core.data.tables.files import explain_read_errors, files_of, is_samples
from cabs_core.data.tables.parquet import Parquet
from cabs_core.data.tables.records import Records
from cabs_core.data.tables.samples import Samples, samples_in
from cabs_core.data.tables.table import Shards, Table


def open_table(path: str | Path, rows: str | None = None) -> Table:
    """Open a table: a file, a folder of files of one format, or a pattern such as `part-*.parquet`.

    The name of a file says its format: `.parquet`, `.csv`, `.tsv`, `.jsonl`,
    `.ndjson`, `.json`, each also as `.gz`, `.zst`, `.bz2` or `.lz4`;
    `samples_*.jsonl` of lm-evaluation-harness become one row per document and model (`Samples`).

    Args:
        path: the file, folder or pattern.
        rows: dotted path to the rows in JSON files (`read_records`). None for other files. Logs of
            lm-evaluation-harness are read without it.

    Returns:
        A table: `names` (its columns, and dotted names within structs), `has(name)`,
        `read(names)` (a data frame of the named columns, dotted paths into structs, lists,
        maps and JSON texts among them), `first_row` (the number of the first row in the file, for messages)
        and `place(name)` for `number_column` and `text_column`.

    Raises:
        DataError: there is no such file, a file cannot be read or has no columns, the files have several
            formats, or `rows` is given for files that are not JSON.
    """
    path = Path(path)
    files = files_of(path)
    if all(is_samples(file) for file in files) and samples_in(files):
        return Samples(path, files)
    tables = [_one(file, rows) for file in files]
    if tables[0].path == path:
        return tables[0]
    return Shards(path, tables)


def _one(file: Path, rows: str | None) -> Table:
    """Open the table of one file.

    Raises:
        DataError: see `open_table`.
    """
    with explain_read_errors(file) as suffix:
        if rows is not None and suffix in (".parquet", ".csv", ".tsv"):
            raise DataError(
                f"{file}: source.rows is {rows!r:.100}, and only JSON files have it: leave it out, since "
                "each line is a row here"
            )
        if suffix == ".parquet":
            return Parquet(file)
        if suffix in (".csv", ".tsv"):
            return Delimited(file)
        return Records(file, rows)
    raise DataError(f"{file} cannot be read")
