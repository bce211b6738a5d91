"""Without the packages of the extra `tfrecord`."""

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
sys.modules[{module!r}] = None
import kerasfeed as kf
kf.Feed, kf.HDF5File, kf.write_hdf5
try:
    kf.{name}
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["TFRecordSequence", "write_tfrecords"])
@pytest.mark.parametrize(("module", "package"), [("google_crc32c", "google-crc32c"), ("google.protobuf", "protobuf")])
def test_only_tfrecords_need_the_extra_which_the_error_names(name, module, package):
    program = "import os; os.environ['KERAS_BACKEND'] = 'numpy'" + _PROGRAM.format(module=module, name=name)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert run.stdout.strip() == (
        f"TFRecord files need {package}, which is not installed: pip install {package} "
        '(the extra "kerasfeed[tfrecord]")'
    )
