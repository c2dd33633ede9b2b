"""Access to an object store such as `s3://bucket/prefix`, or to any other fsspec URL.

Errors of all drivers become StorageError in a block under `Bucket.reaching`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cabs_core.base.errors import CabsError, StorageError

#: protocols whose URLs begin with a bucket
_WITH_BUCKET = ("s3", "s3a", "gs", "gcs", "az", "abfs", "r2", "oss")


class Bucket:
    """A prefix of an object store.

    Args:
        url: fsspec URL of the prefix.
        setting: name of the setting that has the URL, for messages.
        listings: True if lists of files may come from fsspec's cache.

    Attributes:
        fs: fsspec's file system.
        root: the prefix in the notation of `fs`.

    Raises:
        StorageError: there is no driver for the URL.
    """

    def __init__(self, url: str, setting: str, *, listings: bool = True):
        from fsspec.core import url_to_fs  # noqa: PLC0415  (for stores that are not on this machine)

        self.url = url.rstrip("/")
        self.setting = setting
        if listings:
            caching = {}
        else:
            caching = {"use_listings_cache": False}
        try:
            self.fs, root = url_to_fs(self.url, **caching)
        except (ImportError, ValueError) as error:
            raise StorageError(
                f"{setting} is {url}, which cannot be opened: {error}. It takes a folder, or a URL whose "
                "fsspec driver is installed (s3://bucket/prefix: pip install s3fs)"
            ) from error
        self.root = str(root).rstrip("/")

    def path(self, *names: str) -> str:
        """Return the path of a file or a prefix below this prefix, in the notation of `fs`."""
        return "/".join((self.root, *names))

    @contextmanager
    def reaching(self, *names: str) -> Iterator[None]:
        """Turn errors of a driver into StorageError, except FileNotFoundError.

        Args:
            names: path below the prefix that the code of the block reads or writes, for the message.
        """
        try:
            yield
        except (CabsError, FileNotFoundError):
            raise
        except Exception as error:  # each driver has errors of its own
            raise self.unreachable(error, *names) from error

    def unreachable(self, error: Exception, *names: str) -> StorageError:
        """Return the StorageError of a failed driver, whose message has the place, the reason and advice.

        Args:
            error: error of the driver.
            names: path below the prefix that was read or written.
        """
        place = "/".join((self.url, *names))
        kind = type(error).__name__
        return StorageError(
            f"{place} cannot be read or written ({kind}: {str(error)[:300]}). {self.setting} is {self.url}: "
            "check the bucket, the credentials and the endpoint of this machine (AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL). What was finished before is kept, and the next run "
            "goes on from there"
        )

    def put(self, folder: Path, names: Iterable[str], *below: str) -> None:
        """Upload files of a folder in the given order.

        Errors of the driver are raised as they are, unless the call is in a block under `reaching`.

        Args:
            folder: local folder.
            names: paths of the files below the folder.
            below: path below the prefix to upload to.

        Raises:
            StorageError: the bucket does not exist. Some drivers would create a bucket of any name. Only URLs
                that begin with a bucket, such as `s3://`, are checked.
        """
        bucket = self.root.split("/", 1)[0]
        if self.url.split("://", 1)[0] in _WITH_BUCKET and not self.fs.exists(bucket):
            raise self.unreachable(FileNotFoundError(f"there is no bucket {bucket!r}"), *below)
        for name in names:
            target = self.path(*below, name)
            self.fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            self.fs.put_file(str(folder / name), target)
