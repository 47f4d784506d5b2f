"""A folder of this machine as a store; the one store that is not obstore's, because paths are worth more than clients.

Versions are mtime_ns and inode: a rewrite in place changes the one, a replacement the other. Links are followed inside
the root only, so that a dataset cannot make a reader open files that lie elsewhere. Names that are not UTF-8 become
keys by surrogateescape and lead back to the same files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from urllib.parse import quote

from stoker.errors import AccessError, ChangedError, NotFoundError, StoreError, UnsupportedError, UsageError
from stoker.store.atomic import whole_file, write_all
from stoker.store.base import Buffer, ByteRange, ObjectInfo
from stoker.store.keys import TEMPORARY_PREFIX, can_begin_keys, check_key, key_bytes

_COPY_BYTES = 8 << 20
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def file_version(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns}-{found.st_ino}"


def pread_exactly(descriptor: int, piece: ByteRange) -> bytes:
    """The bytes of *piece*, or fewer where the file ends before its stop. One pread(2) moves at most 2 GiB."""
    parts = []
    at = piece.start
    while at < piece.stop:
        part = os.pread(descriptor, piece.stop - at, at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Local:
    """The files under *root*, which is made by the first `put` if it does not exist."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()
        self._real_root = os.path.realpath(self.root)
        self._url = "file://" + quote(os.fsencode(self.root))

    def __repr__(self) -> str:
        return f"Local({str(self.root)!r})"

    @property
    def url(self) -> str:
        return self._url

    def check_there(self) -> None:
        """NotFoundError unless the root is a folder: a list of what is not there is merely empty."""
        if self.root.is_dir():
            return
        if self.root.exists():
            raise NotFoundError(
                f"{self.root} is a file, expected a folder, shards or an archive", "name the folder it lies in"
            )
        raise NotFoundError(f"{self.root}: there is no such folder", "check the path")

    def path(self, key: str) -> Path:
        """The file of *key*; AccessError when a link on the way leads out of the root."""
        path = self.root / check_key(key, self.url)
        self._check_inside(key, os.path.realpath(path))
        return path

    def get(self, key: str, *, version: str | None = None) -> bytes:
        with self._opened(key, version) as (descriptor, size):
            return self._read(key, descriptor, ByteRange(0, size))

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        with self._opened(key, version) as (descriptor, size):
            for piece in ranges:
                if not 0 <= piece.start <= piece.stop <= size:
                    raise StoreError(
                        f"{self.url}: {key!r} holds {size} bytes, asked for bytes {piece.start} to {piece.stop}"
                    )
            return [self._read(key, descriptor, piece) for piece in ranges]

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        target = self.path(key)

        def publish(temporary: Path, to: Path) -> None:
            with self._locked(key, to.parent, required=False):
                temporary.replace(to)

        with self._named(key), whole_file(target, publish=publish) as file:
            write_all(file, memoryview(data).cast("B"))
        return self.head(key)

    def put_if(self, key: str, data: Buffer, *, version: str | None) -> ObjectInfo:
        target = self.path(key)

        def create(temporary: Path, to: Path) -> None:
            try:
                os.link(temporary, to)
            except FileExistsError:
                raise ChangedError(
                    f"{self.url}: {key!r} exists already (version {file_version(to.stat())}), expected none"
                ) from None
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise UnsupportedError(f"{self.url}: the file system has no hard links: {error}") from error
                raise

        def replace(temporary: Path, to: Path) -> None:
            with self._locked(key, to.parent, required=True):
                self._check_version(key, to.stat(), version)
                temporary.replace(to)

        if version is not None and not target.is_file():
            raise ChangedError(f"{self.url}: {key!r} does not exist, expected version {version}")
        with self._named(key), whole_file(target, publish=create if version is None else replace) as file:
            write_all(file, memoryview(data).cast("B"))
        return self.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        start = prefix.rpartition("/")[0]
        folder = self.root / start
        if not can_begin_keys(prefix) or not folder.is_dir() or not self._is_inside(os.path.realpath(folder)):
            return iter(())
        return self._walk(folder, start + "/" if start else "", prefix, frozenset())

    def head(self, key: str) -> ObjectInfo:
        with self._named(key):
            found = self.path(key).stat()
        self._check_file(key, found)
        return ObjectInfo(key, found.st_size, file_version(found))

    def delete(self, key: str) -> None:
        path = self.path(key)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._named(key, missing_ok=True):
            path.unlink()

    def copy(self, source: str, target: str) -> ObjectInfo:
        to = self.path(target)
        with self._opened(source, None) as (descriptor, _), self._named(target), whole_file(to) as file:
            with open(descriptor, "rb", buffering=0, closefd=False) as original:
                shutil.copyfileobj(original, file, _COPY_BYTES)
        return self.head(target)

    def strays(self) -> Iterator[str]:
        """Links below the root that lead out of it or nowhere: what `list` does not show."""
        for folder, names, files in os.walk(self.root):
            for name in sorted(names + files):
                path = Path(folder, name)
                if path.is_symlink() and not (self._is_inside(os.path.realpath(path)) and os.access(path, os.F_OK)):
                    yield path.relative_to(self.root).as_posix()

    def _is_inside(self, real: str) -> bool:
        return real == self._real_root or real.startswith(self._real_root.rstrip("/") + "/")

    def _check_inside(self, key: str, real: str) -> None:
        if not self._is_inside(real):
            raise AccessError(f"{self.url}: {key!r} is a link that leads outside the root, to {real}")

    def _walk(self, folder: Path, base: str, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[ObjectInfo]:
        """Files below *folder*, whose key is *base*, in byte order. *above*: the folders around it, against loops."""
        with self._named(base or "."):
            try:
                here = folder.stat()
                identity = (here.st_dev, here.st_ino)
                if identity in above:
                    return
                with os.scandir(folder) as entries:
                    children = list(filter(None, (self._child(entry, base, prefix) for entry in entries)))
            except FileNotFoundError:
                return  # deleted since the folder above was read
        children.sort(key=itemgetter(0))
        for _, entry, is_folder in children:
            if is_folder:
                yield from self._walk(folder / entry.name, f"{base}{entry.name}/", prefix, above | {identity})
                continue
            try:
                found = entry.stat()
            except FileNotFoundError:
                continue  # deleted since the folder was read
            yield ObjectInfo(base + entry.name, found.st_size, file_version(found))

    def _child(self, entry: os.DirEntry[str], base: str, prefix: str) -> tuple[bytes, os.DirEntry[str], bool] | None:
        """Sort key, the entry and whether it is a folder; None for what a list does not show."""
        if entry.is_symlink() and not self._is_inside(os.path.realpath(entry.path)):
            return None
        try:
            is_folder = entry.is_dir()
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            return None  # a link that leads to itself is no object
        key = f"{base}{entry.name}/" if is_folder else base + entry.name
        if is_folder:
            wanted = key.startswith(prefix) or prefix.startswith(key)
        else:
            wanted = key.startswith(prefix) and not entry.name.startswith(TEMPORARY_PREFIX) and entry.is_file()
        return (key_bytes(key), entry, is_folder) if wanted else None

    @contextlib.contextmanager
    def _opened(self, key: str, version: str | None) -> Iterator[tuple[int, int]]:
        """A descriptor and the size; the version is compared before and after the block."""
        with self._named(key):
            path = f"{self.root}/{check_key(key, self.url)}"
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                self._check_inside(key, _real_path(descriptor, path))
                found = os.fstat(descriptor)
                self._check_file(key, found)
                self._check_version(key, found, version)
                yield descriptor, found.st_size
                self._check_version(key, os.fstat(descriptor), version)
            finally:
                os.close(descriptor)

    def _read(self, key: str, descriptor: int, piece: ByteRange) -> bytes:
        data = pread_exactly(descriptor, piece)
        if len(data) != len(piece):
            raise StoreError(f"{self.url}: {key!r} became shorter while read: expected {len(piece)}, found {len(data)}")
        return data

    def _check_file(self, key: str, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            raise NotFoundError(f"{self.url}: {key!r} is not a file", "name a file, not a folder or device")

    def _check_version(self, key: str, found: os.stat_result, version: str | None) -> None:
        if version is not None and file_version(found) != version:
            raise ChangedError(f"{self.url}: {key!r} changed: expected version {version}, found {file_version(found)}")

    @contextlib.contextmanager
    def _locked(self, key: str, folder: Path, *, required: bool) -> Iterator[None]:
        """Keep other writers out of *folder* for the length of a rename: a lock on the folder leaves no file behind."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS or required:
                os.close(descriptor)
                raise UnsupportedError(f"{self.url}: {key!r}: the file system has no locks: {error}") from error
        try:
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _named(self, key: str, *, missing_ok: bool = False) -> Iterator[None]:
        """Turn the system's errors into the house's, with the store and the key."""
        try:
            yield
        except (StoreError, UsageError):
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            if missing_ok:
                raise
            raise NotFoundError(f"{self.url}: no object {key!r}") from error
        except PermissionError as error:
            raise AccessError(f"{self.url}: {key!r}: {error.strerror}") from error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise StoreError(
                f"{self.url}: {key!r}: {error.strerror}", "make room on the disk" if full else None
            ) from error


def _real_path(descriptor: int, path: str) -> str:
    """Where an open file lies: asked of the kernel, one call that no link changed meanwhile; else resolved by name."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115  # a path object costs as much as the call
    except OSError:
        return os.path.realpath(path)
