"""Exceptions that fail whoever prints, pickles or changes them, each in another way, and scenes that raise them."""

import kerasfeed as kf


class Str(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class StrExits(Exception):
    def __str__(self):
        raise SystemExit(3)


class StrEndsGenerator(Exception):
    def __str__(self):
        raise GeneratorExit


class StrRecurses(Exception):
    def __str__(self):
        return str(self)


class StrOfNumber(Exception):
    def __str__(self):
        return 3


class Repr(Exception):
    def __repr__(self):
        raise RuntimeError("no picture")


class Reduce(Exception):
    def __reduce_ex__(self, protocol):
        raise SystemExit("not to be sent")


class ReducesToNonsense(Exception):
    def __reduce__(self):
        return int, ("nonsense",)


def _ends():
    raise SystemExit("as it is made anew")


class UnpickledExits(Exception):
    def __reduce__(self):
        return _ends, ()


class SetAttribute(Exception):
    def __setattr__(self, name, value):
        raise AttributeError(f"{name} cannot be set")


class Hash(Exception):
    __hash__ = None

    def __eq__(self, other):
        raise RuntimeError("not to be compared")


class Falsy(Exception):
    def __len__(self):
        return 0


def _group(_="x"):
    return ExceptionGroup("several", [ValueError("one"), Str("x"), Falsy("x"), Reduce("x")])


def _caused(_="x"):
    error = ValueError("with a cause")
    error.__cause__ = StrExits("x")
    return error


_CLASSES = [
    Str, StrExits, StrEndsGenerator, StrRecurses, StrOfNumber, Repr, Reduce, ReducesToNonsense, UnpickledExits,
    SetAttribute, Hash, Falsy,
]  # fmt: skip
KINDS = {each.__name__: each for each in _CLASSES} | {"group": _group, "caused": _caused}
# Where starting costs more than raising, those that have shown most.
WORST = ["Reduce", "Falsy", "Str"]


def dealt(ways):
    """(way, kind): every kind by one of the ways in which users' code is called, the worst by all."""
    kinds = list(KINDS)
    return [(way, kind) for k, way in enumerate(ways) for kind in dict.fromkeys([*WORST, *kinds[k :: len(ways)]])]


def arrived(error, kind):
    """Whether `error` is what `hostile(kind)` raised, or stands for it."""
    named = {"group": "several", "caused": "with a cause"}.get(kind, kind)
    own = {"group": ExceptionGroup, "caused": ValueError}.get(kind, KINDS[kind])
    return type(error) is own or (isinstance(error, kf.KerasfeedError) and named in BaseException.__str__(error))


class Raising(kf.SceneSequence):
    """Scenes of one number, of which number 9 raises what the file says."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 9:
            raise KINDS[self.path.read_text()]("x" * 10)
        return float(index), index
