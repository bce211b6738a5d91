"""End a test that is stuck, and print its stacks."""

import faulthandler
import os
import sys


class Stuck:
    """A plugin that ends the process of a test that exceeds its timeout, with the stack of each thread.

    pytest-timeout's own method needs the GIL, and prints nothing under pytest-xdist.
    """

    def __init__(self):
        """Make one before pytest captures the output of a test."""
        self._stderr = os.dup(sys.__stderr__.fileno())

    def pytest_timeout_set_timer(self, item, settings):
        faulthandler.dump_traceback_later(settings.timeout, exit=True, file=self._stderr)
        return True

    def pytest_timeout_cancel_timer(self, item):
        faulthandler.cancel_dump_traceback_later()
        return True

    def pytest_unconfigure(self):
        os.close(self._stderr)
