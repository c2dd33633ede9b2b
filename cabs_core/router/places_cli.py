"""Where a router and its log are, as options of commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from cabs_core.base.paths import default_log, is_remote
from cabs_core.base.secret import FROM_FILE, refuse_password, secret

#: variable that names the event log
CABS_LOG = "CABS_LOG"


def without_password(instead: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Refuse a password that stands on the command line; one from the environment passes."""

    def check(context: click.Context, option: click.Parameter, value: Any) -> Any:
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            refuse_password(value, option.opts[0], instead)
        return value

    return check


def log_place(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """The log of the command line, without a password, or of the environment, or of a file that it names."""
    named = without_password(f"set {CABS_LOG}, or {CABS_LOG}{FROM_FILE} to a file that holds it")(
        context, option, value
    )
    return secret(CABS_LOG) if named is None else str(named)


class RouterPlace(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in new versions of click only
    """A folder as a Path, a URL as it is."""

    name = "folder or URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:
        """The place of a router; a file is none."""
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
    help="Where the router is, as `cabs export` wrote it: "
    "a folder, or a URL such as s3://bucket/routers/my_pool.",
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
    """The folder of a router; one on a store is copied first."""
    from cabs_core.router.remote import fetch_or_keep

    return place if isinstance(place, Path) else fetch_or_keep(place)


def log_of(folder: Path, log: str | None) -> str | Path:
    """The event log that was named, else the one beside the router."""
    return default_log(folder) if log is None else log
