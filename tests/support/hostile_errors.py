"""Exceptions that cannot be printed or pickled, or that are falsy, and scenes that raise them."""

import kerasfeed as kf


class Str(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Reduce(Exception):
    def __reduce_ex__(self, protocol):
        raise TypeError("not to be sent")


class Falsy(Exception):
    def __len__(self):
        return 0


def _group(_="x"):
    return ExceptionGroup("several", [ValueError("one"), Str("x"), Falsy("x"), Reduce("x")])


def _caused(_="x"):
    error = ValueError("with a cause")
    error.__cause__ = Str("x")
    return error


KINDS = {"Reduce": Reduce, "Falsy": Falsy, "Str": Str, "group": _group, "caused": _caused}
WORST = ["Reduce", "Falsy", "Str"]


def dealt(ways):
    """(way, kind): the worst kinds in each kind of call of the user's code, and the others in one."""
    kinds = list(KINDS)
    return [(way, kind) for k, way in enumerate(ways) for kind in dict.fromkeys([*WORST, *kinds[k :: len(ways)]])]


def arrived(error, kind):
    """Whether `error` is the exception of `hostile(kind)`, or replaces it."""
    named = {"group": "several", "caused": "with a cause"}.get(kind, kind)
    own = {"group": ExceptionGroup, "caused": ValueError}.get(kind, KINDS[kind])
    return type(error) is own or (isinstance(error, kf.KerasfeedError) and named in BaseException.__str__(error))


class Raising(kf.SceneSequence):
    """Scenes of one number; number 9 raises the exception that the file names."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == 9:
            raise KINDS[self.path.read_text()]("x" * 10)
        return float(index), index
