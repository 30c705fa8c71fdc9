"""The command line: what a page does, a script can do. Its commands are in lab/commands/, one file each.

`--json` prints one JSON document on stdout; everything else goes to stderr. Exit status: 0 done, 1 the work failed,
2 the user's input is wrong, 130 stopped by Ctrl-C. Errors are one line; LAB_DEBUG=1 adds the traceback. Whichever the
command, what the lab's killed processes left goes first.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from lab.commands import COMMANDS
from lab.commands.terminal import INTERRUPTED
from lab.errors import InputError, LabError, reason


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "µ" gets "?", not a traceback
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        options = _parser(arguments).parse_args(arguments)
        if options.command.__module__ not in LOOKS_ON:
            _sweep()
        status = int(options.command(options) or 0)
        sys.stdout.flush()
        return status
    except LabError as error:
        if os.environ.get("LAB_DEBUG") == "1":
            raise
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # `lab runs | head` closed our stdout; a complaint at exit would follow
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        if os.environ.get("LAB_DEBUG") == "1":
            raise
        print(f"error: {error.filename or 'this command'}: {reason(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


LOOKS_ON = ("lab.commands.doctor",)
"""Tells what is left, and changes nothing."""


def _sweep() -> None:
    """What could not be removed now is no fault of the command that was asked for."""
    from lab.home import home

    with suppress(OSError, LabError):
        if [*home().glob("shm/*.json"), *home().glob("scratch/*.json")]:  # of the living too: there is somebody to ask
            from lab.serve import leftovers, scratch

            leftovers.remove()
            scratch.sweep()


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see `{self.prog} --help`)")


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Knows all commands by name, and the options of the one that these arguments ask for."""
    parser = _OneLineParser(prog="python -m lab", description="An interactive serving lab.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_OneLineParser)
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    if asked is not None and asked not in COMMANDS:
        from lab.refusal import nearest

        raise InputError(f"command {asked!r}: there is none of that name{nearest(asked, COMMANDS)}")
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name == asked:
            module = import_module(f"lab.commands.{name.replace('-', '_')}")
            module.add_options(command)
            command.set_defaults(command=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
