"""What lies in a savepoint: the position of each partition, and what its state was made under.

Found by reading its files for the mark that the bytes of every shard begin with; no Flink is
needed, and none of the keys are decoded. So a wrong savepoint is refused before a job is stopped or
started, not by the operator afterwards, which refuses it again in any case.

Danger: a state backend may compress its files (RocksDB does, outside a canonical savepoint). Then
nothing is found, and that is told as "cannot be looked into", never as "empty".
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import fs

from operators.codec import SHARD_MARK, decode_shard

_READ_BYTES = 1 << 25
#: More than the bytes of any shard, which hold a spec and the digests of its models.
_SHARD_BYTES = 1 << 20
#: Of a value's length, which stands before it.
_LENGTH_BYTES = 4


class SavepointError(RuntimeError):
    """A savepoint that cannot be read: what was found, what is needed, the remedy."""


def read_positions(uri: str) -> dict[int, dict[str, Any]]:
    """Returns the newest shard of each partition in a savepoint, decoded.

    Args:
        uri: the savepoint's directory: a path, or a URI that pyarrow can open (file, s3, gs, hdfs).

    Raises:
        SavepointError: it cannot be read, or is no savepoint.
        StateRefused: a shard of another layout version.
    """
    found: dict[int, dict[str, Any]] = {}
    for filesystem, path in _files(uri):
        for text in _texts(filesystem, path, uri):
            position = decode_shard(text)
            before = found.get(position["partition"])
            if before is None or before["last_offset"] < position["last_offset"]:
                found[position["partition"]] = position
    return found


def _files(uri: str) -> list[tuple[Any, str]]:
    try:
        if "://" in uri or uri.startswith("file:"):
            filesystem, path = fs.FileSystem.from_uri(_standard(uri))
        else:
            filesystem, path = fs.LocalFileSystem(), uri
        listed = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise SavepointError(
            f"no savepoint at {uri}\n"
            f"  found:  {error}\n"
            "  needed: the directory that `tidegate savepoint` or `stop` printed\n"
            "  remedy: correct it, or make its file system reachable from here"
        ) from None
    files = [each.path for each in listed if each.is_file]
    if not any(path.rpartition("/")[2] == "_metadata" for path in files):
        raise SavepointError(
            f"no savepoint at {uri}\n"
            f"  found:  {len(files)} files, no _metadata\n"
            "  needed: the directory of one complete savepoint or checkpoint\n"
            "  remedy: name the directory that holds _metadata (savepoint-… or chk-…)"
        )
    return [(filesystem, path) for path in sorted(files)]


def _texts(filesystem: Any, path: str, uri: str) -> list[bytes]:
    try:
        with filesystem.open_input_stream(path) as stream:
            return list(_marked(stream))
    except OSError as error:
        raise SavepointError(
            f"{uri} cannot be read\n"
            f"  found:  {error}\n"
            "  remedy: name another one; a checkpoint of a running job may be deleted meanwhile"
        ) from None


def _standard(uri: str) -> str:
    """Flink writes file:/path for what everyone else writes file:///path; and s3a, s3p for s3."""
    if uri.startswith("file:") and not uri.startswith("file://"):
        return "file://" + uri.removeprefix("file:")
    scheme, separator, rest = uri.partition("://")
    return f"s3{separator}{rest}" if scheme in ("s3a", "s3p") else uri


def _marked(stream: Any) -> Iterator[bytes]:
    """The JSON of every shard in a stream, wherever the pieces read happen to end."""
    buffer = b""
    while True:
        piece = stream.read(_READ_BYTES)
        buffer += piece
        # A shard near the end may lack its rest; it is looked at with the next piece.
        sure = max(len(buffer) - _SHARD_BYTES, 0) if piece else len(buffer)
        at = buffer.find(SHARD_MARK)
        while 0 <= at < sure:
            found = _json_at(buffer, at)
            if found is not None:
                yield found
            at = buffer.find(SHARD_MARK, at + 1)
        if not piece:
            return
        buffer = buffer[max(sure - _LENGTH_BYTES, 0) :]


def _json_at(buffer: bytes, at: int) -> bytes | None:
    """The JSON of the shard at a mark; None if the mark stands in somebody's event.

    The engine writes the length of a value before it, so a mark within another value is told from
    one that a value begins with.
    """
    length = int.from_bytes(buffer[max(at - _LENGTH_BYTES, 0) : at], "big")
    text = buffer[at : at + length]
    return text if len(SHARD_MARK) < length <= _SHARD_BYTES and text.endswith(b"}") else None
