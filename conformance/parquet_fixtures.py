"""Writes Parquet files with pyarrow, one in every compression. All have the same rows: text in a column that is marked
as text and in one of bare bytes, nulls, lists and structs; data pages are of version 1 or 2.

    pip install pyarrow && python conformance/parquet_fixtures.py
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

OUT = Path(__file__).parent.parent / "crates/lockstep/tests/fixtures/parquet"
ROWS = 40


def table():
    number = range(ROWS)
    return pa.table({
        "prompt": pa.array([f"question {i % 7}: " + "word " * 30 for i in number], pa.string()),
        "answer": pa.array([f"ünïcode {i}".encode() for i in number], pa.binary()),
        "maybe": pa.array([None if i % 3 else i for i in number], pa.int64()),
        "nothing": pa.array([None] * ROWS, pa.string()),
        "chat": pa.array([[{"role": "user", "content": f"hi {i}"}] * (i % 3) for i in number],
                         pa.list_(pa.struct([("role", pa.string()), ("content", pa.binary())]))),
    })


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    for codec in ["none", "snappy", "gzip", "brotli", "lz4", "zstd"]:
        for version in ["1.0", "2.0"]:
            pq.write_table(table(), OUT / f"{codec}-{version[0]}.parquet", compression=codec, data_page_version=version,
                           row_group_size=25, data_page_size=512, write_statistics=False)
    image = pa.table({"prompt": ["a", "b"], "image": pa.array([b"plain", b"\xff\xd8\xff\xe0"], pa.binary())})
    pq.write_table(image, OUT / "image.parquet", compression="zstd")
    # As Hugging Face's datasets store images: by bytes or by path, one or several, in a column of any name.
    stored = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    none = {"bytes": None, "path": None}
    rows = [("image", stored, {"bytes": None, "path": "x.png"}), ("images", pa.list_(stored),
            [{"bytes": b"<svg/>", "path": None}]), ("figure", stored, {"bytes": b"<svg/>", "path": "x.svg"}),
            ("image", stored, none), ("images", pa.list_(stored), []), ("images", pa.list_(stored), [none])]
    for i, (name, kind, value) in enumerate(rows):
        stored_rows = pa.table({"prompt": ["a", "b"], name: pa.array([None, value], kind)})
        pq.write_table(stored_rows, OUT / f"stored-{i}.parquet", compression="none")


if __name__ == "__main__":
    main()
