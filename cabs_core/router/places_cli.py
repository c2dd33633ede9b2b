"""Options of commands that say where a router and its log are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cabs_core.base.paths import default_log, is_remote
from cabs_core.base.secret import FROM_FILE, refuse_password, secret

#: Environment variable that names the event log.
CABS_LOG = "CABS_LOG"


def without_password(instead: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback of an option that refuses a password on the command line.

    A password from the environment passes.

    Args:
        instead: where to put the password, as advice in the error.
    """

    def check(context: click.Context, option: click.Parameter, value: Any) -> Any:
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            refuse_password(value, option.opts[0], instead)
        return value

    return check


def log_place(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return the log that the command line names, or else the log that the environment names.

    Return None if neither names a log. The environment may name a file that holds the name. A password on the
    command line is refused.
    """
    named = without_password(f"set {CABS_LOG}, or {CABS_LOG}{FROM_FILE} to a file that holds it")(
        context, option, value
    )
    if named is None:
        return secret(CABS_LOG)
    return str(named)


class RouterPlace(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in new versions of click only
    """Type of an option that names a router: a folder becomes a Path, and a URL stays a text."""

    name = "folder or URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """Return the place of a router, or fail if it is a file."""
        if is_remote(value):
            return str(value)
        path = Path(value)
        if path.is_file():
            self.fail(f"{path} is a file: expected the folder of a router", param, ctx)
        return path


ROUTER = click.option(
    "--router",
    "folder",
    type=RouterPlace(),
    default="router",
    show_default=True,
    callback=without_password("give credentials in the environment"),
    help="Place of the router that `cabs export` wrote: a folder, or a URL such as "
    "s3://bucket/routers/my_pool.",
)
LOG = click.option(
    "--log",
    callback=log_place,
    help=(
        f"Event log: an SQLite file or a PostgreSQL URL; one with a password is named by {CABS_LOG}, or by a "
        f"file that {CABS_LOG}{FROM_FILE} names. Default: beside the router, ROUTER.events.sqlite."
    ),
)


def local_router(place: Path | str) -> Path:
    """Return the folder of a router. A router at a URL is copied to this machine first.

    If the router cannot be copied, an earlier copy is taken.

    Raises:
        CabsError: there is no router at the URL, or no copy of it can be made and there is no earlier copy.
    """
    from cabs_core.router.remote import fetch_or_keep

    if isinstance(place, Path):
        return place
    return fetch_or_keep(place)


def log_of(folder: Path, log: str | None) -> str | Path:
    """Return the event log that was named, or the one beside the router if `log` is None."""
    if log is None:
        return default_log(folder)
    return log
