"""The commands `kerasfeed check|describe|show|profile module:object`.

Invariant: what cannot be found or made is told in one line on stderr, with exit status 2; what a report says stands on
stdout.
"""

import argparse
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import kerasfeed
from kerasfeed.util.error_text import exception_text, message_of

_DEFAULT = " (default: %(default)s)"
NAMES = ("check", "describe", "show", "profile")


class NoObjectError(Exception):
    """What was named in the shell cannot be had; the message says why."""


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the four commands."""
    add = _command(commands, "check", "find out whether a class of scenes gives every worker the same bits")
    add("--scenes", type=int, default=16, metavar="N", help="scenes that are compared" + _DEFAULT)
    add("--seconds", type=float, default=60.0, metavar="S", help="how long the checks may take" + _DEFAULT)
    add = _command(commands, "describe", "print statistics of all fields and scenes")
    add("--scenes", type=int, metavar="N", help="read so many scenes, spread over the sequence; by default all")
    add = _command(commands, "show", "draw scenes, or a batch of a feed, into a file")
    add("--index", type=int, metavar="N", help="draw this scene alone, large")
    add("--out", type=Path, default=Path("scenes.png"), metavar="FILE", help="file to write" + _DEFAULT)
    add = _command(commands, "profile", "measure where the time of a feed goes, and what would change it")
    add("--model", metavar="MODULE:OBJECT", help="the compiled Keras model that is trained")
    add("--batch-size", type=int, default=32, metavar="N", help="of a sequence that is no feed" + _DEFAULT)
    add("--shuffle", action="store_true", help="read a sequence that is no feed in random order")
    add("--seconds", type=float, default=10.0, metavar="S", help="about how long to measure" + _DEFAULT)


def _command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str) -> Any:
    added = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    added.add_argument(
        "object", metavar="MODULE:OBJECT",
        help="a sequence or a feed in a module: an object, or a class or function that is called without arguments",
    )  # fmt: skip
    return added.add_argument


def run(arguments: argparse.Namespace) -> int:
    """Run one of them; the exit status: 0, 1 where a check fails, 2 where there is nothing to run it on."""
    command = {"check": _check, "describe": _describe, "show": _show, "profile": _profile}[arguments.command]
    try:
        return command(arguments, found_object(arguments.object))
    except NoObjectError as error:
        text = message_of(error)
    except Exception as error:  # noqa: BLE001 - of the user's class, or of a wrong argument
        text = with_flags(exception_text(error), arguments)
    print(f"kerasfeed {arguments.command}: {' '.join(text.split())}", file=sys.stderr)
    return 2


def with_flags(text: str, arguments: argparse.Namespace) -> str:
    """The text of an error with `--batch-size` and `--overwrite` for `batch_size must be` and `overwrite=True`."""
    names = "|".join(vars(arguments).keys() - {"command", "object", "path"})
    return re.sub(
        rf"(?<![\w.'-])({names})(?:=True\b|(?= must be )|(?= -?\d+ is out of range))",
        lambda found: f"--{found[1].replace('_', '-')}", text,
    )  # fmt: skip


def found_object(name: str) -> Any:
    """The object that `module:object` names; what a class or function gives when it is called without arguments.

    The current directory is searched first.

    Raises:
        NoObjectError: It is not there, or calling it fails.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise NoObjectError(f"needs MODULE:OBJECT, for example rooms:Rooms, received {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise NoObjectError(f"module {module_name!r} cannot be imported: {exception_text(error)}") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise NoObjectError(f"{name!r} is not there: {message_of(error)}") from error
    if isinstance(found, type) or inspect.isroutine(found):
        try:
            return found()
        except Exception as error:
            raise NoObjectError(
                f"{name!r} was called without arguments and raised {exception_text(error)}. Name an object, or write a "
                "function that makes one"
            ) from error
    return found


def _sequence_of(found: Any) -> Any:
    """A sequence, or that of a feed."""
    return found.sequence if hasattr(found, "plan") and hasattr(found, "sequence") else found


def _explore(name: str) -> Any:
    """A public function, which is imported only where it is wanted."""
    return getattr(kerasfeed, name)


def _check(arguments: argparse.Namespace, found: Any) -> int:
    report = _explore("check_sequence")(_sequence_of(found), scenes=arguments.scenes, seconds=arguments.seconds)
    print(report)
    return 0 if report.ok else 1


def _describe(arguments: argparse.Namespace, found: Any) -> int:
    print(_explore("describe")(_sequence_of(found), arguments.scenes))
    return 0


def _show(arguments: argparse.Namespace, found: Any) -> int:
    figure = _explore("show")(found, *(() if arguments.index is None else (arguments.index,)))
    figure.savefig(arguments.out)
    print(arguments.out)
    return 0


def _profile(arguments: argparse.Namespace, found: Any) -> int:
    from kerasfeed.feeds.base import BaseFeed  # which needs no Keras

    model = None if arguments.model is None else found_object(arguments.model)
    given = hasattr(found, "plan") and hasattr(found, "sequence")
    feed = found if given else BaseFeed(found, arguments.batch_size, shuffle=arguments.shuffle)
    with feed:
        print(_explore("profile")(feed, model, arguments.seconds))
    return 0
