"""Keras's own `fit` with other names of its variables, as in other versions of Keras. Imports Keras."""

import inspect
import sys
import textwrap

import keras

TRAINER = sys.modules[keras.Model.fit.__module__]  # of the present backend


def renamed_fit(names):
    """Keras's `fit`, a function, with some variables renamed, from old to new."""
    return _fit_of(_source(), names)


def fit_of_3_10():
    """Keras's `fit` as in Keras 3.10: callbacks get the first step of an execution, also after it."""
    source = _source().replace("for begin_step, end_step, iterator in", "for begin_step, _, iterator in")
    return _fit_of(
        source.replace("on_train_batch_end(end_step", "on_train_batch_end(begin_step"), {"begin_step": "step"}
    )


def _source():
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(keras.Model.fit)))
    return source[source.index("def fit") :]


def _fit_of(source, names):
    for old, new in names.items():
        assert old in source
        source = source.replace(old, new)
    found = {}
    exec(compile(source, "fit_renamed", "exec"), vars(TRAINER), found)
    return found["fit"]
