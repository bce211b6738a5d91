"""Errors for arguments that users know from other libraries.

Invariant: type checkers see the real signature of a function, and refuse such an argument themselves.
"""

import difflib
import functools
import inspect
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_WORD_HERE = {
    "num_workers": "workers",
    "num_parallel_calls": "workers",
    "use_multiprocessing": 'worker_type="process" (or "thread")',
    "multiprocessing_context": 'worker_type="process"; workers are clean interpreters, never forks',
    "drop_last": "drop_remainder",
    "prefetch_factor": "max_queue_size",
    "buffer_size": "max_queue_size (the shuffle itself needs no buffer)",
    "prefetch": "max_queue_size",
    "collate_fn": "collate: 'stack', 'pad', 'ragged', kf.Pad(...), or a function from a list of scenes to a batch",
    "sampler": "order (kf.Shuffled(), kf.BlockShuffled(...), kf.Weighted(weights), kf.Balanced(labels), or a function)",
    "batch_sampler": "batch_size and order (kf.Bucketed(lengths, boundaries) for batches of similar length)",
    "generator": "seed",
    "spec": "output_signature",
    "output_types": "output_signature: a nesting of kf.ArraySpec(shape, dtype)",
    "output_shapes": "output_signature: a nesting of kf.ArraySpec(shape, dtype)",
    "element_spec": "output_signature",
    "worker_init_fn": "an on_worker_begin(worker) method of the sequence",
    "num_shards": "shard_count",
    "index": "shard_index",
    "rank": "shard_index",
    "world_size": "shard_count",
    "num_processes": 'shard_count, or shard="auto"',
    "process_index": 'shard_index, or shard="auto"',
    "process_count": 'shard_count, or shard="auto"',
    "input_context": "shard",
    "shard_options": 'shard (a pair, or "auto")',
    "dataset": "sequence, the first argument",
    "pin_memory": "feed.to_torch(device, pin_memory=...), which copies batches to a GPU ahead of their use",
    "shuffle": "shuffle_buffer of a kf.StreamFeed; a kf.Feed shuffles a sequence by index",
    "order": "kf.Feed: it orders a sequence by index, and a kf.StreamFeed has a shuffle_buffer",
    "hosts": "kf.Feed: any host can load a scene by its index, but a stream is read on this machine",
    "replacement": "order=kf.Weighted(weights), which draws with replacement",
    "test_size": "fractions, the share of each part: (0.8, 0.2)",
    "train_size": "fractions, the share of each part: (0.8, 0.2)",
    "random_state": "seed",
    "n_splits": "count",
    "overlap": "stride, the distance between two starts: the size minus the overlap",
}
_NOT_NEEDED = {
    "in_order": "batches always come in order",
    "persistent_workers": "workers stay until feed.close()",
}


def with_known_words(
    name: str, example: str = ""
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorate a function: its TypeError names the right argument.

    The error is raised for an unknown argument, and for a missing one.

    Args:
        name: Name of the function or class in messages.
        example: A correct call. The message about a missing argument shows it.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        parameters = {key: value for key, value in inspect.signature(function).parameters.items() if key != "self"}
        required = [key for key, value in parameters.items() if value.default is value.empty]
        if function.__name__ == "__init__":
            function.__qualname__ = f"{name}.__init__"  # for Python's own messages

        @functools.wraps(function)
        def checked(*positional: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            for key in named:
                if key not in parameters:
                    raise TypeError(f"{name}() has no argument {key!r}{_advice(key, list(parameters))}")
            missing = [key for key in required[len(positional) :] if key not in named]
            if example and missing:
                raise TypeError(f"{name}() needs {' and '.join(missing)}, for example {example}")
            return function(*positional, **named)

        return checked

    return decorate


def _advice(key: str, known: list[str]) -> str:
    word = _WORD_HERE.get(key, "")
    if re.split(r"\W", word)[0] in {*known, "an", "feed", "kf"}:
        return f". Use {word}"
    if key in _NOT_NEEDED:
        return f", and none is needed: {_NOT_NEEDED[key]}"
    meant = "".join(f" Did you mean {each!r}?" for each in difflib.get_close_matches(key, known, 1))
    return f".{meant} It takes {', '.join(known)}"
