"""Secrets from environment variables, or from files that environment variables name.

Secrets are never read from a command line, which all users of a machine can see.
"""

import os
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from cabs_core.base.errors import RouterError

#: with this ending, a variable names the file that holds the secret, as container platforms mount it
FROM_FILE = "_FILE"


def secret(variable: str) -> str | None:
    """Return the value of a variable, or the content of the file that `VARIABLE_FILE` names.

    Return None if neither variable is set, or if the secret is empty.

    Raises:
        RouterError: the file cannot be read, or both are set.
    """
    value = os.environ.get(variable)
    path = os.environ.get(variable + FROM_FILE)
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
    """Raise RouterError if an option of a command line is a URL with a password; the message hides the URL.

    A query parameter such as `password`, `secret` or `token` counts as a password.

    Args:
        place: value of the option, a path or a URL.
        option: name of the option.
        instead: advice for the message.
    """
    text = str(place)
    if "://" not in text:
        return
    try:
        parts = urlsplit(text)
        named = {key.lower() for key, _ in parse_qsl(parts.query)}
        holds = parts.password is not None or bool(named & {"password", "sslpassword", "secret", "token"})
    except ValueError:  # the URL is malformed
        holds = ":" in text.partition("://")[2].rpartition("@")[0]
    if holds:
        raise RouterError(
            f"{option} holds a password, which every user of this machine reads in the list of processes: "
            f"{instead}"
        )
