"""The command `kerasfeed`.

Invariant: arguments and files are checked before Keras is imported, so that a mistake is answered at once, with one
line on stderr and exit status 2. What a report says stands on stdout.
"""

import argparse
import importlib
import inspect
import operator
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import kerasfeed as kf
from kerasfeed.util.error_text import exception_text, message_of

_DEFAULT = " (default: %(default)s)"


class NoObjectError(Exception):
    """What was named in the shell cannot be had; the message says why."""


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments after the command's name; None takes the process's own.

    Returns:
        Exit status: 0; 1 where a check fails; 2 where a file or an object cannot be used.

    Raises:
        SystemExit: With status 2 for arguments that argparse refuses, 0 for --help and --version.
    """
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command in _LOOKS:
            return _look(_LOOKS[arguments.command], arguments)
        return _demo(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _demo(arguments: argparse.Namespace) -> int:
    from kerasfeed.demo.data import DataError, summarize  # neither this nor what it imports knows Keras

    try:
        for path in (arguments.data, arguments.validation):
            if path is not None:
                summarize(path, points=arguments.points)
        # At once: the import below takes long, and a screen that stays empty looks like a program that hangs.
        print("Training a small neural network to name the shapes of point clouds.", flush=True)
        print("Loading Keras: some seconds, up to half a minute the first time.", flush=True)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what TensorFlow says of the CPU and of missing GPUs
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
        help="the same for validation; by default the file beside --data with 'test' for 'train' in its "
        "name, else 20 %% of the scenes are held out",
    )
    add("--epochs", type=_positive, default=30, metavar="N", help="passes over the scenes" + _DEFAULT)
    add("--workers", type=_workers, default="auto", metavar="N", help="scenes loaded at once, or auto" + _DEFAULT)
    add(
        "--worker-type", choices=["auto", "process", "thread"], default="thread", help="what the workers are" + _DEFAULT
    )
    add("--batch-size", type=_positive, default=16, metavar="N", help="scenes in a batch" + _DEFAULT)
    add("--points", type=_positive, default=512, metavar="N", help="points of each scene given to the model" + _DEFAULT)
    add("--seed", type=_natural, default=0, metavar="N", help="behind weights, order and augmentation" + _DEFAULT)
    _add_looks(commands)
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


# ---- looking at an object of the user's


def _add_looks(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands that look at an object."""
    add = _command(commands, "check", "find out whether a class of scenes gives every worker the same bits")
    add("--scenes", type=int, default=16, metavar="N", help="scenes that are compared" + _DEFAULT)
    add("--seconds", type=float, default=60.0, metavar="S", help="how long the checks may take" + _DEFAULT)
    add = _command(commands, "describe", "print statistics of all fields and scenes")
    add("--scenes", type=int, metavar="N", help="read so many scenes, spread over the sequence; by default all")
    add = _command(commands, "show", "draw scenes, or a batch of a feed, into a file")
    add("--index", type=int, metavar="N", help="draw this scene alone, large")
    add("--out", type=Path, default=Path("scenes.png"), metavar="FILE", help="file to write" + _DEFAULT)
    add = _command(
        commands,
        "profile",
        "measure what a feed loads, what other workers load, and how much training waits",
    )
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


def _look(command: Callable[[argparse.Namespace, Any], int], arguments: argparse.Namespace) -> int:
    """Run a command on an object; the exit status: 0, 1 where a check fails, 2 where there is nothing to run it on."""
    try:
        return command(arguments, found_object(arguments.object))
    except NoObjectError as error:
        text = message_of(error)
    except Exception as error:  # noqa: BLE001 - of the user's class, or of a wrong argument
        text = _with_flags(exception_text(error), arguments)
    print(f"kerasfeed {arguments.command}: {' '.join(text.split())}", file=sys.stderr)
    return 2


def _with_flags(text: str, arguments: argparse.Namespace) -> str:
    """The text of an error with `--batch-size` for `batch_size must be`."""
    names = "|".join(vars(arguments).keys() - {"command", "object", "path"})
    return re.sub(
        rf"(?<![\w.'-])({names})(?= must be | -?\d+ is out of range)",
        lambda found: f"--{found[1].replace('_', '-')}", text,
    )  # fmt: skip


def found_object(name: str) -> Any:
    """What `named_object` finds; what a class or function gives when it is called without arguments.

    Raises:
        NoObjectError: It is not there, or calling it fails.
    """
    found = named_object(name)
    if isinstance(found, type) or inspect.isroutine(found):
        try:
            return found()
        except Exception as error:
            raise NoObjectError(
                f"{name!r} was called without arguments and raised {exception_text(error)}. Name an object, or write a "
                "function that makes one"
            ) from error
    return found


def named_object(name: str) -> Any:
    """The object that `module:object` names. The current directory is searched first.

    Raises:
        NoObjectError: It is not there.
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
    try:
        return operator.attrgetter(path)(found)
    except AttributeError as error:
        raise NoObjectError(f"{name!r} is not there: {message_of(error)}") from error


def _sequence_of(found: Any) -> Any:
    """A sequence, or that of a feed."""
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
    from kerasfeed.feeds.base import BaseFeed  # which needs no Keras

    model = None if arguments.model is None else found_object(arguments.model)
    given = hasattr(found, "plan") and hasattr(found, "sequence")
    feed = found if given else BaseFeed(found, arguments.batch_size, shuffle=arguments.shuffle)
    with feed:
        print(kf.profile(feed, model, arguments.seconds))
    return 0


_LOOKS = {"check": _check, "describe": _describe, "show": _show, "profile": _profile}


if __name__ == "__main__":
    sys.exit(main())
