"""The partitioners agree with the clients they stand for, and batches with single keys."""

import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.partitioner import murmur2, murmur2_batch, partition_for, partitions_for

# From the tests of Kafka's own client (UtilsTest.testMurmur2).
KAFKA_VECTORS = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("data", "expected"), KAFKA_VECTORS)
def test_murmur2_gives_the_hashes_of_kafkas_own_tests(data: bytes, expected: int) -> None:
    """Every vector of the Java client is met, sign included."""
    assert expected == murmur2(data)


def test_murmur2_of_nothing_is_defined() -> None:
    """The empty key hashes, as it does in Java."""
    assert 275646681 == murmur2(b"")


@pytest.mark.parametrize(("data", "expected"), KAFKA_VECTORS)
def test_murmur2_partitions_are_of_the_positive_hash(data: bytes, expected: int) -> None:
    """The sign bit is cleared, not negated, before the remainder."""
    assert (expected & 0x7FFFFFFF) % 12 == partition_for(data, "murmur2", 12)


def test_crc32_partitions_are_of_the_unsigned_checksum() -> None:
    """The remainder is that of the unsigned CRC-32, as in librdkafka."""
    key = b"N14228"
    assert 0xCBF43926 == zlib.crc32(b"123456789")
    assert zlib.crc32(key) % 7 == partition_for(key, "crc32", 7)


@given(st.lists(st.binary(max_size=40), max_size=40), st.integers(1, 1000))
def test_batches_agree_with_single_keys(keys: list[bytes], partitions: int) -> None:
    """A batch of keys of any length and any bytes gives what each key gives alone."""
    assert [murmur2(key) & 0xFFFFFFFF for key in keys] == murmur2_batch(keys).tolist()
    for partitioner in ("murmur2", "crc32"):
        expected = [partition_for(key, partitioner, partitions) for key in keys]
        assert expected == partitions_for(keys, partitioner, partitions).tolist()


def test_a_batch_of_16384_keys_takes_milliseconds() -> None:
    """The policy can afford the check on every batch; the bound is loose, for busy machines."""
    keys = [b"shipment-%d" % (i * 7919) for i in range(16_384)]
    best = min(_seconds(keys) for _ in range(5))
    assert best < 0.1, f"{best * 1e3:.1f} ms"


def _seconds(keys: list[bytes]) -> float:
    start = time.perf_counter()
    partitions_for(keys, "murmur2", 4)
    return time.perf_counter() - start
