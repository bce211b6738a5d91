"""The part of a worker's stack that the user sees."""

from kerasfeed.pool.processes.stack_dumps import users_part
from kerasfeed.util.error_text import PACKAGE_FOLDER

REPORT = """Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "{package}pool/processes/worker.py", line 9 in watch_parent

Current thread 0x2 (most recent call first):
  File "{users}deep.py", line 2 in inner
  File "{users}rooms.py", line 7 in __getitem__
  File "{package}sequences/base.py", line 5 in __getitem__
  File "{package}loaders/batches/row_loader.py", line 1 in fill
  File "{package}pool/processes/worker.py", line 3 in main
"""


def test_the_user_s_part_of_a_stack_dump_is_that_of_the_main_thread():
    for users in ("/home/me/", "/home/me/kerasfeed/sequences/", "/home/me/kerasfeed/pool/"):
        found = users_part(REPORT.format(package=PACKAGE_FOLDER, users=users))
        assert found == f'  File "{users}rooms.py", line 7 in __getitem__\n  File "{users}deep.py", line 2 in inner'
    assert users_part("nonsense") == ""
