"""An object store: `s3://bucket/prefix`, or any other fsspec URL; what drivers raise becomes one error."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cabs_core.base.errors import CabsError, StorageError

#: protocols whose URLs begin with a bucket
_WITH_BUCKET = ("s3", "s3a", "gs", "gcs", "az", "abfs", "r2", "oss")


class Bucket:
    """A prefix of an object store.

    Args:
        setting: where the URL was given, for errors. listings: whether lists of files may be a while old.

    Attributes:
        fs: fsspec's file system. root: the prefix as `fs` names it.

    Raises:
        StorageError: there is no driver for the URL.
    """

    def __init__(self, url: str, setting: str, *, listings: bool = True):
        from fsspec.core import url_to_fs  # noqa: PLC0415  (for stores that are not on this machine)

        self.url, self.setting = url.rstrip("/"), setting
        try:
            self.fs, root = url_to_fs(self.url, **({} if listings else {"use_listings_cache": False}))
        except (ImportError, ValueError) as error:
            raise StorageError(
                f"{setting} is {url}, which cannot be opened: {error}. It takes a folder, or a URL whose "
                "fsspec driver is installed (s3://bucket/prefix: pip install s3fs)"
            ) from error
        self.root = str(root).rstrip("/")

    def path(self, *names: str) -> str:
        """A file or prefix below, as `fs` names it."""
        return "/".join((self.root, *names))

    @contextmanager
    def reaching(self, *names: str) -> Iterator[None]:
        """Turn what a driver raises into StorageError, FileNotFoundError aside. names: what is reached."""
        try:
            yield
        except (CabsError, FileNotFoundError):
            raise
        except Exception as error:  # each driver has errors of its own
            raise self.unreachable(error, *names) from error

    def unreachable(self, error: Exception, *names: str) -> StorageError:
        """The error of a store that does not do what it is told."""
        place, kind = "/".join((self.url, *names)), type(error).__name__
        return StorageError(
            f"{place} cannot be read or written ({kind}: {str(error)[:300]}). {self.setting} is {self.url}: "
            "check the bucket, the credentials and the endpoint of this machine (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL). What was finished before is kept, and the next run "
            "goes on from there"
        )

    def put(self, folder: Path, names: Iterable[str], *below: str) -> None:
        """Upload files of a folder in this order.

        Raises:
            StorageError: there is no such bucket; some drivers would make one of any name.
        """
        bucket = self.root.split("/", 1)[0]
        if self.url.split("://", 1)[0] in _WITH_BUCKET and not self.fs.exists(bucket):
            raise self.unreachable(FileNotFoundError(f"there is no bucket {bucket!r}"), *below)
        for name in names:
            target = self.path(*below, name)
            self.fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self.fs.put_file(str(folder / name), target)
