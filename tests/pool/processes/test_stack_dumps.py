"""What of a worker's stack the user is shown."""

from kerasfeed.pool.processes.stack_dumps import users_part


def test_the_user_s_part_of_a_report_is_what_the_main_thread_was_at():
    report = """Fatal Python error: Segmentation fault

Thread 0x1 (most recent call first):
  File "/x/kerasfeed/pool/processes/worker.py", line 9 in watch_parent

Current thread 0x2 (most recent call first):
  File "/home/me/deep.py", line 2 in inner
  File "/home/me/rooms.py", line 7 in __getitem__
  File "/x/kerasfeed/sequences/base.py", line 5 in __getitem__
  File "/x/kerasfeed/loaders/batches/filler.py", line 1 in fill
  File "/x/kerasfeed/pool/processes/worker.py", line 3 in main
"""
    assert users_part(report) == (
        '  File "/home/me/rooms.py", line 7 in __getitem__\n  File "/home/me/deep.py", line 2 in inner'
    )
    assert users_part("nonsense") == ""
