"""N generators of one function, and the same joined in the calling thread.

Invariant: what generator `n` gives in a repetition is a function of (make_generator, seed, repetition, n), as far as
the user's function is: whoever runs it, and wherever, so that one that is lost with its worker can be run again.
"""

import contextlib
import copy
import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from kerasfeed.errors import SceneError
from kerasfeed.feeds.generators.joined import JoinedGenerators
from kerasfeed.feeds.generators.round_robin import named
from kerasfeed.feeds.streams.place import BEGINNING, Start
from kerasfeed.loaders.failures.policy import FailurePolicy
from kerasfeed.sequences.context import SceneContext, enter_context
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.error_text import is_the_programs
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

_BY_NAME = ("start", "rng")
_ENDED = object()
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Generators:
    """The user's function, and how it is called.

    Attributes:
        make_generator: `make_generator(n, count)` returns the n-th of `count` generators, or any iterable. With one
            generator it may also be a function that is called without arguments, such as a bound method. A parameter
            named `rng` is given a `np.random.Generator` of (seed, repetition, n). One named `start` is given the number
            of the scene to begin with, so that a generator lost with its worker need not be run from its beginning.
        count: How many generators, at least 1.
        copies: Whether each of them is made without arguments.
        seed: Seed of `rng`, at least 0.
        numbers: Those that are run here, every `numbers.step`-th; the others are other shards'.
        name: What messages call the function.
        takes_start: Whether it has a parameter named `start`.
    """

    def __init__(
        self, make_generator: Callable[..., Any], count: int = 1, seed: int = 0, *, copies: bool = False
    ) -> None:
        """See the class; with `copies`, the function is called without arguments, `count` times.

        Raises:
            TypeError: `make_generator` is no function, or takes other arguments; the message says what to pass.
                `count` is no integer.
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
        """These, of which every `shard_count`-th is run, from number `shard_index` on."""
        found = copy.copy(self)
        found.numbers = self.numbers[shard_index::shard_count]
        return found

    def make(self, n: int, repetition: int, start: int = 0) -> Iterator[Any]:
        """Generator `n` as a repetition begins; without the first `start` scenes.

        Raises:
            Exception: What the function raised; a SceneError for a StopIteration.
            TypeError: It returned nothing that can be iterated.
        """
        arguments = (n, self.count) if self._numbered else ()
        by_name: dict[str, Any] = {}
        if self.takes_start:
            by_name["start"] = start
        if self._takes_rng:
            by_name["rng"] = np.random.default_rng(generator_seed(self.seed, repetition, n))
        try:
            iterator = _iterator(self.make_generator(*arguments, **by_name), self.name)
        except StopIteration as error:  # it would look like the generator's end
            raise SceneError(f"{self.name} raised a StopIteration") from error
        if start and not self.takes_start:
            next(itertools.islice(iterator, start, start), None)
        return iterator

    def __repr__(self) -> str:
        return f"{self.count} generators of {self.name}"


def generator_seed(seed: int, repetition: int, n: int) -> np.random.SeedSequence:
    """What seeds the random numbers of generator `n` in a repetition, a function of its arguments alone."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(SeedStream.GENERATOR, repetition, n))


def end(iterator: Any) -> None:
    """Have a generator leave its `with` statements; what it raises on its way out has nobody to hear it."""
    if isinstance(iterator, Generator):
        with contextlib.suppress(Exception):  # also where a thread that hangs is inside it
            iterator.close()


def _check_function(made: Any) -> str:
    name = getattr(made, "__qualname__", None) or getattr(getattr(made, "func", None), "__qualname__", None)
    name = str(name or type(made).__name__).split("<locals>.")[-1]
    if inspect.isgenerator(made) or (isinstance(made, Iterator) and not callable(made)):
        kind, function = type(made).__name__, "a function that makes it, for example lambda: iter(items)"
        if inspect.isgenerator(made) and not name.endswith(">"):  # <genexpr>, <lambda>
            kind, function = f"generator ({name})", f"the function, without calling it ({name} and not {name}(...))"
        raise TypeError(
            f"make_generator is a {kind}, which can be run through only once: pass {function}, so that every "
            "repetition and every worker has one of its own"
        )
    if not callable(made):
        raise TypeError(
            "make_generator must be a function (n, count) that returns the n-th of count generators, received a "
            f"{type(made).__name__}. For a sequence that can be indexed use kf.Feed; for an iterable such as a "
            "tf.data.Dataset pass lambda: iterable"
        )
    return name


def _calling(function: Callable[..., Any], name: str, count: int, copies: bool) -> tuple[bool, set[str]]:
    """Whether a function is given (n, count), and which arguments by name; it must not be, for `copies`.

    Raises:
        TypeError: It takes other arguments.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # compiled, and silent about its parameters
        return not copies, set()
    parameters = list(signature.parameters.values())
    numbers = [each for each in parameters if each.kind in _POSITIONAL][:2]
    for numbered in (False,) if copies else (False, True) if count == 1 else (True,):
        taken = {each.name for each in numbers} if numbered else set()
        by_name = {each for each in _BY_NAME if each in signature.parameters and each not in taken}
        try:
            signature.bind(*((0, 1) if numbered else ()), **dict.fromkeys(by_name))
        except TypeError:
            continue
        if not numbered or all(each.default is each.empty or each.name in ("n", "count") for each in numbers):
            return numbered, by_name
    if copies:
        raise TypeError(
            f"copies=True runs {count} copies of a generator that is made without arguments, and {name}{signature} "
            "takes some: leave copies=True out for a function (n, count) that returns the n-th of count generators"
        )
    also = " With count=1 it may also be a function that can be called without arguments." if count == 1 else ""
    if count > 1 and _can_be_called(signature):
        also = f" To run {count} copies of one that has no end, and draws its scenes, pass copies=True."
    remedy = f"lambda n, count: {name}(...)"
    raise TypeError(
        f"make_generator is called as {name}(n, count), to return the n-th of count={count} generators, and it takes "
        f"{name}{signature}.{also} Wrap it: {remedy}, for example with the n-th part of your files, files[n::count]"
    )


def _can_be_called(signature: inspect.Signature) -> bool:
    """Whether a function can be called without arguments, but for those given by name."""
    try:
        signature.bind(**dict.fromkeys({each for each in _BY_NAME if each in signature.parameters}))
    except TypeError:
        return False
    return True


def _iterator(made: Any, name: str) -> Iterator[Any]:
    is_iterable = hasattr(type(made), "__iter__") or hasattr(type(made), "__getitem__")
    if is_iterable and not isinstance(made, str | bytes | Mapping):
        iterator: Iterator[Any] = iter(made)
        return iterator
    remedy = "return a generator, or any iterable of scenes"
    if made is None:
        remedy = "is a `yield`, or a `return`, missing?"
    elif inspect.isroutine(made):
        remedy = "call that function, and return what it gives"
    elif hasattr(type(made), "__aiter__") or inspect.iscoroutine(made):
        if inspect.iscoroutine(made):
            made.close()  # else Python warns that nobody awaited it
        remedy = "an asynchronous one cannot be run here: write `def`, not `async def`"
    raise TypeError(f"{name} must return a generator of scenes, and it returned a {type(made).__name__}: {remedy}")


class LocalGenerators(JoinedGenerators):
    """Generators run in the calling thread, joined round-robin; the reference that every other way must equal.

    Attributes:
        generators: What runs.
    """

    def __init__(self, generators: Generators, policy: FailurePolicy | None = None) -> None:
        """Run nothing yet; see `JoinedGenerators`."""
        super().__init__(generators.numbers, generators.count, policy)
        self.generators = generators
        self._context = SceneContext(generators.seed, 0)
        self._made: dict[int, Iterator[Any]] = {}
        self._positions: dict[int, int] = {}
        self._raised: BaseException | None = None  # by the generator whose turn it is, after other items

    def begin(self, repetition: int, start: Start = BEGINNING) -> None:
        """See `Source.begin`."""
        self._refuse_closed()
        with self._taking:
            self._forget()
            self._context = SceneContext(self.generators.seed, repetition)
            self._raised = None
            self._positions = self._begin(repetition, start)

    def _join(self, items: list[Any], limit: int) -> None:
        previous = enter_context(self._context)
        try:
            self._run(items, limit)
        finally:
            enter_context(previous)

    def _run(self, items: list[Any], limit: int) -> None:
        round_robin, positions, count = self._round_robin, self._positions, self._count
        while len(items) < limit and round_robin.living and not self._gone:
            n = round_robin.current
            self._context.move_to(positions[n] * count + n)
            try:
                item = self._next(n)
            except BaseException as error:  # whatever it is, the policy decides
                if is_the_programs(error):
                    raise
                self._raised = error
                if items:  # they come first
                    return
                self._fail(n)
                continue
            if item is _ENDED:
                self._drop(n, len(items))
                continue
            items.append(own_copy(item))
            positions[n] += 1
            round_robin.advance()

    def _next(self, n: int) -> Any:
        if self._raised is not None:
            raise self._raised
        iterator = self._made.get(n)
        if iterator is None:
            iterator = self._begun(n)
            self._made[n] = iterator
        return next(iterator, _ENDED)

    def _begun(self, n: int) -> Iterator[Any]:
        """Generator `n` at the scene that is next; where it cannot begin there, what comes before is thrown away."""
        position = self._positions[n]
        iterator = self.generators.make(n, self._repetition, position if self.generators.takes_start else 0)
        for scene in range(0 if self.generators.takes_start else position):
            self._context.move_to(scene * self._count + n)
            if self._gone:
                break
            if next(iterator, _ENDED) is _ENDED:
                self._tell_shorter(n, scene, position)
                break
        self._context.move_to(position * self._count + n)
        return iterator

    def _fail(self, n: int) -> None:
        assert self._raised is not None
        error, self._raised = self._raised, None
        position = self._positions[n]
        error = named(error, n, self._count, position, self._repetition)
        try:
            self._bear(n, position, error)
        finally:
            del error  # whose traceback holds this frame: only the collector would free it

    def leave(self) -> None:
        """See `Source.leave`; the generators are ended, by the thread that runs them if one does."""
        self._gone = True
        self._forget_if_gone()

    def close(self) -> None:
        """See `Source.close`."""
        self._closed = True
        self.leave()

    def _forget(self) -> None:
        while self._made:
            end(self._made.popitem()[1])
