"""The command `kerasfeed`.

Invariant: arguments and files are checked before Keras is imported, so that an error appears at once, as one line on
stderr with exit status 2. Reports go to stdout.
"""

import argparse
import importlib
import inspect
import operator
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import kerasfeed as kf
from kerasfeed.util.error_text import exception_text, message_of

_DEFAULT = " (default: %(default)s)"


class NoObjectError(Exception):
    """The object named in the shell is not available.

    The message says why.
    """


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments after the command's name; None uses the process's arguments.

    Returns:
        Exit status: 0; 1 if a check fails; 2 if a file or an object cannot be used; 130 after Ctrl-C.

    Raises:
        SystemExit: With status 2 for arguments that argparse refuses, 0 for --help and --version.
    """
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command in _COMMANDS:
            return _run(_COMMANDS[arguments.command], arguments)
        return _demo(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _demo(arguments: argparse.Namespace) -> int:
    from kerasfeed.demo.data import DataError, summarize  # does not import Keras

    try:
        for path in (arguments.data, arguments.validation):
            if path is not None:
                summarize(path, points=arguments.points)
        # Print before the import below, which takes long: an empty screen looks like a program that hangs.
        print("Training a small neural network to name the shapes of point clouds.", flush=True)
        print("Loading Keras: some seconds, up to half a minute the first time.", flush=True)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides messages about the CPU and missing GPUs
        from kerasfeed.demo.run import run  # imports Keras: 3 to 14 s

        run(arguments)
    except DataError as error:
        print(f"kerasfeed demo: {message_of(error)}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kerasfeed", description="Input pipelines for Keras.")
    parser.add_argument("--version", action="version", version=f"kerasfeed {kf.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train a small PointNet on point clouds",
        description="Train a small PointNet on point clouds through model.fit(feed). Without --data, it "
        "writes point clouds of ten shapes to a temporary file.",
    )
    add = demo.add_argument
    add("--data", type=Path, metavar="FILE.h5", help="HDF5 file with 'data' float[M, N, 3] and 'label' int[M]")
    add(
        "--validation",
        type=Path,
        metavar="FILE.h5",
        help="HDF5 file for validation; by default the file next to --data with 'test' instead of 'train' in its "
        "name, or else 20 %% of the scenes",
    )
    add("--epochs", type=_positive, default=30, metavar="N", help="epochs of training" + _DEFAULT)
    add("--workers", type=_workers, default="auto", metavar="N", help="scenes to load at once, or auto" + _DEFAULT)
    add("--worker-type", choices=["auto", "process", "thread"], default="thread", help="type of the workers" + _DEFAULT)
    add("--batch-size", type=_positive, default=16, metavar="N", help="scenes in a batch" + _DEFAULT)
    add("--points", type=_positive, default=512, metavar="N", help="points of each scene given to the model" + _DEFAULT)
    add("--seed", type=_natural, default=0, metavar="N", help="seed of weights, order and augmentation" + _DEFAULT)
    _add_commands(commands)
    return parser


def _workers(text: str) -> int | str:
    return text if text == "auto" else _integer(text, 0, ' or "auto"')


def _integer(text: str, least: int, others: str = "") -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(f"must be an integer of at least {least}{others}, received {text!r}")
    return number


_natural, _positive = partial(_integer, least=0), partial(_integer, least=1)


# ---- commands for an object of the user


def _add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands for an object of the user."""
    add = _command(commands, "check", "check that a class of scenes gives every worker the same bits")
    add("--scenes", type=_positive, default=16, metavar="N", help="number of scenes to compare" + _DEFAULT)
    add("--seconds", type=float, default=60.0, metavar="S", help="time limit of the checks, s" + _DEFAULT)
    add = _command(commands, "describe", "print statistics of all fields and scenes")
    add("--scenes", type=_positive, metavar="N", help="read this many scenes, spread over the sequence; by default all")
    add = _command(commands, "show", "draw scenes, or a batch of a feed, into a file")
    add("--index", type=int, metavar="N", help="draw only this scene, large")
    add("--out", type=Path, default=Path("scenes.png"), metavar="FILE", help="file to write" + _DEFAULT)
    add = _command(
        commands,
        "profile",
        "measure how fast a feed loads, and how fast other workers would load",
    )
    add(
        "--batch-size",
        type=_positive,
        default=32,
        metavar="N",
        help="batch size if the object is not a feed" + _DEFAULT,
    )
    add("--shuffle", action="store_true", help="read in random order if the object is not a feed")
    add("--seconds", type=float, default=10.0, metavar="S", help="about how long to measure, s" + _DEFAULT)


def _command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str) -> Any:
    added = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    added.add_argument(
        "object", metavar="MODULE:OBJECT",
        help="a sequence or a feed in a module: an object, or a class or function to call without arguments",
    )  # fmt: skip
    return added.add_argument


def _run(command: Callable[[argparse.Namespace, Any], int], arguments: argparse.Namespace) -> int:
    """Run a command on an object.

    Return 0, 1 if a check fails, or 2 if the object cannot be used.
    """
    try:
        return command(arguments, found_object(arguments.object))
    except NoObjectError as error:
        text = message_of(error)
    except Exception as error:  # noqa: BLE001 - from the user's class, or for a wrong argument
        text = exception_text(error)
    print(f"kerasfeed {arguments.command}: {' '.join(text.split())}", file=sys.stderr)
    return 2


def found_object(name: str) -> Any:
    """Return the object that `named_object` finds.

    If it is a class or a function, call it without arguments and return the result.

    Raises:
        NoObjectError: It does not exist, or calling it fails.
    """
    named = named_object(name)
    if isinstance(named, type) or inspect.isroutine(named):
        try:
            return named()
        except Exception as error:
            raise NoObjectError(
                f"calling {name!r} without arguments raised {exception_text(error)}. Name an object, or write a "
                "function that makes one"
            ) from error
    return named


def named_object(name: str) -> Any:
    """Return the object that `module:object` names. The current directory is searched first.

    Raises:
        NoObjectError: It does not exist.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise NoObjectError(f"needs MODULE:OBJECT, for example rooms:Rooms, received {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module: Any = importlib.import_module(module_name)
    except Exception as error:
        raise NoObjectError(f"module {module_name!r} cannot be imported: {exception_text(error)}") from error
    try:
        return operator.attrgetter(path)(module)
    except AttributeError as error:
        raise NoObjectError(f"{name!r} does not exist: {message_of(error)}") from error


def _sequence_of(found: Any) -> Any:
    """Return a sequence, or the sequence of a feed."""
    return found.sequence if hasattr(found, "plan") and hasattr(found, "sequence") else found


def _check(arguments: argparse.Namespace, found: Any) -> int:
    report = kf.check_sequence(_sequence_of(found), scenes=arguments.scenes, seconds=arguments.seconds)
    print(report)
    return 0 if report.ok else 1


def _describe(arguments: argparse.Namespace, found: Any) -> int:
    print(kf.describe(_sequence_of(found), arguments.scenes))
    return 0


def _show(arguments: argparse.Namespace, found: Any) -> int:
    figure = kf.show(found, *(() if arguments.index is None else (arguments.index,)))
    figure.savefig(arguments.out)
    print(arguments.out)
    return 0


def _profile(arguments: argparse.Namespace, found: Any) -> int:
    from kerasfeed.feeds.base import BaseFeed  # does not import Keras

    is_feed = hasattr(found, "plan") and hasattr(found, "sequence")
    feed = found if is_feed else BaseFeed(found, arguments.batch_size, shuffle=arguments.shuffle)
    with feed:
        print(kf.profile(feed, arguments.seconds))
    return 0


_COMMANDS = {"check": _check, "describe": _describe, "show": _show, "profile": _profile}


if __name__ == "__main__":
    sys.exit(main())
