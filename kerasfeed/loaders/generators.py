"""The generators of one function, and one run of a generator.

Invariant: if the user's function is deterministic, the scenes of a generator depend only on (make_generator, seed,
repetition, n), not on the worker. So another worker can run a generator again after its worker died.
"""

import contextlib
import copy
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from kerasfeed.errors import SceneError
from kerasfeed.pool.task import Note
from kerasfeed.sequences.context import SceneContext
from kerasfeed.util.error_text import noted
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

ENDED = object()  # returned instead of a scene
_NOTE = "kerasfeed: generator "
_BY_NAME = ("start", "rng")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Generators:
    """The user's function, and how to call it.

    Attributes:
        make_generator: `make_generator(n, count)` returns the n-th of `count` generators, or any iterable. With one
            generator it may also be a function without parameters, such as a bound method. A parameter named `rng`
            receives a `np.random.Generator` of (seed, repetition, n). A parameter named `start` receives the number of
            the first scene to yield, so that a generator whose worker died need not run from its beginning.
        count: Number of generators, at least 1.
        copies: Whether each generator is made without arguments.
        seed: Seed of `rng`, at least 0.
        numbers: Numbers of the generators that run here; other shards run the others.
        name: Name of the function in messages.
        takes_start: Whether the function has a parameter named `start`.
    """

    def __init__(
        self, make_generator: Callable[..., Any], count: int = 1, seed: int = 0, *, copies: bool = False
    ) -> None:
        """See the class.

        Raises:
            TypeError: `make_generator` is not a function, or takes other arguments; the message names the remedy.
                `count` is not an integer.
            ValueError: `count` is below 1.
        """
        count = check_integer("count", count, 1, remedy=" (the number of generators)")
        self.name = _check_function(make_generator)
        self.make_generator = make_generator
        self.count = count
        self.copies = copies
        self.seed = seed
        self.numbers = range(count)
        self._numbered, by_name = _calling(make_generator, self.name, count, copies)
        self.takes_start, self._takes_rng = (name in by_name for name in _BY_NAME)

    def only(self, shard_index: int, shard_count: int) -> "Generators":
        """Return a copy that runs every `shard_count`-th generator, starting at `shard_index`."""
        found = copy.copy(self)
        found.numbers = self.numbers[shard_index::shard_count]
        return found

    def make(self, n: int, repetition: int, start: int = 0) -> Iterator[Any]:
        """Create generator `n` of a repetition.

        Args:
            n: Number of the generator.
            repetition: Number of the repetition.
            start: First scene to yield; 0 unless `takes_start`.

        Raises:
            Exception: An exception of the function; a SceneError for a StopIteration.
            TypeError: The function did not return an iterable.
        """
        arguments = (n, self.count) if self._numbered else ()
        by_name: dict[str, Any] = {}
        if self.takes_start:
            by_name["start"] = start
        if self._takes_rng:
            by_name["rng"] = np.random.default_rng(generator_seed(self.seed, repetition, n))
        try:
            return _iterator(self.make_generator(*arguments, **by_name), self.name)
        except StopIteration as error:  # would look like the end of the generator
            raise SceneError(f"{self.name} raised a StopIteration") from error


def generator_seed(seed: int, repetition: int, n: int) -> np.random.SeedSequence:
    """Return the seed of generator `n` in a repetition."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(SeedStream.GENERATOR, repetition, n))


class GeneratorRun:
    """One generator in one repetition, run by one thread.

    Attributes:
        repetition: Number of the repetition.
        goal: First scene needed; a generator without `start` makes the earlier scenes too.
        position: Number of the next scene, from 0.
        context: Context of its scenes.
    """

    def __init__(self, generators: Generators, n: int, repetition: int, goal: int) -> None:
        """Prepare generator `n` of `generators`; the first call of `next` creates it."""
        self.repetition = repetition
        self.goal = goal
        self.position = goal if generators.takes_start else 0
        self.context = SceneContext(generators.seed, repetition)
        self._generators = generators
        self._n = n
        self._iterator: Iterator[Any] | None = None

    def next(self, note: Note) -> Any:
        """Return the next scene, or `ENDED`; the caller has entered `context`.

        Raises:
            Exception: An exception of the user's code.
        """
        note[1] = self.position
        self.context.move_to(self.position * self._generators.count + self._n)
        if self._iterator is None:
            self._iterator = self._generators.make(self._n, self.repetition, self.position)
        item = next(self._iterator, ENDED)
        if item is not ENDED:
            self.position += 1
        return item

    def end(self) -> None:
        """Close the generator and ignore its exceptions.

        The generator exits its `with` statements.
        """
        if isinstance(self._iterator, Generator):
            with contextlib.suppress(Exception):  # ValueError while a hung thread executes the generator
                self._iterator.close()


def named(
    error: BaseException, n: int, count: int, position: int, repetition: int, where: str = "", traceback: str = ""
) -> BaseException:
    """Return the error to raise for generator `n`.

    It has a note that names generator and scene.

    Its type is the type of `error`, if that can be sent between processes.

    Args:
        error: The exception of the generator.
        n: Number of the generator.
        count: Number of generators.
        position: Number of the scene, from 0.
        repetition: Number of the repetition.
        where: The worker, for example "worker process 1 (pid 4711)".
        traceback: Traceback in another process, as text.
    """
    place = f"{_NOTE}{n} of {count}, at its scene {position}, repetition {repetition}"
    note = place + (f", in {where}" if where else "")
    return noted(error, note, traceback, replaces=_NOTE, what=f"generator {n} raised ")


def _check_function(made: Any) -> str:
    name = getattr(made, "__qualname__", None) or getattr(getattr(made, "func", None), "__qualname__", None)
    name = str(name or type(made).__name__).split("<locals>.")[-1]
    if isinstance(made, Iterator) and not callable(made):
        call = f" ({name} and not {name}(...))" if inspect.isgenerator(made) and not name.endswith(">") else ""
        raise TypeError(
            f"make_generator is a {type(made).__name__}, which can be run through only once: pass the function that "
            f"makes it, without calling it{call}, or lambda: iter(items). Every repetition and every worker calls it"
        )
    if not callable(made):
        raise TypeError(
            "make_generator must be a function (n, count) that returns the n-th of count generators, received a "
            f"{type(made).__name__}. For a sequence that can be indexed use kf.Feed; for an iterable such as a "
            "tf.data.Dataset pass lambda: iterable"
        )
    return name


def _calling(function: Callable[..., Any], name: str, count: int, copies: bool) -> tuple[bool, set[str]]:
    """Return whether a function takes (n, count), and its arguments by name.

    With `copies`, (n, count) are not passed.

    Raises:
        TypeError: The function takes other arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a compiled function without a signature
        return not copies, set()
    parameters = list(signature.parameters.values())
    numbers = [each for each in parameters if each.kind in _POSITIONAL][:2]
    for numbered in (False,) if copies else (False, True) if count == 1 else (True,):
        taken = {each.name for each in numbers} if numbered else set()
        by_name = {each for each in _BY_NAME if each in signature.parameters and each not in taken}
        with contextlib.suppress(TypeError):  # it takes other arguments
            signature.bind(*((0, 1) if numbered else ()), **dict.fromkeys(by_name))
            if not numbered or all(each.default is each.empty or each.name in ("n", "count") for each in numbers):
                return numbered, by_name
    wanted = f"made without arguments, for count={count} copies" if copies else f"called as {name}(n, count)"
    raise TypeError(
        f"a generator is {wanted}, and the function takes {name}{signature}. Wrap it: lambda n, count: {name}(...), "
        "for example with the n-th part of your files, files[n::count]. A function without arguments needs count=1, "
        "or copies=True to run copies of a generator that has no end and draws its scenes"
    )


def _iterator(made: Any, name: str) -> Iterator[Any]:
    is_iterable = hasattr(type(made), "__iter__") or hasattr(type(made), "__getitem__")
    if not is_iterable or isinstance(made, str | bytes | Mapping):
        raise TypeError(
            f"{name} must return a generator of scenes, or any iterable of them, and it returned a "
            f"{type(made).__name__}. Is a `yield` or a `return` missing, or is the function asynchronous (`async def`)?"
        )
    iterator: Iterator[Any] = iter(made)
    return iterator
