"""Who may ask: keys and the local default. How much is in `limits`.

CABS_SERVER_KEYS=name=key,...         keys of callers; each scores its own decisions
CABS_SERVER_ADMIN_KEYS=name=key,...   keys that may score every decision and read /metrics as well

Without any key the server answers on this machine alone, and only what a program on it sends: a page in a
browser is told by its `Origin`, by a `Host` that is not this machine (DNS rebinding), or by a body that does
not say that it is JSON; a proxy is told by HTTP/1.0, `Forwarded`, `X-Forwarded-*` or `Via`. Nobody is an
administrator by an address.
"""

import hmac
import ipaddress
import re
import uuid
from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import Request

from cabs_core.base.errors import RouterError

KEYS = "CABS_SERVER_KEYS"
ADMIN_KEYS = "CABS_SERVER_ADMIN_KEYS"
#: name of whoever asks a server without keys
LOCAL = "local"
_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Refused(Exception):
    """A request that is not answered: status and message for the client, and when it may come again."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", retry_after: int | None = None
    ):
        super().__init__(message)
        self.status, self.message, self.kind, self.retry_after = status, message, kind, retry_after


@dataclass(frozen=True)
class Caller:
    """Who asks. name: of its key, or 'local'. admin: it may score every decision, and read figures."""

    name: str
    admin: bool = False

    @property
    def owner(self) -> str | None:
        """Name whose decisions the caller may score. None if it may score all, as without keys."""
        return None if self.admin or self.name == LOCAL else self.name


def read_keys(text: str | None, variable: str = KEYS) -> dict[str, str]:
    """{name: key} from `name=key,name=key`, or from one key without a name.

    Raises:
        RouterError: an empty or short key, or a name twice. The keys are not in the message.
    """
    keys: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        name, separator, key = part.strip().partition("=")
        name, key = (name, key) if separator else ("default", name)
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise RouterError(
                f"{variable}: the key called {name!r} has characters that HTTP headers do not carry: "
                "letters, digits and signs of ASCII are possible"
            )
        if len(key) < 8 or name in keys:
            raise RouterError(
                f"{variable}: the key called {name!r} has fewer than 8 characters, or is named twice"
            )
        keys[name] = key
    return keys


@lru_cache(maxsize=256)  # every request asks it of the same few
def is_local(host: str) -> bool:
    """Whether an address or name, with or without a port, is this machine."""
    for name in (host, host.rpartition(":")[0] if re.search(r":\d+$", host) else host):
        try:
            return ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            continue
    return name.lower() == "localhost"


def check_host(host: str, keys: dict[str, str]) -> None:
    """RouterError where the server would listen beyond this machine without asking for a key."""
    if not is_local(host) and not keys:
        raise RouterError(
            f"--host {host} listens beyond this machine, so it asks for a key: set {KEYS}=name=key, or stay "
            "on 127.0.0.1"
        )


def caller_of(request: Request, keys: dict[str, str], admins: dict[str, str]) -> Caller:
    """Who sent a request.

    Raises Refused: a wrong key or none, or, without keys, no program on this machine.
    """
    headers = request.headers
    if not keys and not admins:
        _refuse_proxy(request)
        host, origin = headers.get("host", ""), headers.get("origin")
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
        return Caller(LOCAL)
    sent = (headers.get("authorization", "").removeprefix("Bearer ") or headers.get("x-api-key", "")).encode()
    for group, admin in ((keys, False), (admins, True)):
        for name, key in group.items():
            if hmac.compare_digest(key.encode(), sent):
                return Caller(name, admin)
    raise Refused(401, "expected a key: Authorization: Bearer KEY", "authentication_error")


def _refuse_proxy(request: Request) -> None:
    """Raise Refused if a proxy sent the request: without keys it would let strangers in."""
    names = [
        name for name in request.headers if name in ("forwarded", "via") or name.startswith("x-forwarded-")
    ]
    sign = names[0] if names else None
    if sign is None and request.scope.get("http_version") == "1.0":
        sign = "HTTP/1.0"
    if sign is not None:
        raise Refused(
            403,
            f"this request came through a proxy ({sign}), and this server asks for no key: set {KEYS}, as "
            'the page "Behind nginx" (docs/nginx.md) says',
            "permission_error",
        )


def request_id(request: Request) -> str:
    """The client's `x-request-id` where it is a sound one, else a new one."""
    sent = request.headers.get("x-request-id", "")
    return sent if _ID.fullmatch(sent) else uuid.uuid4().hex
