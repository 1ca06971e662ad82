"""The Flink key of each shard, chosen so that shards spread evenly over subtasks.

Flink hashes a key into one of `max_parallelism` key groups and gives each subtask a contiguous
range of groups. Small integers hash unevenly: the keys 0 to 7 leave one of four subtasks with
nothing. So each partition gets an integer whose group is the middle of the partition's even share
of all groups; then every subtask has as many shards as any other, give or take one, at any
parallelism up to the number of partitions. (Beyond 128 partitions, Flink's bound on the groups
leaves some middles on the wrong side of a border, and it may be two.)

Danger: the keys, and the max parallelism they are chosen for, decide where state lies. Both are
functions of the number of partitions alone, and neither may ever change for a running job.
"""

import numpy as np
from numpy.typing import NDArray

_UINT32 = 0xFFFF_FFFF
#: Flink's own bound on the number of key groups.
_MAX_GROUPS = 1 << 15
_CANDIDATES = 1 << 16


def max_parallelism(partitions: int) -> int:
    """Returns the number of key groups for a number of partitions: a power of two, 128 or more."""
    # The middle of a share and the border of a subtask's range, at any parallelism up to the
    # partitions, are equal or at least 1 / (2 * partitions**2) apart: finer groups keep them apart.
    wanted = max(128, 2 * partitions * partitions)
    return min(_MAX_GROUPS, 1 << (wanted - 1).bit_length())


def shard_keys(partitions: int) -> tuple[int, ...]:
    """Returns the key of each partition's shard, all of them different."""
    groups = max_parallelism(partitions)
    # Rounded up, because a border belongs to the range above it.
    middles = [-(-(2 * p + 1) * groups // (2 * partitions)) for p in range(partitions)]
    waiting: dict[int, list[int]] = {}
    for partition in reversed(range(partitions)):
        waiting.setdefault(middles[partition], []).append(partition)
    keys = [-1] * partitions
    start = 0
    while waiting:
        found = key_groups(np.arange(start, start + _CANDIDATES, dtype=np.int64), groups)
        for at in np.flatnonzero(np.isin(found, list(waiting))).tolist():
            group = int(found[at])
            if group in waiting:
                keys[waiting[group].pop()] = start + at
                if not waiting[group]:
                    del waiting[group]
        start += _CANDIDATES
    return tuple(keys)


def key_groups(keys: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    """Returns the key group of each integer key, as Flink computes it for a PyFlink INT key.

    PyFlink wraps the key into a row of one field, whose hash code is 62 + key; Flink then takes a
    murmur hash of it (`MathUtils.murmurHash`), made positive, modulo the number of groups.
    """
    h = (keys.astype(np.uint64) + np.uint64(62)) & np.uint64(_UINT32)
    h = _times(h, 0xCC9E2D51)
    h = _times(_rotated(h, 15), 0x1B873593)
    h = (_times(_rotated(h, 13), 5) + np.uint64(0xE6546B64)) & np.uint64(_UINT32)
    h ^= np.uint64(4)
    h ^= h >> np.uint64(16)
    h = _times(h, 0x85EBCA6B)
    h ^= h >> np.uint64(13)
    h = _times(h, 0xC2B2AE35)
    h ^= h >> np.uint64(16)
    signed = h.astype(np.uint32).view(np.int32).astype(np.int64)
    positive = np.where(signed == -(1 << 31), 0, np.abs(signed))
    return np.asarray(positive % groups, np.int64)


def subtask_of(group: int, parallelism: int, groups: int) -> int:
    """Returns the subtask that owns a key group."""
    return group * parallelism // groups


def _times(h: NDArray[np.uint64], by: int) -> NDArray[np.uint64]:
    # Both factors are below 2**32, so nothing is lost before the mask.
    return np.asarray((h * np.uint64(by)) & np.uint64(_UINT32), np.uint64)


def _rotated(h: NDArray[np.uint64], by: int) -> NDArray[np.uint64]:
    turned = (h << np.uint64(by)) | (h >> np.uint64(32 - by))
    return np.asarray(turned & np.uint64(_UINT32), np.uint64)
