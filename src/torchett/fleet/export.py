"""What a query finds, as a file: Parquet, CSV or Arrow. A batch of rows is in memory at a time."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from torchett.model.errors import RunError

if TYPE_CHECKING:
    from torchett.fleet.fleet import Fleet

_Writer = Callable[[str, pa.Schema], AbstractContextManager[Any]]
_WRITERS: dict[str, _Writer] = {
    "parquet": lambda path, schema: pq.ParquetWriter(path, schema, compression="zstd"),
    "csv": pc.CSVWriter,
    "arrow": pa.RecordBatchFileWriter,
}


def write(fleet: "Fleet", sql: str, path: Path, form: str, seconds: float) -> int:
    """Write the file, all of it or nothing; how many rows."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    count = 0
    try:
        with (
            fleet.batches(sql, seconds=seconds) as found,
            _WRITERS[form](str(part), found.schema) as writer,
        ):
            for batch in found:
                writer.write_batch(batch)
                count += batch.num_rows
        os.replace(part, path)
    except OSError as error:
        raise RunError(f"{path}: not written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)
    return count
