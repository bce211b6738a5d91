"""Arguments that a feed does not have: habits from Keras, tf.data and PyTorch are answered with the word used here.

Invariant: every refusal names the word to write instead, or says that none is needed.
"""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

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
    "hosts": "kf.Feed: any host can load a scene by its index, and what is read forward is read on this machine",
}
_NOT_NEEDED = {
    "persistent_workers": "workers stay until feed.close()",
    "output_signature": "structure, shapes and dtypes are those of the first scenes",
    "output_types": "dtypes are those of the first scenes",
    "output_shapes": "shapes are those of the first scenes",
}
# Of datasets of tf.data, and of PyTorch's samplers.
NO_METHODS = {
    "map": "Change scenes before they are batched: kf.Feed(kf.Map(sequence, function), ...)",
    "filter": "Choose scenes by index: kf.Feed(sequence[indices], ...)",
    "shuffle": "Give shuffle=True, or order=, when the feed is made",
    "batch": "Give batch_size= when the feed is made",
    "unbatch": "Loop over the sequence itself, feed.sequence",
    "prefetch": "A feed loads ahead by itself: max_queue_size= batches",
    "cache": "Keep scenes: kf.Feed(kf.Cached(sequence), ...)",
    "repeat": "Each loop over a feed is the next epoch; fit(epochs=N), feed.to_torch(epochs=N)",
    "take": "Loop over itertools.islice(feed, count), or feed some scenes, kf.Feed(sequence[:count], ...)",
    "skip": "Go on at a place with feed.set_state(...), or feed some scenes, kf.Feed(sequence[count:], ...)",
    "set_epoch": "Each loop over a feed is the next epoch by itself; feed.epoch(number) gives the batches of one",
}
NO_METHODS_OF_STREAMS = NO_METHODS | {
    "filter": "Leave items out where they are made: in the generator, or before put()",
    "shuffle": "Give shuffle_buffer= to a kf.StreamFeed; what can be indexed is shuffled by a kf.Feed",
    "unbatch": "Loop over what makes the scenes, or give batch_size=1",
    "cache": "Write scenes to files first, kf.write_tfrecords(...), or index them: kf.Feed(kf.Cached(sequence), ...)",
    "take": "Loop over itertools.islice(feed, count), or have the generator end",
    "skip": "Loop over itertools.islice(feed, count, None), or have the generator begin later",
    "set_epoch": "Each loop over a feed is the next repetition by itself",
}


def refuse_unknown(unknown: Mapping[str, Any], method: Callable[..., Any], kind: str = "Feed") -> None:
    """Raise a TypeError for keyword arguments that `method` does not have, naming the right word.

    Raises:
        TypeError: `unknown` is not empty.
    """
    for name in unknown:
        if name in _WORD_HERE:
            raise TypeError(f"{kind}() has no argument {name!r}. Use {_WORD_HERE[name]}")
        if name in _NOT_NEEDED:
            raise TypeError(f"{kind}() has no argument {name!r}, and none is needed: {_NOT_NEEDED[name]}")
        known = list(inspect.signature(method).parameters)[1:-1]  # without self and **unknown
        meant = "".join(f" Did you mean {each!r}?" for each in difflib.get_close_matches(name, known, 1))
        raise TypeError(f"{kind}() has no argument {name!r}.{meant} It takes {', '.join(known)}")
