"""Arrays that grow together: the shape of everything a shard keeps."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class Columnar:
    """Arrays that grow together.

    Args:
        columns: name to (dtype, shape of one row).
        capacity: rows to begin with.
    """

    def __init__(self, columns: dict[str, tuple[Any, tuple[int, ...]]], capacity: int) -> None:
        self._names = tuple(columns)
        self.capacity = capacity
        self.size = 0
        for name, (dtype, shape) in columns.items():
            setattr(self, name, _blank((capacity, *shape), dtype))

    def grow(self, capacity: int) -> None:
        """Makes room for `capacity` rows."""
        if capacity <= self.capacity:
            return
        self.capacity = max(capacity, 2 * self.capacity)
        for name in self._names:
            old = getattr(self, name)
            new = _blank((self.capacity, *old.shape[1:]), old.dtype)
            new[: self.size] = old[: self.size]
            setattr(self, name, new)

    def keep(self, rows: Rows) -> None:
        """Keeps only these rows, in this order."""
        for name in self._names:
            column = getattr(self, name)
            column[: len(rows)] = column[rows]
            if column.dtype == object:
                column[len(rows) : self.size] = None
        self.size = len(rows)


def _blank(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    return np.full(shape, None) if np.dtype(dtype).kind == "O" else np.zeros(shape, dtype)
