"""The manifest beside a log file: what the file should hold, so that a copy cut short is found."""

import hashlib
from pathlib import Path
from typing import Annotated, Final

import msgspec

from schemas.log_columns import LogError
from schemas.log_order import Count, PartitionRange, Positions

FORMAT: Final = "tidegate.log/1"


class Manifest(msgspec.Struct, frozen=True):
    """What a log file should hold; partitions without a record are counted but not listed."""

    format: str
    partitions: Annotated[int, msgspec.Meta(ge=1)]
    rows: Count
    bytes: Count
    sha256: str
    offsets: list[PartitionRange]


def manifest_path(path: Path | str) -> Path:
    """Returns where the manifest of a log file lies."""
    path = Path(path)
    return path.with_name(path.name + ".manifest.json")


def read_manifest(path: Path | str) -> Manifest | None:
    """Reads the manifest of a log file; None if it has none.

    Raises:
        LogError: the manifest cannot be read as one.
    """
    file = manifest_path(path)
    try:
        manifest = msgspec.json.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise _no_manifest(file, str(error)) from error
    if manifest.format != FORMAT:
        raise _no_manifest(file, f"format {manifest.format!r}")
    return manifest


def _no_manifest(file: Path, found: str) -> LogError:
    return LogError(
        file,
        "not a manifest of a log",
        found=found,
        needed=f"JSON with format {FORMAT!r}, as written beside the log",
        remedy="remove the file to read the log without its checks, or write the log again",
    )


def file_digest(path: Path) -> str:
    """Returns the digest of a file's bytes, `sha256:...`."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def checked_manifest(path: Path, partitions: int | None) -> Manifest | None:
    """Reads the manifest of a log file and checks what can be known before a row is read.

    Raises:
        LogError: the file has another size, or the topic another number of partitions.
    """
    manifest = read_manifest(path)
    if manifest is None:
        return None
    if manifest.bytes != (size := path.stat().st_size):
        raise differs(path, "size", f"{size} bytes", f"{manifest.bytes} bytes")
    if partitions is not None and manifest.partitions != partitions:
        raise LogError(
            path,
            "the log is of a topic with another number of partitions",
            found=f"{manifest.partitions} partitions in {manifest_path(path).name}",
            needed=f"{partitions} partitions, as the spec says",
            remedy="set source.partitions to the topic's; where the topic grew, its keys changed "
            "partitions: republish it into a new topic under a new generation",
        )
    return manifest


def check_complete(path: Path, manifest: Manifest, here: Positions) -> None:
    """Checks that a file that was read to its end held what its manifest says.

    Raises:
        LogError: rows or offsets of a partition differ.
    """
    expected = {entry.partition: entry for entry in manifest.offsets}
    for partition in sorted(expected.keys() | here.ranges.keys()):
        found, needed = here.ranges.get(partition), expected.get(partition)
        if found != needed:
            raise differs(path, f"partition {partition}", _span(found), _span(needed))


def _span(entry: PartitionRange | None) -> str:
    if entry is None:
        return "no rows"
    return f"{entry.rows} rows, offsets {entry.first_offset} to {entry.last_offset}"


def differs(path: Path, what: str, found: str, needed: str) -> LogError:
    """Makes the refusal of a file that is not the one its manifest describes."""
    return LogError(
        path,
        f"the file is not the one its manifest describes ({what})",
        found=found,
        needed=f"{needed}, as {manifest_path(path).name} says",
        remedy="copy log and manifest together again; if the log was changed on purpose, "
        "remove the manifest",
    )
