"""Inputs that are nearly good: a good one with a few edits, by its structure and byte by byte.

Each strategy draws edits, not content, so that what is found shrinks to few of them. A tree is what
JSON holds; ``Raw`` in it is written as it stands, for what no JSON writer would write.
"""

import csv
import io
import json
import sqlite3
import struct
import zipfile
import zlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from pyarrow import parquet
from safetensors.numpy import load as unpacked
from safetensors.numpy import save as packed

MOST_BYTES = 400_000  # of an input


@dataclass(frozen=True)
class Raw:
    """Text that stands in the file as it is."""

    text: str


def nested(depth, opening="[", closing="]"):
    return Raw(opening * depth + closing * depth)


ODD_TEXTS = [
    "", "a", " ", "\0", "\ud800", "\udfff", "\u2028", "é", "../../x", "/etc/passwd", "=1+1", "[1",
    "[[1], 2]", "{}", "[\"\\ud800\"]", "nan", "inf", "1e999", "-1", "0", "1.5", "true", "s", "last",
    "a" * 300, "x\ny", "[" * 2000, "1" * 5000, "{answer}", "{question}", "%s{0}", "embedded",
    "none", "cuda", "sentences", "array", "2026-11-17", "0x10", "\x1b[31m",
]  # fmt: skip
ODD_NUMBERS = [
    0, 1, -1, 2, 3, 255, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30,
    0.5, -0.5, 1e-320, 1e300, -1e308, 1.7976931348623157e308, 3.4e38, 65520.0,
]  # fmt: skip
ODD_RAW = [
    Raw("NaN"), Raw("Infinity"), Raw("-Infinity"), Raw("1e999"), Raw("-0"), Raw("1" * 400),
    Raw("1" * 5000), Raw('"\\ud800"'), Raw('"\\u0000"'), Raw("tru"), Raw("01"), Raw("'a'"), Raw(""),
    Raw("[" * 100_000), nested(60), nested(400), nested(900), nested(20_000),
    nested(300, '{"a":', "}"), Raw('{"a":' * 300 + "1" + "}" * 300), Raw('{"a":1,"a":2}'),
]  # fmt: skip
plain_values = st.one_of(
    st.none(), st.booleans(), st.sampled_from(ODD_NUMBERS), st.sampled_from(ODD_TEXTS),
    st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=4),
    st.sampled_from([[], {}, [[]], [None], [[], {}], {"": None}, ["a", 1, None], [[1.0], [2.0]],
                     [[1], [1, 2]], {"a": {"b": []}}]),
)  # fmt: skip
odd_values = st.one_of(
    plain_values,
    st.sampled_from(ODD_RAW),
    st.integers(1, 980).map(nested),
    st.lists(plain_values, max_size=3),
    st.dictionaries(st.text(max_size=3), plain_values, max_size=3),
)

# -------------------------------------------------------------------------------------- trees

places = st.integers(0, 10**6)
replacing = st.tuples(st.just("replace"), places, odd_values)
edits = st.one_of(
    replacing,
    replacing,
    replacing,
    st.tuples(st.just("remove"), places, st.none()),
    st.tuples(st.just("twice"), places, st.none()),
    st.tuples(st.just("rename"), places, st.sampled_from(ODD_TEXTS)),
    st.tuples(st.just("take"), places, places),
    st.tuples(st.just("wrap"), places, st.sampled_from(["list", "dict", "text"])),
    st.tuples(st.just("add"), places, st.tuples(st.sampled_from(ODD_TEXTS), odd_values)),
    st.tuples(st.just("repeat"), places, st.sampled_from([2, 30, 300])),
)
TWICE = "@@twice@@"  # ends a key that stands there a second time


def paths_of(tree, path=()):
    """All places of a tree, the outer ones first."""
    found = [path]
    if isinstance(tree, dict):
        inner = tree.items()
    elif isinstance(tree, list):
        inner = enumerate(tree)
    else:
        return found
    for key, value in inner:
        found += paths_of(value, (*path, key))
    return found


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def with_at(tree, path, change):
    """The tree with what is at ``path`` changed; what is not on the path is shared."""
    if not path:
        return change(tree)
    key, rest = path[0], path[1:]
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[key] = with_at(tree[key], rest, change)
    return copy


def edited(tree, edit):
    """The tree after one edit."""
    kind, number, value = edit
    known = paths_of(tree)
    path = known[number % len(known)]
    if kind == "replace":
        return with_at(tree, path, lambda _: value)
    if kind == "take":
        other = at(tree, known[value % len(known)])
        return with_at(tree, path, lambda _: other)
    if kind == "wrap":
        forms = {"list": lambda v: [v], "dict": lambda v: {"a": v}, "text": lambda v: str(v)}
        return with_at(tree, path, forms[value])
    if kind == "add":
        return with_at(tree, path, lambda v: _added(v, *value))
    if not path:
        return tree
    return with_at(tree, path[:-1], lambda v: _changed(v, path[-1], kind, value))


def _added(holder, key, value):
    if isinstance(holder, dict):
        return {**holder, key: value}
    return [*holder, value] if isinstance(holder, list) else value


def _changed(holder, key, kind, value):
    if isinstance(holder, list):
        again = {"remove": 0, "twice": 2, "rename": 0, "repeat": value}[kind]
        return [*holder[:key], *[holder[key]] * again, *holder[key + 1 :]]
    if kind == "rename":
        return {value if k == key else k: v for k, v in holder.items()}
    rest = {k: v for k, v in holder.items() if k != key}
    if kind == "remove":
        return rest
    return {**rest, key: holder[key], f"{key}{TWICE}": holder[key]}


def trees(seeds, most=3):
    """Trees with a few edits, of some good ones."""
    many = st.lists(edits, min_size=1, max_size=most)
    return st.tuples(st.sampled_from(range(len(seeds))), many).map(
        lambda drawn: _all_edited(seeds[drawn[0]], drawn[1])
    )


def _all_edited(tree, some):
    for edit in some:
        tree = edited(tree, edit)
    return tree


def to_json(tree):
    """The tree as JSON text, with what stands in it raw."""
    raws = []

    def plain(value):
        if isinstance(value, Raw):
            raws.append(value.text)
            return f"@@raw{len(raws) - 1}@@"
        if isinstance(value, dict):
            return {str(k): plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list | tuple) else value

    text = json.dumps(plain(tree))
    for number, raw in enumerate(raws):
        text = text.replace(f'"@@raw{number}@@"', raw)
    return text.replace(TWICE, "").encode(errors="surrogatepass")[:MOST_BYTES]


def to_json_lines(tree):
    rows = tree if isinstance(tree, list) else [tree]
    return b"\n".join(map(to_json, rows))[:MOST_BYTES]


def to_toml(tree):
    """Tables of TOML, as far as it can say what is in the tree."""
    lines, sections = [], []
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict):
            sections.append(f"[{_toml_key(key)}]")
            sections += [f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items()]
        elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            for table in value:
                sections.append(f"[[{_toml_key(key)}]]")
                sections += [f"{_toml_key(k)} = {_toml(v)}" for k, v in table.items()]
        else:
            lines.append(f"{_toml_key(key)} = {_toml(value)}")
    return "\n".join([*lines, *sections, ""]).replace(TWICE, "").encode(errors="surrogatepass")


def _toml_key(key):
    plain = str(key)
    good = plain.replace(TWICE, "").replace("_", "").replace("-", "")
    return plain if good.isascii() and good.isalnum() else json.dumps(plain)


def _toml(value):
    if isinstance(value, Raw):
        return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}.get(value.text, value.text)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if value is None:
        return "2026-11-17T07:32:00"  # what JSON has not
    return json.dumps(value)


def to_csv(tree):
    """Rows of cells, the first of them the header; what is no list is a row of one cell."""
    text = io.StringIO()
    writer = csv.writer(text)
    for row in tree if isinstance(tree, list) else [tree]:
        cells = row if isinstance(row, list) else [row]
        writer.writerow([c.text if isinstance(c, Raw) else c for c in cells])
    return text.getvalue().encode(errors="surrogatepass")[:MOST_BYTES]


def to_journal(tree):
    """Lines whose checksums are right, whatever they say."""
    rows = [to_json(one) for one in (tree if isinstance(tree, list) else [tree])]
    return b"".join(b"%08x %s\n" % (zlib.crc32(row), row) for row in rows)


def to_eval(tree):
    """An archive of inspect_ai: each key of the tree is one of its files."""
    buffer = io.BytesIO()
    kinds = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    names = set()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number, (name, one) in enumerate(tree.items() if isinstance(tree, dict) else ()):
            plain = name.replace(TWICE, "").encode("utf-8", "replace").decode() or "a"
            if plain not in names:
                archive.writestr(plain, to_json(one), kinds[number % len(kinds)])
            names.add(plain)
    return buffer.getvalue()


# -------------------------------------------------------------------------------------- bytes

TOKENS = [
    b"\0", b"\xff", b"\xff\xfe", b"\n", b"\r", b'"', b",", b"\xe2\x80\xa8", b"\x80", b"NaN", b"-1",
    b"9" * 30, b"[" * 3000, b"{" * 50, b"\xed\xa0\x80", struct.pack("<I", 2**31), b"PK",
    b"\x00" * 64,
    struct.pack("<Q", 2**63 - 1), struct.pack(">I", 2**32 - 1), struct.pack("<q", -1), b"\x7f" * 8,
]  # fmt: skip
byte_edits = st.one_of(
    st.tuples(st.just("flip"), places, st.integers(0, 7)),
    st.tuples(st.just("set"), places, st.integers(0, 255)),
    st.tuples(st.just("cut"), places, st.none()),
    st.tuples(st.just("behead"), places, st.none()),
    st.tuples(st.just("drop"), places, st.integers(1, 40)),
    st.tuples(st.just("put"), places, st.sampled_from(TOKENS)),
    st.tuples(st.just("over"), places, st.sampled_from(TOKENS)),
    st.tuples(st.just("splice"), places, places),
    st.tuples(st.just("repeat"), places, st.tuples(st.integers(1, 60), st.integers(2, 200))),
)


def bytes_edited(whole, edit, other):
    """The bytes after one edit; ``other`` are those that are spliced in."""
    kind, number, value = edit
    where = number % (len(whole) + 1)
    head, tail = whole[:where], whole[where:]
    if kind == "flip":
        return head + bytes([tail[0] ^ 1 << value]) + tail[1:] if tail else whole
    if kind == "set":
        return head + bytes([value]) + tail[1:]
    if kind == "cut":
        return head
    if kind == "behead":
        return tail
    if kind == "drop":
        return head + tail[value:]
    if kind == "put":
        return head + value + tail
    if kind == "over":
        return head + value + tail[len(value) :]
    if kind == "splice":
        return head + other[value % (len(other) + 1) :]
    size, times = value
    return head + tail[:size] * times + tail


def byte_changes(seeds, most=4):
    """Good bytes with a few edits."""
    numbers = st.sampled_from(range(len(seeds)))
    many = st.lists(byte_edits, min_size=1, max_size=most)

    def apply(drawn):
        number, other, some = drawn
        whole = seeds[number]
        for edit in some:
            whole = bytes_edited(whole, edit, seeds[other])[:MOST_BYTES]
        return whole

    return st.tuples(numbers, numbers, many).map(apply)


def mended_png(whole):
    """A PNG whose chunks have the checksums of what they now hold."""
    found, where = bytearray(whole[:8]), 8
    while where + 8 <= len(whole):
        size = int.from_bytes(whole[where : where + 4], "big")
        body = whole[where + 4 : where + 8 + size]
        crc = struct.pack(">I", zlib.crc32(body))
        found += whole[where : where + 4] + body + crc
        where += 12 + size
    return bytes(found)


# ------------------------------------------------------------------------------------- arrays

SHAPES = ["flat", "0", "rows", "columns", "turned", "more", "scalar", "empty", "double", "none"]
DTYPES = ["<f2", "<f4", "<f8", "<i8", "<i4", "|u1", "|b1", "|i1", "<u8", "<c8"]
NUMBERS = [np.nan, np.inf, -np.inf, 0.0, 1e300, -1e300, 1e-300, 65504.0, 1.0]
array_edits = st.one_of(
    st.tuples(st.just("shape"), places, st.sampled_from(SHAPES)),
    st.tuples(st.just("dtype"), places, st.sampled_from(DTYPES)),
    st.tuples(st.just("one"), places, st.tuples(places, st.sampled_from(NUMBERS))),
    st.tuples(st.just("all"), places, st.sampled_from(NUMBERS)),
    st.tuples(st.just("remove"), places, st.none()),
    st.tuples(st.just("rename"), places, st.sampled_from(["", "a", "0", "0.last", "image", "7.x"])),
    st.tuples(st.just("take"), places, places),
)


def reshaped(a, how):
    """An array of another shape."""
    if how in ("flat", "0", "scalar"):
        return {"flat": a.reshape(-1), "0": a[:0] if a.ndim else a, "scalar": a.sum()}[how]
    if how == "rows":
        return a[:-1] if a.ndim and len(a) else a
    if how == "columns":
        return a[..., :-1] if a.ndim else a
    if how == "turned":
        return a.T.reshape(a.shape[::-1])
    if how == "more":
        return a[None]
    if how == "empty":
        return np.zeros((0, *a.shape), a.dtype)
    if how == "double":
        return np.concatenate([a, a]) if a.ndim else a
    return np.zeros((*a.shape, 0), a.dtype)


def arrays_edited(arrays, edit):
    kind, number, value = edit
    if not arrays:
        return arrays
    names = sorted(arrays)
    name = names[number % len(names)]
    old, rest = arrays[name], {k: v for k, v in arrays.items() if k != name}
    with np.errstate(all="ignore"):
        if kind == "shape":
            return {**rest, name: np.asarray(reshaped(old, value))}
        if kind == "dtype":
            real = old.real if old.dtype.kind == "c" else old
            return {**rest, name: np.nan_to_num(np.asarray(real)).astype(value)}
        if kind == "one" and old.size:
            new = np.array(old)
            new.reshape(-1)[value[0] % old.size] = _castable(value[1], old.dtype)
            return {**rest, name: new}
        if kind == "all":
            return {**rest, name: np.full_like(old, _castable(value, old.dtype))}
    if kind == "remove":
        return rest
    if kind == "rename":
        return {**rest, value: old}
    return {**rest, name: arrays[names[value % len(names)]]} if kind == "take" else arrays


def _castable(value, dtype):
    if dtype.kind in "iub" and not np.isfinite(value):
        return 1
    return np.clip(value, 0, 1) if dtype.kind in "iub" else value


def array_changes(seeds, most=3):
    """Named arrays with a few edits."""
    many = st.lists(array_edits, min_size=1, max_size=most)

    def apply(drawn):
        found = seeds[drawn[0]]
        for edit in drawn[1]:
            found = arrays_edited(found, edit)
        return found

    return st.tuples(st.sampled_from(range(len(seeds))), many).map(apply)


def to_safetensors(arrays):
    return packed({k: np.ascontiguousarray(v) for k, v in arrays.items()})


def safetensors_changes(seeds):
    """Files of arrays: other arrays, another header, other bytes."""
    heads = [_header(seed) for seed in seeds]
    headers = trees([head for head, _ in heads]).map(to_json)

    def joined(drawn):
        header, number = drawn
        return struct.pack("<Q", len(header)) + header + heads[number][1]

    return st.one_of(
        array_changes([unpacked(seed) for seed in seeds]).map(to_safetensors),
        st.tuples(headers, st.sampled_from(range(len(heads)))).map(joined),
        byte_changes(seeds),
    )


def _header(whole):
    size = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + size]), whole[8 + size :]


def to_npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


ODD_ARRAYS = [
    np.array(["a", "b"]), np.array([None, {}], dtype=object), np.array([(1, 2.0)], dtype="i4,f8"),
    np.zeros((2, 0, 3)), np.zeros((2, 2, 2), complex), np.zeros(3, "datetime64[s]"), np.zeros(()),
    np.array([b"x"]), np.full((2, 3, 2), np.nan),
]  # fmt: skip


def npy_changes(seeds):
    some = [{"a": np.load(io.BytesIO(seed))} for seed in seeds]
    return st.one_of(
        array_changes(some).filter(bool).map(lambda found: to_npy(next(iter(found.values())))),
        st.sampled_from([to_npy(array) for array in ODD_ARRAYS]),
        byte_changes(seeds),
    )


# ------------------------------------------------------------------------------------- tables

ODD_COLUMNS = [
    lambda n: pa.nulls(n), lambda n: pa.array([True] * n), lambda n: pa.array([1.5] * n),
    lambda n: pa.array([float("nan")] * n), lambda n: pa.array(["a"] * n),
    lambda n: pa.array([str(k) for k in range(n)]), lambda n: pa.array([b"\xff"] * n),
    lambda n: pa.array([[1.0, 2.0]] * n), lambda n: pa.array([["a", None]] * n),
    lambda n: pa.array([[]] * n, pa.list_(pa.float64())), lambda n: pa.array([[[1]]] * n),
    lambda n: pa.array([{"a": 1}] * n), lambda n: pa.array([0] * n, pa.timestamp("ns")),
    lambda n: pa.array([2**62] * n, pa.timestamp("us")), lambda n: pa.array([-(2**31)] * n,
                                                                          pa.date32()),
    lambda n: pa.array([2**60] * n, pa.duration("s")), lambda n: pa.array([1] * n).cast(
        pa.decimal128(30, 2)), lambda n: pa.array([2**63] * n, pa.uint64()),
    lambda n: pa.array(["a"] * n).dictionary_encode(), lambda n: pa.array(
        [[("k", 1)]] * n, pa.map_(pa.string(), pa.int64())), lambda n: pa.array([1e300] * n),
    lambda n: pa.array([np.float16(1)] * n, pa.float16()), lambda n: pa.array([86399] * n,
                                                                            pa.time32("s")),
    lambda n: pa.array(["[1"] * n), lambda n: pa.array(["[]"] * n), lambda n: pa.array(["7"] * n),
]  # fmt: skip
column_edits = st.one_of(
    st.tuples(st.just("odd"), places, st.sampled_from(range(len(ODD_COLUMNS)))),
    st.tuples(st.just("remove"), places, st.none()),
    st.tuples(st.just("rename"), places, st.sampled_from([*ODD_TEXTS[:3], "id", "wrong", "u"])),
    st.tuples(st.just("take"), places, places),
    st.tuples(st.just("twice"), places, st.none()),
    st.tuples(st.just("rows"), places, st.sampled_from([0, 1, -1, 2])),
    st.tuples(st.just("cells"), places, st.lists(edits, min_size=1, max_size=2)),
)


def table_edited(table, edit):
    """An Arrow table after one edit."""
    kind, number, value = edit
    if not table.num_columns:
        return table
    where = number % table.num_columns
    name = table.column_names[where]
    if kind == "odd":
        return table.set_column(where, name, ODD_COLUMNS[value](table.num_rows))
    if kind == "remove":
        return table.remove_column(where)
    if kind == "rename":
        names = [value if k == where else n for k, n in enumerate(table.column_names)]
        return table.rename_columns(names)
    if kind == "take":
        return table.set_column(where, name, table.column(value % table.num_columns))
    if kind == "twice":
        return table.append_column(name, table.column(where))
    if kind == "rows":
        return pa.concat_tables([table, table]) if value == 2 else table[: value or None][:value]
    cells = _all_edited(table.column(where).to_pylist(), value)
    cells = cells if isinstance(cells, list) else [cells]
    cells = [*cells, *[None] * table.num_rows][: table.num_rows]
    return table.set_column(where, name, _column(cells))


def _column(cells):
    try:
        return pa.array(cells)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        texts = [None if c is None else str(c)[:3000] for c in cells]
        return pa.array([t and t.encode("utf-8", "replace").decode() for t in texts])


def to_parquet(table):
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def parquet_changes(seeds, most=3):
    """Parquet files of which columns, cells or bytes are others."""
    tables = [parquet.read_table(io.BytesIO(seed)) for seed in seeds]
    many = st.lists(column_edits, min_size=1, max_size=most)

    def apply(drawn):
        table = tables[drawn[0]]
        for edit in drawn[1]:
            table = table_edited(table, edit)
        return to_parquet(table)

    changed = st.tuples(st.sampled_from(range(len(tables))), many).map(apply)
    return st.one_of(changed, changed, byte_changes(seeds))


# ------------------------------------------------------------------------------------- SQLite


def to_sqlite(tree, tmp):
    """A file of SQLite with the statements and rows of a tree."""
    path = tmp / "made.sqlite"
    path.unlink(missing_ok=True)
    file = sqlite3.connect(path)
    try:
        file.execute(tree[0])
        for row in tree[1:]:
            marks = ", ".join("?" * len(row))
            file.execute(f"INSERT INTO verdicts VALUES ({marks})", row)
        file.commit()
    finally:
        file.close()
    return path.read_bytes()
