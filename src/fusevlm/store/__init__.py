"""The only room that reads or writes artefacts."""

from fusevlm.store.objects import (
    Migration,
    load_object,
    pack,
    save_object,
    unpack,
    write_atomically,
)
from fusevlm.store.tables import read_table

__all__ = [
    "Migration",
    "load_object",
    "pack",
    "read_table",
    "save_object",
    "unpack",
    "write_atomically",
]
