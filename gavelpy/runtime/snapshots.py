"""Snapshots of code: archives named by their SHA-256, which clients write and nodes unpack for a job.

    <checkpoint directory>/snapshots/<sha256>.tar.gz

`make_archive` writes the files of a directory in a fixed order without times and owners, so the same files give the
same archive and name. In a git work tree these are the tracked files and those that git does not ignore; elsewhere all
files, except `.git`, `__pycache__` and virtual environments. `store_archive` copies it under a temporary name and
renames it: an archive that exists is only touched, so that the age of a file is the time since its last use.

`unpack` runs on the node with the rights of the job's user. It copies the archive to the node's disk before it checks
the hash, so a file that changes meanwhile is not unpacked. It accepts plain files, directories and relative links
within the archive, and nothing below a link. Standard library only: the shim loads this.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from gavelpy.errors import InvalidInput, RemoteViolation

DIRECTORY: Final = "snapshots"  # below the checkpoint directory
CODE_DIRECTORY: Final = "code"  # below the directory of a lease
BYTES_MAX: Final = 200 << 20  # of the files of a snapshot, unless the caller allows more
UNPACKED_BYTES_MAX: Final = 16 << 30
_COPY_BYTES = 1 << 20
_GIT_S = 60.0
_LARGEST = 5  # files that an error names
_SKIPPED = frozenset({".git", "__pycache__"})


def archive_file(directory: Path, digest: str) -> Path:
    """Path of an archive in a directory of snapshots."""
    return directory / f"{digest}.tar.gz"


def make_archive(source: Path, archive: IO[bytes], bytes_max: int = BYTES_MAX) -> str:
    """Writes the archive of a directory to an open file and returns its SHA-256.

    Raises InvalidInput if the files are larger than `bytes_max`, or cannot be part of a snapshot.
    """
    if not source.is_dir():
        raise InvalidInput(f"snapshot needs a directory that exists, got {str(source)!r}")
    names = sorted(_names(source))
    _check_size(source, names, bytes_max)
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=archive, compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            _add(tar, source, name)
    return _digest(archive)


def store_archive(archive: IO[bytes], digest: str, directory: Path) -> Path:
    """Copies an archive into a directory of snapshots, unless it is there; raises OSError."""
    path = archive_file(directory, digest)
    size = archive.seek(0, os.SEEK_END)
    directory.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size == size:
        if os.access(path, os.W_OK):
            os.utime(path)
        return path
    archive.seek(0)
    with tempfile.NamedTemporaryFile(dir=directory, prefix=f".{digest[:12]}-", delete=False) as copy:
        try:
            shutil.copyfileobj(archive, copy, _COPY_BYTES)
            copy.flush()
            os.fsync(copy.fileno())
            os.fchmod(copy.fileno(), 0o644 & ~_umask())
            Path(copy.name).replace(path)
        except OSError:
            Path(copy.name).unlink(missing_ok=True)
            raise
    return path


def store_snapshot(source: Path, directory: Path | None, bytes_max: int = BYTES_MAX) -> str:
    """Archives a directory, stores the archive unless `directory` is None, and returns its SHA-256."""
    with tempfile.TemporaryFile() as archive:
        digest = make_archive(source, archive, bytes_max)
        if directory is not None:
            try:
                store_archive(archive, digest, directory)
            except OSError as error:
                raise InvalidInput(
                    f"snapshot cannot be stored in {str(directory)!r} ({error.strerror}): check that the directory "
                    "of snapshots (snapshot_directory, GAVEL_SNAPSHOT_DIRECTORY) is mounted and can be written"
                ) from None
    return digest


def _digest(file: IO[bytes]) -> str:
    """The SHA-256 of a whole file."""
    file.seek(0)
    found = hashlib.sha256()
    while content := file.read(_COPY_BYTES):
        found.update(content)
    return found.hexdigest()


def _names(source: Path) -> Iterator[str]:
    """Relative paths of the files and links of a directory."""
    listed = _git_names(source)
    if listed is None:
        yield from _all_names(source, "")
        return
    for name in listed:
        path = source / name
        if path.is_symlink() or path.is_file():
            yield name
        elif path.is_dir():  # a submodule
            yield from (f"{name.rstrip('/')}/{inner}" for inner in _names(path))


def _git_names(source: Path) -> list[str] | None:
    """Tracked files and those that git does not ignore; None outside of a work tree, or without git."""
    command = [
        "git",
        "-C",
        str(source),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        "--deduplicate",
    ]
    try:
        found = subprocess.run(command, capture_output=True, check=True, timeout=_GIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return [name for name in os.fsdecode(found.stdout).split("\0") if name]


def _all_names(directory: Path, prefix: str) -> Iterator[str]:
    for entry in os.scandir(directory):
        if entry.name in _SKIPPED:
            continue
        if (Path(entry.path) / "pyvenv.cfg").exists():
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _all_names(Path(entry.path), f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name


def _check_size(source: Path, names: list[str], bytes_max: int) -> None:
    sizes = {name: (source / name).lstat().st_size for name in names}
    total = sum(sizes.values())
    if total > bytes_max:
        largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_LARGEST]
        shown = ", ".join(f"{name!r} ({_mib(sizes[name])})" for name in largest)
        raise InvalidInput(
            f"snapshot of {str(source)!r} must have at most {_mib(bytes_max)} of files, got {_mib(total)}; the largest "
            f"are {shown}: add them to .gitignore, or raise --snapshot-max"
        )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _add(tar: tarfile.TarFile, source: Path, name: str) -> None:
    path = source / name
    found = path.lstat()
    info = tarfile.TarInfo(name)
    if stat.S_ISLNK(found.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        if not _stays_inside(name, info.linkname):
            raise InvalidInput(
                f"snapshot of {str(source)!r} must have links within the directory only, got {name!r} to "
                f"{info.linkname[:200]!r}: add it to .gitignore and use the path itself in the program"
            )
        tar.addfile(info)
    elif stat.S_ISREG(found.st_mode):
        info.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
        with path.open("rb") as file:
            info.size = os.fstat(file.fileno()).st_size
            tar.addfile(info, file)
    else:
        raise InvalidInput(f"snapshot of {str(source)!r} must have files, directories and links only, got {name!r}")


def unpack(archive: Path, digest: str, target: Path) -> None:
    """Unpacks an archive with this SHA-256 into an empty directory.

    Raises FileNotFoundError if there is no such archive, RemoteViolation if it is not what it should be, OSError if the
    disk fails.
    """
    with tempfile.TemporaryFile(dir=target) as copy:
        _copy(archive, copy)
        if (found := _digest(copy)) != digest:
            raise RemoteViolation(f"the snapshot {archive} is damaged: its SHA-256 is {found}")
        copy.seek(0)
        try:
            with tarfile.open(fileobj=copy, mode="r:gz") as tar:
                _extract(tar, target)
        except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
            raise RemoteViolation(f"the snapshot {archive} cannot be unpacked: {error}") from None


def _copy(archive: Path, copy: IO[bytes]) -> None:
    """Copies a regular file; never blocks on a FIFO."""
    with os.fdopen(os.open(archive, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise RemoteViolation(f"the snapshot {archive} must be a regular file")
        shutil.copyfileobj(source, copy, _COPY_BYTES)


def _extract(tar: tarfile.TarFile, target: Path) -> None:
    links: set[str] = set()
    total = 0
    for member in tar:
        total += member.size
        _check_member(member, links, total)
        if member.issym():
            links.add(member.name)
        tar.extract(member, target, filter="data")


def _check_member(member: tarfile.TarInfo, links: set[str], total: int) -> None:
    parts = member.name.split("/")
    above = {"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    if member.name.startswith("/") or ".." in parts or "" in parts or above & links:
        raise RemoteViolation(f"a snapshot must have paths below its own directory only, got {member.name[:200]!r}")
    if not (member.isreg() or member.isdir() or member.issym()):
        raise RemoteViolation(f"a snapshot must have files, directories and links only, got {member.name[:200]!r}")
    if member.issym() and not _stays_inside(member.name, member.linkname):
        raise RemoteViolation(
            f"a snapshot must have links within its directory only, got {member.name[:200]!r} to "
            f"{member.linkname[:200]!r}"
        )
    if total > UNPACKED_BYTES_MAX:
        raise RemoteViolation(f"a snapshot must have at most {_mib(UNPACKED_BYTES_MAX)} of files")


def _stays_inside(name: str, link: str) -> bool:
    """Whether a link at this relative path leads to a place within the directory, by its text."""
    inside = os.path.normpath(os.path.join(os.path.dirname(name), link))  # noqa: PTH118, PTH120 text, not a file
    return bool(link) and not link.startswith("/") and inside != ".." and not inside.startswith("../")


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
