"""Base classes of the command lines: help in whole sentences, and errors without a traceback."""

import errno
import inspect
import os
import signal
import sys
from contextlib import AbstractContextManager, nullcontext

import click

from cabs_core.base.errors import CabsError, shortened

_LONGEST = 8000


class HelpGroup(click.Group):
    """A group of commands whose help shows the whole first sentence of each."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List every command that is not hidden with the first sentence of its help."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, _first_sentence(command)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class CommandGroup(HelpGroup):
    """A group of commands that ends with one message and exit code 2 on an error that a user can mend.

    Such errors are those of this project, files that the system refuses, and packages that are not installed.
    If `CABS_TRACEBACK` is set to any text, the error is raised instead: Python prints its traceback, and the
    exit code is 1.
    """

    def around(self) -> AbstractContextManager[None]:
        """Context manager around a command, for subclasses to override; it ends before an error is shown."""
        return nullcontext()

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; on an error that a user can mend, print its message and exit with code 2."""
        try:
            with self.around():
                return super().invoke(ctx)
        except (CabsError, OSError, ModuleNotFoundError) as error:
            text = str(error)
            if isinstance(error, ModuleNotFoundError):
                if (error.name or "").startswith("cabs_"):  # a fault of this project
                    raise
                text = f"the package {error.name!r} is not installed here, and this needs it: pip install it"
            elif isinstance(error, OSError) and not isinstance(error, CabsError):
                if error.errno == errno.EPIPE:  # click knows what to do
                    raise
                if error.filename:
                    place = f"{error.filename} cannot be used"
                else:
                    place = "the system refused"
                text = f"{place}: {error.strerror or error}"
            if os.environ.get("CABS_TRACEBACK"):
                raise
            click.secho("error: ", fg="red", bold=True, nl=False, err=True)
            click.echo(shortened(text.strip(), _LONGEST), err=True)
            sys.exit(2)


def end_on_interrupt() -> None:
    """Let SIGINT end this process, even if it was started in the background.

    A shell starts background commands with SIGINT ignored, and Python keeps that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _first_sentence(command: click.Command) -> str:
    """Return the first sentence of a command's short help, or else of its help, with its full stop."""
    text = command.short_help or inspect.cleandoc(command.help or "").partition("\n\n")[0]
    sentence, stop, _ = " ".join(text.split()).partition(". ")
    return sentence + stop.strip()
