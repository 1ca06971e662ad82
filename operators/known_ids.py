"""Which event ids are surely new: what makes duplicate detection cheap, and decides nothing."""

import numpy as np
from numpy.typing import NDArray

from operators.policy import Bools, Int64s


class KnownIds:
    """Tells event ids that are surely new from those that may be known: a Bloom filter.

    Two probes into a table of bytes, 16 for each id at the most: about one new id in a hundred is
    doubted then, which costs a look-up and decides nothing.
    """

    _BYTES_PER_ID = 16
    _MIX = np.uint64(0x9E3779B97F4A7C15)

    def __init__(self) -> None:
        self._table = np.zeros(1 << 16, np.bool_)
        self.size = 0

    @property
    def full(self) -> bool:
        """Whether it should be made anew."""
        return self.size * self._BYTES_PER_ID > len(self._table)

    def renew(self, room: int) -> None:
        """Forgets everything, and makes room for so many ids."""
        size = max(room * self._BYTES_PER_ID, 1 << 16)
        self._table = np.zeros(1 << (size - 1).bit_length(), np.bool_)
        self.size = 0

    def doubtful(self, slots: Int64s, ids: NDArray[np.object_]) -> Bools:
        """Adds the ids of some keys; tells which may have been there before, or twice.

        Args:
            slots: the keys' slots, shape (n,).
            ids: event ids, None for none, which is never known, shape (n,).
        """
        mixed = self._mixed(slots, ids)
        first, second = self._probes(mixed)
        doubtful = self._table[first] & self._table[second]
        self._table[first] = self._table[second] = True
        self.size += len(slots)
        order = np.argsort(mixed, kind="stable")
        doubtful[order[1:]] |= mixed[order[1:]] == mixed[order[:-1]]
        none = ids == None  # noqa: E711 (element by element)
        return doubtful & ~none if none.any() else doubtful

    def _mixed(self, slots: Int64s, ids: NDArray[np.object_]) -> NDArray[np.uint64]:
        hashes = np.fromiter(map(hash, ids.tolist()), np.int64, len(ids)).view(np.uint64)
        mixed: NDArray[np.uint64] = (hashes ^ slots.view(np.uint64) * self._MIX) * self._MIX
        return mixed

    def _probes(self, mixed: NDArray[np.uint64]) -> tuple[Int64s, Int64s]:
        bits = np.uint64(len(self._table).bit_length() - 1)
        first = mixed >> (np.uint64(64) - bits)
        second = (mixed * self._MIX) >> (np.uint64(64) - bits)
        return first.view(np.int64), second.view(np.int64)
