"""What is sent to a cluster: the spec with its models, and the code, each as one archive.

    <releases>/<name>/<id>/
        job.zip        spec.json, models/0/..., models/1/...
        code.zip       the packages schemas, operators and jobs
        release.json   what it is, and how it was submitted last

A release is written once and never changed; its id is a digest of what is in it. `upgrade` puts the
one before back from here, so the directory belongs on a disk that outlives the machine that
submits. Secrets are not in it: the spec names environment variables.
"""

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from operators.model_file import read_model
from operators.scorer import Scorer
from schemas.spec import Spec, with_model_paths

#: The packages that the workers import.
_PACKAGES = ("schemas", "operators", "jobs")
_ROOT = Path(__file__).parents[1]
#: Zip files hold local times; a constant one makes equal contents equal bytes.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)

#: Where the archive of the job lies in the working directory of a Python worker.
SHIPPED_AS = "job"
#: The job spec as the workers find it.
SHIPPED_SPEC = f"{SHIPPED_AS}/spec.json"


class ReleaseError(RuntimeError):
    """A release that is not there: what was looked for, where, and the remedy."""


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """One release.

    Attributes:
        id: digest of the archives.
        name: name of the job spec.
        generation: its generation.
        partitions: partitions of its source.
        spec_digest: digest of everything that decides records.
        models: digests of its models, in the order they take over.
    """

    id: str
    name: str
    generation: int
    partitions: int
    spec_digest: str
    models: tuple[str, ...]


def releases_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where releases are kept: TIDEGATE_RELEASES, or the user's state directory."""
    if environ.get("TIDEGATE_RELEASES"):
        return Path(environ["TIDEGATE_RELEASES"])
    state = environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    return base / "tidegate" / "releases"


def make_release(scorer: Scorer, into: Path) -> tuple[Release, Path]:
    """Writes the release of a job spec unless it is there already.

    Args:
        scorer: the spec, with its models loaded and checked.
        into: the directory of releases.

    Returns:
        The release, and its directory.
    """
    spec = scorer.spec
    job, code = _zipped(dict(_job_files(spec))), _zipped(dict(_code_files()))
    release = Release(
        id=hashlib.sha256(hashlib.sha256(job).digest() + hashlib.sha256(code).digest()).hexdigest()[
            :16
        ],
        name=spec.name,
        generation=spec.generation,
        partitions=spec.source.partitions,
        spec_digest=scorer.spec_digest,
        models=tuple(model.digest for model in scorer.models),
    )
    folder = into / spec.name / release.id
    if not (folder / "release.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "job.zip").write_bytes(job)
        (folder / "code.zip").write_bytes(code)
        described = msgspec.json.format(msgspec.json.encode(release), indent=2)
        (folder / "release.json").write_bytes(described + b"\n")  # last: it says all is there
    return release, folder


def read_release(into: Path, name: str, release_id: str) -> tuple[Release, Path]:
    """Returns a release that was made before, and its directory.

    Raises:
        ReleaseError: it is not there.
    """
    folder = into / name / release_id
    try:
        content = (folder / "release.json").read_bytes()
        return msgspec.json.decode(content, type=Release), folder
    except (OSError, msgspec.DecodeError):
        raise ReleaseError(
            f"release {release_id} of job {name!r} is not here\n"
            f"  found:  nothing that can be read in {folder}\n"
            "  needed: the release that is running, to put it back if the new one fails\n"
            "  remedy: run this where it was submitted, or let TIDEGATE_RELEASES name a copy of "
            "that machine's directory"
        ) from None


def release_spec(folder: Path, unpacked: Path) -> Path:
    """Unpacks the job of a release; returns the path of its spec."""
    with zipfile.ZipFile(folder / "job.zip") as archive:
        archive.extractall(unpacked)
    return unpacked / "spec.json"


def _job_files(spec: Spec) -> Iterator[tuple[str, bytes]]:
    shipped = with_model_paths(spec, lambda i, path: f"models/{i}/{Path(path).name}")
    yield "spec.json", msgspec.json.format(msgspec.json.encode(shipped), indent=2)
    for i, path in enumerate([spec.model.path, *(m.path for m in spec.model.next)]):
        content, external = read_model(path)
        yield f"models/{i}/{Path(path).name}", content
        for name, data in external:
            yield f"models/{i}/{name}", data


def _code_files() -> Iterator[tuple[str, bytes]]:
    for package in _PACKAGES:
        for path in sorted((_ROOT / package).rglob("*.py")):
            yield path.relative_to(_ROOT).as_posix(), path.read_bytes()


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _ZIP_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return buffer.getvalue()
