"""What the README says of collation runs as it stands."""

import re

import keras
import numpy as np
import pytest
from places import README

import kerasfeed as kf

TEXT = README.read_text()


@pytest.mark.heavy
@pytest.mark.usefixtures("memory_freed")
def test_the_snippets_on_collation_run_and_give_what_they_say():
    section = TEXT.split("\n## Collation\n")[1].split("\n## ")[0]
    made = []

    def make(*given, **arguments):
        made.append(kf.Feed(*given, workers=0, seed=0, **arguments))
        return made[-1]

    class Here:  # kf, but for feeds that this test closes
        Feed = staticmethod(make)

        def __getattr__(self, name):
            return getattr(kf, name)

    names = {"kf": Here(), "np": np, "keras": keras}
    for snippet in re.findall(r"```python\n(.*?)```", section, re.DOTALL):
        exec(snippet, names)
    longest, classes, multiple, length, masked, ragged, graphs = made
    assert longest[0][0].shape == (4, 11, 3)
    assert classes[0][1][0].tolist()[8:] == [-1, -1, -1]
    assert multiple[0][0].shape == (4, 16, 3)
    assert length.element_spec[0].shape == (4, 16, 3)
    assert masked[0][0][1].sum(axis=1).tolist() == [8, 9, 10, 11]
    assert ragged[0][0].row_splits.tolist() == [0, 8, 17, 27, 38]
    assert graphs[0][1].tolist() == np.repeat(np.arange(4), [8, 9, 10, 11]).tolist()
    for feed in made:
        feed.close()
