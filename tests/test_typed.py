"""Results of mypy, in strict mode, for a user's typed classes."""

import os
import subprocess
import sys

import pytest
from places import ROOT

ROOMS = """
from typing import overload
import kerasfeed as kf

class Rooms(kf.SceneSequence):
    def __len__(self) -> int:
        return 100
    def __getitem__(self, index: int) -> tuple[list[float], int]:
        return [1.5], index

class Sliced(kf.SceneSequence):
    def __len__(self) -> int:
        return 100
    @overload
    def __getitem__(self, index: int) -> tuple[list[float], int]: ...
    @overload
    def __getitem__(self, index: slice) -> kf.Subset: ...
    def __getitem__(self, index: int | slice) -> tuple[list[float], int] | kf.Subset:
        assert isinstance(index, int)
        return [1.5], index

rooms = Rooms()
label: int = rooms[3][1]
label = Sliced()[3][1]
part: kf.Subset = Sliced()[10:20]
part = kf.Subset(rooms, slice(10, 20))
few = part[2:4], kf.Zip(rooms, rooms)[1:3], kf.Concat(rooms, rooms)[::2], kf.Map(rooms, abs)[:5]

def first(sequence: kf.SceneSequence) -> None:
    sequence[:5]

first(rooms)
for room in rooms:
    print(room)
"""


SETTINGS = """
[mypy]
strict = True
follow_imports = skip
ignore_missing_imports = True

# Frameworks are left out: they take a minute.
[mypy-kerasfeed,kerasfeed.*]
follow_imports = silent
"""


@pytest.mark.heavy
def test_strict_mypy_accepts_a_typed_class_and_refuses_unknown_arguments(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed (pip install kerasfeed[dev])")
    good = 'feed = kf.Feed(rooms, 32, shuffle=True, seed=0, workers="auto")'
    bad = [
        "wrong: int = Sliced()[10:20]", "wrong = Sliced()[3][0]", "rooms[10:20]", "kf.Feed(rooms, 32, suffle=True)",
        "kf.StreamFeed(lambda: iter([1]), 32, suffle=True)",
    ]  # fmt: skip
    (tmp_path / "user.py").write_text("\n".join([ROOMS, good, *bad]))
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "user.py"]
    environment = {"MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stderr == ""
    said = done.stdout.splitlines()
    assert [line for line in said if "note:" not in line][5:] == []
    assert 'expression has type "Subset", variable has type "int"' in said[0]
    assert 'expression has type "list[float]", variable has type "int"' in said[1]
    # A class that declares only `index: int` takes no slices, even if its base class does.
    assert 'Invalid index type "slice[int, int, None]" for "Rooms"' in said[2]
    assert 'Unexpected keyword argument "suffle" for "Feed"; did you mean "shuffle"?' in said[3]
    assert 'Unexpected keyword argument "suffle" for "StreamFeed"' in "".join(said[4:])


def test_a_class_with_overloads_can_be_sliced():
    space: dict = {}
    exec(ROOMS, space)
    assert [scene[1] for scene in space["Sliced"]()[10:13]] == [10, 11, 12]
