"""Ctrl-C at a chosen point, as a signal that comes there."""

import gc
import sys
import threading


def interrupted_at(number, call, *arguments, module=None):
    """Raise KeyboardInterrupt in `call` when its `number`th function begins or returns; return whether there was one.

    With a `module`, only its functions count, and functions of `threading` that they call. The garbage collector does
    not run meanwhile, because it drops exceptions in its calls.
    """
    events = 0

    def counts(frame):
        while module is not None and frame is not None and frame.f_code.co_filename == threading.__file__:
            frame = frame.f_back
        return module is None or (frame is not None and frame.f_code.co_filename == module.__file__)

    def trace(frame, event, _):
        nonlocal events
        if event in ("call", "return") and counts(frame):
            events += 1
            if events == number:
                raise KeyboardInterrupt
        return trace

    collects = gc.isenabled()
    gc.disable()
    sys.settrace(trace)
    try:
        call(*arguments)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        if collects:
            gc.enable()
    return False
