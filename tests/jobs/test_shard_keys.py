"""The keys of shards: their spread over subtasks, and that they are what Flink makes of them."""

import numpy as np
import pytest

from jobs.shard_keys import key_groups, max_parallelism, shard_keys, subtask_of


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 7, 8, 12, 31, 64, 100])
def test_shards_spread_evenly_at_any_parallelism(partitions: int) -> None:
    """No subtask has two shards more than another, at any parallelism up to the partitions."""
    groups = max_parallelism(partitions)
    owned = key_groups(np.array(shard_keys(partitions), np.int64), groups)
    for parallelism in range(1, partitions + 1):
        shards = np.bincount(
            [subtask_of(group, parallelism, groups) for group in owned.tolist()],
            minlength=parallelism,
        )
        assert shards.max() - shards.min() <= 1, (parallelism, shards.tolist())


@pytest.mark.parametrize("partitions", [1, 4, 128, 1000])
def test_every_shard_has_a_key_of_its_own(partitions: int) -> None:
    """Two shards under one key would share their state."""
    assert partitions == len(set(shard_keys(partitions)))


def test_key_groups_are_those_of_flink() -> None:
    """Checked against KeyGroupRangeAssignment.assignToKeyGroup of Flink 2.3."""
    known = {
        (0, 128): 33,
        (1, 128): 44,
        (2, 128): 97,
        (7, 128): 17,
        (1000, 128): 5,
        (123456, 128): 21,
        (2000000000, 128): 123,
        (0, 8192): 3233,
        (1, 8192): 7724,
        (99999, 32768): 31452,
    }
    for (key, groups), expected in known.items():
        assert expected == key_groups(np.array([key], np.int64), groups)[0], (key, groups)


def test_keys_never_change() -> None:
    """The keys are part of every savepoint."""
    assert (299, 238, 8, 101) == shard_keys(4)
    assert (128, 128, 128, 32768) == tuple(map(max_parallelism, (1, 4, 8, 1000)))
