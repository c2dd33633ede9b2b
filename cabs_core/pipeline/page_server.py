"""Reports over HTTP, for the links in Dagster: read-only, on this machine alone, and nothing but finished
pages.

`CABS_REPORTS_URL` says where reports are found. `cabs ui` serves them there when the address is http on this
machine and has no path; any other address must be served by other means. Empty: links are file paths. By
default each CABS_HOME has a port of its own, so that the links that runs leave in Dagster lead to the reports
of that home, whichever command made the run, and whatever port the UI has.
"""

import io
import os
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from os import PathLike
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from cabs_core.base.errors import CabsError
from cabs_core.base.hashing import stable_hash
from cabs_core.base.paths import cabs_home, safe_name
from cabs_core.pipeline.artifacts.store import ArtifactStore, Parts
from cabs_core.pipeline.pages import LEADERBOARD, REPORTS

#: first port and number of ports from which a home takes one; below those that systems give to clients
_FIRST_PORT = 20_000
_PORTS = 12_000
_LOCAL = ("127.0.0.1", "localhost")


def _default_url() -> str:
    """Return the address of the reports of this CABS_HOME: a port that follows from the folder's path."""
    port = _FIRST_PORT + int(stable_hash(str(cabs_home().resolve()), 12), 16) % _PORTS
    return f"http://127.0.0.1:{port}"


def reports_url() -> str:
    """Return `CABS_REPORTS_URL` without a slash at its end, or the home's own address if it is not set.

    An empty text means that links are to be file paths.

    Raises:
        CabsError: `CABS_REPORTS_URL` is no http or https address.
    """
    value = os.environ.get("CABS_REPORTS_URL", _default_url()).strip().rstrip("/")
    try:
        parts = urlsplit(value)
        usable = (
            parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        usable = False
    if value and not usable:
        raise CabsError(
            f"CABS_REPORTS_URL is {value!r}: expected an address such as {_default_url()}, or nothing at all "
            "for links that are file paths"
        )
    return value


def page_url(parts: Parts, name: str = "") -> str:
    """Return the address of a page, or of a file beside the page. Empty if no server is configured.

    The leaderboard is at the root, the report of a pool below its name, any other page below its own name
    after `_`, with which no pool's name begins.

    Args:
        parts: where the page lies in the store.
        name: a file beside the page. Empty: the page itself.

    Raises:
        CabsError: as of `reports_url`.
    """
    base = reports_url()
    if not base:
        return ""
    if parts == LEADERBOARD:
        return f"{base}/{name}"
    if parts[0] == REPORTS:
        folder = parts[1]
    else:
        folder = f"_{parts[0]}"
    return f"{base}/{folder}/{name}"


def _parts(folder: str) -> Parts:
    """Return the place in the store of the page that the server has in a folder: the inverse of `page_url`.

    Raises:
        PoolError: no page has such a name.
    """
    if not folder:
        return LEADERBOARD
    if folder[0] == "_":
        return (safe_name(folder[1:]),)
    return (REPORTS, safe_name(folder))


def page_server(store: ArtifactStore) -> ThreadingHTTPServer | None:
    """Return a bound server of the store's reports, to be run by `serve_forever`.

    Return None if `CABS_REPORTS_URL` is no http address of this machine, or has a path, under which another
    server must stand.

    Raises:
        CabsError: the port of the address cannot be used; the message says what to do.
    """
    address = urlsplit(reports_url())
    if address.scheme != "http" or address.hostname not in _LOCAL or address.path:
        return None
    port = address.port or 80
    handler = type("_StorePages", (_Pages,), {"store": store})
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise CabsError(
            f"port {port} of 127.0.0.1, where reports are to be served, cannot be used ({error.strerror}): "
            f"name another one, CABS_REPORTS_URL=http://127.0.0.1:{port + 1}, or none, CABS_REPORTS_URL="
        ) from None
    server.daemon_threads = True
    return server


class _Pages(SimpleHTTPRequestHandler):
    """Request handler for the files that the record of a page lists, and no others."""

    store: ArtifactStore
    server_version = "cabs"
    sys_version = ""
    timeout = 30

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal belongs to Dagster."""

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        """Answer 403 if the request names a host other than this machine, else send the file's headers."""
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _LOCAL:  # a name that somebody else points at this machine
            self.send_error(HTTPStatus.FORBIDDEN, "Only 127.0.0.1 and localhost are served")
            return None
        return super().send_head()

    def guess_type(self, path: str | PathLike[str]) -> str:
        """Return the media type of a file; texts and JSON are in UTF-8."""
        kind = super().guess_type(path)
        if kind.startswith("text/") or kind == "application/json":
            return f"{kind}; charset=utf-8"
        return kind

    def end_headers(self) -> None:
        """End the headers after `Cache-Control: no-cache` and `X-Content-Type-Options: nosniff`."""
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def translate_path(self, path: str) -> str:
        """Return the local path of `/`, `/<file>`, `/<folder>/` or `/<folder>/<file>`, empty for any other.

        The path is also empty for a file that the page's record does not list.
        """
        folder, slash, name = unquote(urlsplit(path).path).removeprefix("/").partition("/")
        if not slash:
            name = folder
            folder = ""
        name = name or "index.html"
        try:
            parts = _parts(folder)
            record = self.store.record(parts)
            if record is None or not {name, "index.html"} <= record.files.keys():
                return ""  # there is no record, or the record is of no page
            return str(self.store.folder(parts) / name)
        except (CabsError, OSError):
            return ""
