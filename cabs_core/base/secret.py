"""Secrets come from the environment, or from a file that it names: all users can read a command line."""

import os
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from cabs_core.base.errors import RouterError

#: with this ending, a variable names the file that holds the secret, as container platforms mount it
FROM_FILE = "_FILE"


def secret(variable: str) -> str | None:
    """The value of a variable, else the content of the file that `VARIABLE_FILE` names; None: neither is set,
    or it is empty.

    Raises:
        RouterError: the file cannot be read, or both are set.
    """
    value, path = os.environ.get(variable), os.environ.get(variable + FROM_FILE)
    if not path:
        return value or None
    if value:
        raise RouterError(f"{variable} and {variable}{FROM_FILE} are both set: keep one of them")
    try:
        return Path(path).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise RouterError(
            f"{variable}{FROM_FILE} names {path}, which cannot be read: {type(error).__name__}"
        ) from None


def refuse_password(place: object, option: str, instead: str) -> None:
    """Raise RouterError where a place on a command line is a URL with a password, which is not quoted.

    Args:
        option: where it stood. instead: what to do.
    """
    text = str(place)
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
        named = {key.lower() for key, _ in parse_qsl(parts.query)}
        holds = parts.password is not None or bool(named & {"password", "sslpassword", "secret", "token"})
    except ValueError:  # no URL; whoever opens it says so
        holds = ":" in text.partition("://")[2].rpartition("@")[0]
    if holds:
        raise RouterError(
            f"{option} holds a password, which every user of this machine reads in the list of processes: "
            f"{instead}"
        )
