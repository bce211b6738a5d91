"""Trials of workers: what they load, and what of it counts."""

from concurrent.futures import Future

from kerasfeed.loaders.auto_workers import Trial
from kerasfeed.orders.plan import Plan

AHEAD = 3


class Submitted:
    """Notes the steps that it is asked for, and has each batch ready when so many more were asked for."""

    def __init__(self, fails_at=None):
        self.steps, self.futures, self._fails_at = [], [], fails_at

    def __call__(self, epoch, step):
        self.steps.append(step)
        self.futures.append(Future())
        if len(self.steps) >= AHEAD:
            ready = self.futures[-AHEAD]
            if ready.cancelled():
                pass
            elif self.steps[-AHEAD] == self._fails_at:
                ready.set_exception(OSError("gone"))
            else:
                ready.set_result(None)
        return self.futures[-1]


def test_each_run_goes_on_with_the_step_after_the_last_one_that_was_asked_for():
    submitted = Submitted()
    trial = Trial(submitted, Plan(64, 8), 2, AHEAD, first=6)
    assert trial.run(1e-3) > 0
    count = len(submitted.steps)
    assert trial.run(1e-3) > 0
    assert len(submitted.steps) > count
    assert submitted.steps == [(6 + number) % 8 for number in range(len(submitted.steps))]


def test_a_scene_that_raises_is_no_rate_and_no_error():
    assert Trial(Submitted(fails_at=2), Plan(64, 8), 2, AHEAD).run(60.0) is None


def test_a_batch_that_is_waited_for_in_vain_is_no_rate():
    class Hangs(Submitted):
        def __call__(self, epoch, step):
            return Future() if step == 5 else super().__call__(epoch, step)

    assert Trial(Hangs(), Plan(64, 8), 2, AHEAD).run(600.0, patience=0.01) is None


def test_what_is_in_flight_at_the_end_of_a_run_is_given_up():
    submitted = Submitted()
    assert Trial(submitted, Plan(64, 8), 1, AHEAD).run(1e-3) > 0
    assert [future.cancelled() for future in submitted.futures[-AHEAD:]] == [False, True, True]
