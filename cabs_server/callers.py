"""Callers of the server and their keys. `limits` says how much a caller may send.

CABS_SERVER_KEYS=name=key,...         keys of callers; each scores its own decisions
CABS_SERVER_ADMIN_KEYS=name=key,...   keys that may also score every decision and read /metrics

A server without keys answers programs on this machine only, and pages that this machine serves. It refuses
other pages in a browser, which show by an `Origin` or a `Host` that is not this machine (DNS rebinding), or
by a POST whose body is not declared as JSON. It refuses proxies, which show by HTTP/1.0, `Forwarded`,
`X-Forwarded-*` or `Via`. No address makes a caller an administrator.
"""

import hmac
import ipaddress
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import Request

from cabs_core.base.errors import RouterError

KEYS = "CABS_SERVER_KEYS"
ADMIN_KEYS = "CABS_SERVER_ADMIN_KEYS"
#: name of every caller of a server without keys
LOCAL = "local"
#: characters that a key has at least
_SHORTEST_KEY = 8
#: an unnamed key in base64 whose end is filled with `=`: 16 bytes at least. What is shorter is rather a name
#: whose key is missing, as in `app=$KEY` where the variable is not set
_PADDED_KEY = re.compile(r"[A-Za-z0-9+/_-]{22,}={1,2}")
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_WITH_PORT = re.compile(r":\d+$")


class Refused(Exception):
    """A request that gets an error as its answer.

    Args:
        status: HTTP status. message: sentence for the client. kind: type of the error in OpenAI's words.
        retry_after: seconds after which the client may try again, or None.
    """

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", retry_after: int | None = None
    ):
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.retry_after = retry_after


@dataclass(frozen=True)
class Caller:
    """The sender of a request.

    Attributes:
        name: name of the caller's key, or `LOCAL` if the server has no keys. No key has this name.
        admin: True if the key is an administrator's, who may score every decision and read figures.
    """

    name: str
    admin: bool = False

    @property
    def owner(self) -> str | None:
        """Name of the key whose decisions the caller may score.

        None if the caller may score every decision: for an administrator, and on a server without keys.
        """
        if self.admin or self.name == LOCAL:
            return None
        return self.name


def read_keys(text: str | None, variable: str = KEYS) -> dict[str, str]:
    """Return {name: key} of `name=key,name=key`. One key may stand without a name, and is called `default`.

    A key may end with `=`, with a name and without one.

    Args:
        text: value of the environment variable. None or an empty text gives no keys.
        variable: name of the environment variable, for error messages.

    Raises:
        RouterError: a key has fewer than 8 characters, or a space or other characters that HTTP headers do
            not carry, or a name stands twice, is `LOCAL` or has no key. The message says which entry it is by
            its number, since what looks like a name may be part of a key.
    """
    keys: dict[str, str] = {}
    parts = [part.strip() for part in (text or "").split(",")]
    for number, part in enumerate(filter(None, parts), 1):
        where = f"{variable}, entry {number}"
        name, key = _name_and_key(part, where)
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise RouterError(
                f"{where}: the key has characters that HTTP headers do not carry: letters, digits and signs "
                "of ASCII are possible"
            )
        if len(key) < _SHORTEST_KEY:
            raise RouterError(
                f"{where}: the key has fewer than {_SHORTEST_KEY} characters: make a longer one"
            )
        if name in keys:
            raise RouterError(
                f"{where}: an earlier entry has the same name (a key alone is called default): give each key "
                "a name of its own, as in name=key"
            )
        if name == LOCAL:
            raise RouterError(
                f"{where}: {LOCAL!r} is the name of the callers of a server without keys: call the key by "
                "another name"
            )
        keys[name] = key
    return keys


def _name_and_key(part: str, where: str) -> tuple[str, str]:
    """Return the name and the key of an entry `name=key` or `key`. The name of a key alone is `default`.

    Args:
        where: variable and number of the entry, for the error message.

    Raises:
        RouterError: nothing but `=` follows the first `=`, and the whole is no key in base64.
    """
    name, separator, key = part.partition("=")
    if not separator:
        return "default", part
    if key.strip("="):
        return name, key
    if _PADDED_KEY.fullmatch(part) and len(part) % 4 == 0:
        return "default", part
    raise RouterError(
        f"{where}: no key follows its =: write name=key. Is the variable that holds the key set? A key that "
        "ends with = needs a name if it is short"
    )


@lru_cache(maxsize=256)  # every request asks for the same few names
def is_local(host: str) -> bool:
    """Return True if a host, with or without a port, is a loopback address or `localhost`."""
    names = [host]
    if _WITH_PORT.search(host):
        names.append(host.rpartition(":")[0])
    for name in names:
        with suppress(ValueError):
            return ipaddress.ip_address(name.strip("[]")).is_loopback
    return names[-1].lower() == "localhost"


def check_host(host: str, keys: dict[str, str]) -> None:
    """Check that the server asks for a key if it listens beyond this machine.

    Raises:
        RouterError: `host` is not an address of this machine alone, and `keys` is empty.
    """
    if not is_local(host) and not keys:
        raise RouterError(
            f"--host {host} listens beyond this machine, so it asks for a key: set {KEYS}=name=key, or stay "
            "on 127.0.0.1"
        )


def caller_of(request: Request, keys: dict[str, str], admins: dict[str, str]) -> Caller:
    """Return the caller of a request, by the key that it sends (`_sent_key`).

    Args:
        keys, admins: {name: key} of callers and of administrators.

    Raises:
        Refused: the key is wrong or missing. A server without keys raises it for a request that a page of
            another host, a proxy or another machine may have sent.
    """
    if not keys and not admins:
        _refuse_proxy(request)
        _refuse_page(request)
        return Caller(LOCAL)
    sent = _sent_key(request).encode()
    for group, admin in ((keys, False), (admins, True)):
        for name, key in group.items():
            if hmac.compare_digest(key.encode(), sent):
                return Caller(name, admin)
    raise Refused(401, "expected a key: Authorization: Bearer KEY, or x-api-key: KEY", "authentication_error")


def _sent_key(request: Request) -> str:
    """Return the key that a request sends, or an empty text if it sends none.

    It is the token of `Authorization: Bearer`, with the scheme in any case, else `x-api-key`, else the whole
    of an `Authorization` without a scheme. Another scheme, such as that of a proxy's own users, is no key.
    """
    authorization = request.headers.get("authorization", "").strip()
    scheme, _, token = authorization.partition(" ")
    if token and scheme.lower() == "bearer":
        return token.strip()
    key: str = request.headers.get("x-api-key", "")
    if key or token:
        return key
    return authorization


def _refuse_page(request: Request) -> None:
    """Refuse a request that a page of another host may have sent.

    Raises:
        Refused: the `Host` is not this machine, there is an `Origin` that is not this machine, or the body of
            a POST is not declared as JSON.
    """
    headers = request.headers
    host = headers.get("host", "")
    origin = headers.get("origin")
    if not is_local(host):
        raise Refused(
            403, f"Host {host!r:.80} is not this machine: set {KEYS} to answer others", "permission_error"
        )
    if origin is not None and not is_local(origin.partition("://")[2]):
        raise Refused(
            403, f"a page of {origin!r:.80} may not ask without a key: set {KEYS}", "permission_error"
        )
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        raise Refused(415, "expected content-type: application/json")


def _refuse_proxy(request: Request) -> None:
    """Refuse a request that came through a proxy, which would let strangers in.

    Raises:
        Refused: the request is of HTTP/1.0, or has a header `Forwarded`, `X-Forwarded-*` or `Via`.
    """
    signs = [
        name for name in request.headers if name in ("forwarded", "via") or name.startswith("x-forwarded-")
    ]
    if request.scope.get("http_version") == "1.0":
        signs.append("HTTP/1.0")
    if signs:
        raise Refused(
            403,
            f"this request came through a proxy ({signs[0]}), and this server asks for no key: set {KEYS}, "
            'as the page "Behind nginx" (docs/nginx.md) says',
            "permission_error",
        )


def request_id(request: Request) -> str:
    """Return the client's `x-request-id` if it is 1 to 128 visible ASCII characters, otherwise a new id."""
    sent = request.headers.get("x-request-id", "")
    if _REQUEST_ID.fullmatch(sent):
        return sent
    return uuid.uuid4().hex
