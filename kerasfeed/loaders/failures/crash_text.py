"""Messages about a scene that ends its workers.

Invariant: names the scene, how its worker ended, how to see that again, and what to do.
"""

from kerasfeed.pool.task import Crash


def fatal_text(crash: Crash, index: int, count: int, batch: str, item: str | None = None) -> str:
    """Why a scene that ended its worker is not tried again.

    Args:
        crash: The last.
        index: Index of the scene.
        count: How often it was tried.
        batch: The call that loads the batch, for reproduction; empty while the spec is inferred.
        item: What was given to the function of a stream, as text; None for a sequence.
    """
    remedy = (
        f"Reproduce it in a Python of its own, for it may end that too: sequence[{index}]{batch and f', or {batch}'}."
    )
    other = " To go on without such scenes use on_error='replace'"
    if item is not None:
        remedy = (
            f"The item was {item}. To reproduce it call the function with that in a Python of its own, for it may end "
            "that too."
        )
        other = " To go on without such items use on_error='skip'"
    return f"{ending_text(crash, count, ', as often as max_failures allows')} {remedy}{other}"


def ending_text(crash: Crash, count: int, allowed: str = "") -> str:
    """How a scene has ended its worker, `count` times; `allowed` says of these times what they are."""
    times = "" if count == 1 else f" {count} times"
    if crash.hung:
        what = (
            f"{crash.place} took longer than timeout={crash.timeout} s{times} in {crash.worker}, which was ended for "
            f"that{crash.memory}."
        )
    else:
        what = (
            f"{crash.worker} {crash.ending} while it loaded {crash.place}{crash.memory}. The scene has ended its worker"
            f"{times and times + allowed}. Out of memory shows as SIGKILL, a fault in a compiled library as SIGSEGV."
        )
    return what + crash.stack_text


def function_text(crash: Crash, epoch: int, step: int) -> str:
    """Why a batch is not tried again whose making, by the function given as collate, ended its worker."""
    what = "took too long and was ended" if crash.hung else crash.ending
    return (
        f"{crash.worker} {what} while the function given as collate made the batch of epoch {epoch}, step {step}"
        f"{crash.memory}, as often as max_failures allows.{crash.stack_text} Reproduce it in a Python of its own, for "
        f"it may end that too: kf.load(feed, epoch={epoch}, step={step})"
    )
