"""The command `kerasfeed`.

Invariant: arguments and files are checked before Keras is imported, so that a mistake is answered at once,
with one line on stderr and exit status 2.
"""

import argparse
import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kerasfeed import __version__
from kerasfeed.cli import objects
from kerasfeed.util.error_text import message_of

_DEFAULT = " (default: %(default)s)"


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
        if arguments.command in objects.NAMES:
            return objects.run(arguments)
        return _rechunk(arguments) if arguments.command == "rechunk" else _demo(arguments)
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
        from rich.console import Console

        with _stderr_kept_unless_it_fails():
            from kerasfeed.demo.run import Settings, run  # imports Keras: 3 to 14 s

        settings = Settings(**{each.name: getattr(arguments, each.name) for each in dataclasses.fields(Settings)})
        run(arguments.data, arguments.validation, settings, Console())
    except DataError as error:
        print(f"kerasfeed demo: {message_of(error)}", file=sys.stderr)
        return 2
    return 0


def _rechunk(arguments: argparse.Namespace) -> int:
    from kerasfeed.writers.hdf5.rechunk import rechunk

    try:
        report = rechunk(
            arguments.path,
            arguments.out,
            arguments.dataset,
            arguments.scenes_per_chunk,
            arguments.compression,
            overwrite=arguments.overwrite,
        )
    except (OSError, ValueError, KeyError) as error:
        message = message_of(error)
        if isinstance(error, KeyError):  # str() quotes it
            message = message[1:-1]
        print(f"kerasfeed rechunk: {objects.with_flags(message, arguments)}", file=sys.stderr)
        return 2
    print(report)
    return 0


@contextlib.contextmanager
def _stderr_kept_unless_it_fails() -> Iterator[None]:
    """Hold back what native code writes to stderr; show it if the block raises.

    Importing TensorFlow prints six lines about CPU features and missing GPUs, TF_CPP_MIN_LOG_LEVEL or not.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(stderr, kept.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kerasfeed", description="Input pipelines for Keras.")
    parser.add_argument("--version", action="version", version=f"kerasfeed {__version__}")
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
    add(
        "--workers", type=_workers, default="auto", metavar="N", help="concurrent loads; 0 for none, or auto" + _DEFAULT
    )
    add(
        "--worker-type", choices=["auto", "process", "thread"], default="thread", help="what the workers are" + _DEFAULT
    )
    add("--batch-size", type=_positive, default=16, metavar="N", help="scenes in a batch" + _DEFAULT)
    add("--points", type=_positive, default=512, metavar="N", help="points of each scene given to the model" + _DEFAULT)
    add("--seed", type=_natural, default=0, metavar="N", help="behind weights, order and augmentation" + _DEFAULT)
    _add_rechunk(commands)
    objects.add_commands(commands)
    return parser


def _add_rechunk(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    rewrite = commands.add_parser(
        "rechunk",
        help="rewrite an HDF5 file so that scenes are read fast",
        description="Copy an HDF5 file with datasets rewritten into chunks of whole scenes. OUT appears when it is "
        "complete and compared, or not at all.",
    )
    add = rewrite.add_argument
    add("path", type=Path, metavar="IN.h5", help="file to read")
    add("out", type=Path, metavar="OUT.h5", help="file to write")
    add("--dataset", action="append", metavar="NAME", help="dataset to rewrite, may be given again; by default all")
    add("--scenes-per-chunk", type=_positive, metavar="N", help="scenes in a chunk; by default 16 KiB of them")
    add(
        "--compression",
        type=_compression,
        default="gzip",
        metavar="C",
        help="gzip, 0 to 9 (its level), lzf or none" + _DEFAULT,
    )
    add("--overwrite", action="store_true", help="replace OUT if it exists")


def _compression(text: str) -> str | int | None:
    if text.isdecimal():
        return int(text)
    return None if text == "none" else text


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


if __name__ == "__main__":
    sys.exit(main())
