"""How a test that is stuck ends, and says where."""

import faulthandler
import os
import sys


class Stuck:
    """A plugin that ends the process of a test that takes longer than its timeout, with the stack of each thread.

    pytest-timeout's own way needs the GIL, and prints nothing where pytest-xdist runs the test.
    """

    def __init__(self):
        """Make one before pytest captures what a test prints."""
        self._stderr = os.dup(sys.__stderr__.fileno())

    def pytest_timeout_set_timer(self, item, settings):
        faulthandler.dump_traceback_later(settings.timeout, exit=True, file=self._stderr)
        return True

    def pytest_timeout_cancel_timer(self, item):
        faulthandler.cancel_dump_traceback_later()
        return True

    def pytest_unconfigure(self):
        os.close(self._stderr)
