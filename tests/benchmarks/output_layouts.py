"""What it costs in Python to hand predictions with their keys to Flink, by layout.

`python -m tests.benchmarks.output_layouts`: microseconds an event to make the layout and to encode
it, the best of several turns. What Flink does with it afterwards is not in it.
"""

import time
from collections.abc import Callable
from typing import Any

from pyflink.common import Row, Types
from pyflink.fn_execution.coders import from_type_info
from rich.console import Console
from rich.table import Table

EVENTS = 16_384
TURNS = 7


def main() -> None:
    """Measures and prints."""
    keys = [f"s{i % 5_000}" for i in range(EVENTS)]
    record = '{"key":"%s","generation":1,"epoch":1700000000000' + ',"x":1234' * 24 + "}"
    lines = "\n".join(record % key for key in keys).encode()
    a_bytes = Types.PRIMITIVE_ARRAY(Types.BYTE())

    def pairs() -> list[list[bytes]]:
        return [[k.encode(), r] for k, r in zip(keys, lines.split(b"\n"), strict=True)]

    layouts: dict[str, tuple[Any, Callable[[], Any]]] = {
        "bytes, no key": (Types.OBJECT_ARRAY(a_bytes), lambda: lines.split(b"\n")),
        "pairs of bytes": (Types.OBJECT_ARRAY(Types.OBJECT_ARRAY(a_bytes)), pairs),
        "key and record in one text": (
            Types.OBJECT_ARRAY(Types.STRING()),
            lambda: [f"{k}\x1f{r}" for k, r in zip(keys, lines.decode().split("\n"), strict=True)],
        ),
        "rows of two": (
            Types.OBJECT_ARRAY(Types.ROW([a_bytes, a_bytes])),
            lambda: [Row(*pair) for pair in pairs()],
        ),
    }
    table = Table(title=f"{len(lines) / EVENTS:.0f} bytes a record, us an event")
    for column in ("layout", "made", "encoded"):
        table.add_column(column)
    for name, (kind, make) in layouts.items():
        coder = from_type_info(kind).get_impl()
        made, encoded = [], []
        for _ in range(TURNS):
            started = time.perf_counter()
            value = make()
            between = time.perf_counter()
            coder.encode(value)
            encoded.append(time.perf_counter() - between)
            made.append(between - started)
        table.add_row(name, *(f"{min(each) / EVENTS * 1e6:.2f}" for each in (made, encoded)))
    Console().print(table)


if __name__ == "__main__":
    main()
