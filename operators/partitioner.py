"""Which partition a key belongs to, as the producers decide it.

Two rules are in use: that of Kafka's Java clients (murmur2) and that of librdkafka (crc32, its
`consistent` and `consistent_random` partitioners). A record in another partition than its key's
would give one key two states, so the spec names the rule and the policy rejects what breaks it.

The danger is a hash that agrees on short ASCII keys only: signedness, the tail of one to three
bytes and bytes over 127 are where ports of murmur2 go wrong. The batch form works on arrays, keys
of one length at a time; tests hold it against the scalar form, and that against Kafka's own
vectors.
"""

import zlib
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Partitioner = Literal["murmur2", "crc32"]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def murmur2(data: bytes) -> int:
    """Returns the murmur2 hash of Kafka's Java client, as the signed 32-bit integer it is."""
    length = len(data)
    h = _SEED ^ length
    tail_at = length & ~3
    for at in range(0, tail_at, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if tail_at < length:
        h = (h ^ int.from_bytes(data[tail_at:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h > _POSITIVE else h


def partition_for(key: bytes, partitioner: Partitioner, partitions: int) -> int:
    """Returns the partition that producers with this partitioner choose for a key."""
    if partitioner == "murmur2":
        return (murmur2(key) & _POSITIVE) % partitions
    return zlib.crc32(key) % partitions


def partitions_for(
    keys: Sequence[bytes], partitioner: Partitioner, partitions: int
) -> NDArray[np.int64]:
    """Returns the partition of each of many keys, int64, shape (n,); equal to `partition_for`."""
    if partitioner == "murmur2":
        return (murmur2_batch(keys) & np.uint32(_POSITIVE)).astype(np.int64) % partitions
    return np.fromiter(map(zlib.crc32, keys), dtype=np.int64, count=len(keys)) % partitions


def murmur2_batch(keys: Sequence[bytes]) -> NDArray[np.uint32]:
    """Returns the murmur2 hash of each key as unsigned 32-bit integers, shape (n,)."""
    lengths = np.fromiter(map(len, keys), dtype=np.int64, count=len(keys))
    hashes = np.empty(len(keys), dtype=np.uint32)
    if len(keys) == 0:
        return hashes
    order = np.argsort(lengths, kind="stable")
    found, starts = np.unique(lengths[order], return_index=True)
    for length, at in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        joined = b"".join([keys[i] for i in at.tolist()])
        rows = np.frombuffer(joined, dtype=np.uint8).reshape(len(at), length)
        hashes[at] = _murmur2_rows(rows)
    return hashes


def _murmur2_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Hashes keys of one length, shape (n, length); uint32 arrays wrap around as in Java."""
    n, length = rows.shape
    m = np.uint32(_M)
    h = np.full(n, _SEED ^ length, dtype=np.uint32)
    tail_at = length & ~3
    words = np.ascontiguousarray(rows[:, :tail_at]).view("<u4").astype(np.uint32, copy=False)
    for word in words.T:
        k = word * m
        k ^= k >> np.uint32(24)
        h = (h * m) ^ (k * m)
    if tail_at < length:
        for place, column in enumerate(rows[:, tail_at:].T):
            h ^= column.astype(np.uint32) << np.uint32(8 * place)
        h *= m
    h ^= h >> np.uint32(13)
    h *= m
    return h ^ (h >> np.uint32(15))
