"""The only room that writes files: run folders, parts, tables, objects, checkpoints, caches."""

from fusevlm.store.files import (
    hold,
    read_json,
    save,
    save_json,
    start_afresh,
    write_atomically,
)
from fusevlm.store.objects import Migration, load_object, pack, save_object, unpack
from fusevlm.store.tables import read_parquet, read_table, save_columns, save_parquet

__all__ = [
    "Migration",
    "hold",
    "load_object",
    "pack",
    "read_json",
    "read_parquet",
    "read_table",
    "save",
    "save_columns",
    "save_json",
    "save_object",
    "save_parquet",
    "start_afresh",
    "unpack",
    "write_atomically",
]
