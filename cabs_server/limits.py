"""What the server takes of a stranger, a key and an upstream; SECURITY.md prints this table.

Each is checked before the thing is read, kept or worked on, not after it.
"""

import ctypes
import sys
from contextlib import suppress
from functools import cache

#: bytes of a request's line and headers, trailers of its body included; seconds that they may take to arrive
HEAD, HEAD_SECONDS = 64 << 10, 10.0
#: requests that a connection may send ahead of their answers
AHEAD = 16
#: connections of a worker
CONNECTIONS = 1_000
#: number of a setting of glibc's mallopt (malloc.h)
_MMAP_THRESHOLD = -3
#: file descriptors that a worker needs beside connections
_OTHER_FILES = 100
#: bytes of a body, and seconds that it may take to arrive
BODY, BODY_SECONDS = 20 << 20, 60.0
#: values in a JSON body (commas and opening brackets outside texts), and how deep they may lie
VALUES, DEPTH = 100_000, 200
#: bytes in memory of an object or list of a body, and of any value, about: what they take beyond the body
#: counts for its key
OBJECT, VALUE = 200, 60
#: bytes of a body beyond which it is read on a thread beside the event loop and counts in `BYTES_BY_KEY`
SMALL_BODY = 64 << 10
#: characters outside ASCII of a large body that are escaped before it is read: one makes all four bytes
ESCAPED = 10_000
#: bytes of one text beyond which it has to be ASCII without \\u, as base64 is: one wide character makes all
#: four bytes
TEXT = 4 << 20
#: bytes that a body and its text may take while it is read
READING = 80 << 20
#: bytes of large bodies, of their values beyond that, and of large answers that are not sent yet, which a key
#: has in a worker at once; others of the key wait unread
BYTES_BY_KEY = 20 << 20
#: requests of a key that wait for such bytes; then 429
WAITING_BY_KEY = 32
#: bytes that a body or answer of unknown size has at first, then twice as many as have come
STEP = 1 << 20
#: requests of a key that a worker answers at once, streams until their end
REQUESTS_BY_KEY = 250
#: bytes of an upstream's whole answer, unpacked
ANSWER = 32 << 20
#: bytes of an answer beyond which it counts in `BYTES_BY_KEY`
LARGE_ANSWER = 128 << 10
#: seconds of pause between its pieces of 64 KiB or more, for the requests of others
PAUSE = 0.002
#: seconds after which a thread that computes lets another one go on (Python's own: .005). A decision changes
#: hands some twenty times between its thread, its log and the event loop, and waits as often for whatever a
#: large body or answer keeps busy
SWITCH = 0.001
#: bytes of an event in a stream; a longer one passes on in pieces, unread
EVENT = 8 << 20


def give_back_memory() -> None:
    """Have pages in which nothing lies any more go back to the system.

    Small blocks between them would keep 20 MB with the process after some large bodies (glibc: malloc_trim).
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another libc has no such call
            ctypes.CDLL(None).malloc_trim(0)


def prepare_process() -> None:
    """Have threads take turns more often, and large blocks go back to the system as soon as they are freed.

    glibc raises the size from which it does so with every large block that is freed, so bodies would stay.
    """
    sys.setswitchinterval(SWITCH)
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another libc has no such call
            ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


@cache
def connections() -> int:
    """Connections that this process may hold: fewer than CONNECTIONS where it gets too few descriptors.

    A request needs one for the client and one for the upstream. The soft limit is raised to the hard one.
    """
    if sys.platform == "win32":
        return CONNECTIONS
    import resource  # noqa: PLC0415  (not on Windows)

    needed = 3 * CONNECTIONS + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = CONNECTIONS if soft == resource.RLIM_INFINITY else (soft - _OTHER_FILES) // 3
    return max(min(CONNECTIONS, most), 10)
