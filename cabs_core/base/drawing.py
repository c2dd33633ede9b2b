"""Conversion of charts to pictures by vl-convert, in this process or in one beside it.

vl-convert holds Python's global lock while it draws, so a thread that draws lets nothing else go on. Within
`drawing_process` another process draws, and `draw_ahead` gives it work before the result is needed:

    with drawing_process():
        draw_ahead("png", version, specification)     # returns at once
        ...                                           # other work
        draw("png", version, specification)           # waits for the picture

Outside of such a block, or if the other process has ended, `draw` draws in its own process. The pictures are
the same.
"""

import base64
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Literal

import vl_convert

from cabs_core.base.workers import lines_of_work, worker_command

#: what can be made: pictures of a chart, and the script that draws charts in a page
Product = Literal["svg", "png", "pdf", "script"]
#: bytes that a PNG should stay below
LARGEST_PNG = 100_000
#: largest resolution of a PNG, in pixels for each pixel of the chart
_LARGEST_SCALE = 1.4
#: least number of times that a file at the largest resolution is as large as one at resolution 1; 1.55 to
#: 1.66 times for the charts of a report, up to twice for others
_GROWTH = 1.5

_lock = threading.Lock()
_blocks = 0
_process: "_Process | None" = None


@contextmanager
def drawing_process() -> Iterator[None]:
    """Let a process beside this one draw within the block. It starts when the first product is asked for.

    Blocks within a block, and blocks of other threads, share the process, which ends with the last of them.
    """
    global _blocks, _process
    with _lock:
        _blocks += 1
    try:
        yield
    finally:
        ended = None
        with _lock:
            _blocks -= 1
            if not _blocks:
                ended, _process = _process, None
        if ended is not None:
            ended.end()


def draw_ahead(product: Product, version: str, specification: str = "") -> None:
    """Ask for a product that `draw` will take. Nothing happens outside of `drawing_process`."""
    with suppress(OSError, RuntimeError):  # `draw` draws by itself if no process can be started or asked
        process = _running()
        if process is not None:
            process.ask(_request(product, version, specification))


def draw(product: Product, version: str, specification: str = "") -> bytes:
    """Return a picture of a chart, or the script of a page.

    Args:
        product: format of the picture, or "script" for Vega, Vega-Lite and Vega-Embed as one script.
        version: version of Vega-Lite, such as `6.1`.
        specification: Vega-Lite specification of the chart as JSON. A script needs none.

    Raises:
        ValueError: vl-convert refuses the specification.
    """
    # OSError: the process cannot be started or has ended. The other errors: another thread has ended it.
    with suppress(OSError, RuntimeError, CancelledError):
        process = _running()
        if process is not None:
            made = process.take(_request(product, version, specification))
            if made:
                return made  # a refused specification is refused again below, with vl-convert's message
    return _MAKERS[product](version, specification)


def work() -> None:
    """Make the product of every line of standard input, and print it as a line of base64.

    An empty line is printed if vl-convert refuses the specification. This is the whole work of a process. The
    process ends when its input ends.
    """
    for line in lines_of_work():
        product, version, specification = json.loads(line)
        made = b""
        with suppress(ValueError):
            made = _MAKERS[product](version, specification)
        print(base64.b64encode(made).decode(), flush=True)


class _Process:
    """A process that makes one product after another, and the thread that asks it for them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            worker_command(__name__), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._thread = ThreadPoolExecutor(1)
        self._asked: dict[str, Future[bytes]] = {}

    def ask(self, request: str) -> Future[bytes]:
        """Return the future product of a request. One that was asked for before is not made again.

        Raises:
            RuntimeError: `end` was called.
        """
        if request not in self._asked:
            self._asked[request] = self._thread.submit(self._exchange, request)
        return self._asked[request]

    def take(self, request: str) -> bytes:
        """Wait for the product of a request, and forget it.

        Raises:
            OSError: the process has ended.
            RuntimeError, CancelledError: `end` was called.
        """
        future = self.ask(request)
        try:
            return future.result()
        finally:
            self._asked.pop(request, None)

    def end(self) -> None:
        """End the process. What it was asked for and has not begun is not made."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._process.kill()
        self._thread.shutdown()
        with suppress(BrokenPipeError), self._process:
            pass  # closes both pipes, and waits for the process

    def _exchange(self, request: str) -> bytes:
        """Send a request, and return the product that the process sends back."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer.endswith("\n"):
            raise BrokenPipeError("the process that draws has ended")
        return base64.b64decode(answer)


def _running() -> _Process | None:
    """Return the process that draws, which is started if there is none; None outside of every block."""
    global _process
    with _lock:
        if _blocks and _process is None:
            _process = _Process()
        return _process


def _request(product: Product, version: str, specification: str) -> str:
    """Return the line that asks for a product."""
    return json.dumps([product, version, specification])


def _svg(version: str, specification: str) -> bytes:
    """Return a chart as SVG."""
    return vl_convert.vegalite_to_svg(specification, vl_version=version).encode()


def _png(version: str, specification: str) -> bytes:
    """Return a chart as PNG, at a resolution for which the file is smaller than 100 kB.

    At the lowest resolution, 0.3, the file may be larger. Resolution 1 is drawn first, because most charts of
    a report are too large at a higher one.
    """

    def drawn(scale: float) -> bytes:
        return vl_convert.vegalite_to_png(specification, vl_version=version, scale=scale)

    image = drawn(1.0)
    if len(image) * _GROWTH < LARGEST_PNG:
        larger = drawn(_LARGEST_SCALE)
        return larger if len(larger) < LARGEST_PNG else image
    for scale in (0.8, 0.65, 0.5, 0.3):
        if len(image) < LARGEST_PNG:
            break
        image = drawn(scale)
    return image


def _pdf(version: str, specification: str) -> bytes:
    """Return a chart as PDF."""
    return vl_convert.vegalite_to_pdf(specification, vl_version=version)


def _script(version: str, specification: str) -> bytes:
    """Return Vega, Vega-Lite and Vega-Embed as one script. The specification is not used."""
    # the stub of the function wants a snippet, which has a default
    return vl_convert.javascript_bundle(vl_version=version).encode()  # type: ignore[call-arg]


_MAKERS: dict[Product, Callable[[str, str], bytes]] = {
    "svg": _svg,
    "png": _png,
    "pdf": _pdf,
    "script": _script,
}
