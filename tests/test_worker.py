"""The worker: an agent's work at once or beside the acting, its errors, and its end in the middle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import NoReturn

import pytest
import torch
from environments import Scripted, make_loop, tiny_config
from processes import HUNG_SECONDS

from lambda_replay.agents.protocol import KeepsGoing, Work
from lambda_replay.replay.diagnostics import Metrics
from lambda_replay.training.loop import Boundary, GameEnd
from lambda_replay.training.worker import Worker


def at_once() -> Worker:
    return Worker(is_concurrent=False, threads=1)


def beside() -> Worker:
    return Worker(is_concurrent=True, threads=1)


def training_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "training"]


class Diary:
    """Work that writes down what is done and in which thread; training waits until it may go on."""

    def __init__(self, metrics: Metrics | None = None, error: BaseException | None = None) -> None:
        self.entries: list[tuple[str, threading.Thread]] = []
        self.may_train = threading.Event()
        self._metrics, self._error = metrics, error

    @property
    def work(self) -> Work:
        return Work(self._train, lambda: self._write("adopt"))

    @property
    def words(self) -> list[str]:
        return [word for word, _ in self.entries]

    def _write(self, word: str) -> None:
        self.entries.append((word, threading.current_thread()))

    def _train(self, keeps_going: KeepsGoing) -> Metrics | None:
        assert self.may_train.wait(HUNG_SECONDS)
        self._write("train")
        if self._error is not None:
            raise self._error
        return self._metrics


def ready(metrics: Metrics | None = None, error: BaseException | None = None) -> Diary:
    diary = Diary(metrics, error)
    diary.may_train.set()
    return diary


# --- golden -----------------------------------------------------------------------------------------------------------


def test_at_once_it_trains_and_adopts_before_it_answers() -> None:
    worker, diary, here = at_once(), ready({"loss": 0.5}), threading.current_thread()
    assert worker.start(diary.work) == {"loss": 0.5}
    assert diary.entries == [("train", here), ("adopt", here)]
    assert worker.finish() is None
    assert diary.words == ["train", "adopt"]


def test_beside_the_acting_it_answers_first_and_adopts_when_it_is_waited_for() -> None:
    worker, diary, here = beside(), Diary({"loss": 0.5}), threading.current_thread()
    assert worker.start(diary.work) is None
    assert diary.entries == []  # the caller acts meanwhile
    diary.may_train.set()
    assert worker.finish() == {"loss": 0.5}
    (trained, where), adopted = diary.entries
    assert (trained, where.name) == ("train", "training")
    assert where is not here
    assert adopted == ("adopt", here)
    assert not training_threads()


def test_nothing_is_adopted_before_it_is_waited_for() -> None:
    worker, diary = beside(), ready()
    worker.start(diary.work)
    for thread in training_threads():
        thread.join(HUNG_SECONDS)
    assert diary.words == ["train"]
    worker.finish()
    assert diary.words == ["train", "adopt"]


@pytest.mark.parametrize("make", [at_once, beside])
def test_without_work_there_is_nothing_to_wait_for(make: Callable[[], Worker]) -> None:
    worker = make()
    assert worker.finish() is None
    worker.stop()
    assert worker.finish() is None


def test_every_piece_of_work_has_its_own_metrics() -> None:
    """None where no window ended, whatever the piece before had to say; once told, they are told no more."""
    told: list[Metrics | None] = [{"loss": 1.0}, None, {"loss": 3.0}, {"loss": 4.0}]
    for make in (at_once, beside):
        worker, found = make(), []
        for metrics in told:
            started = worker.start(ready(metrics).work)
            finished = worker.finish()
            found.append(started if make is at_once else finished)
            assert (finished if make is at_once else started) is None
            assert worker.finish() is None
        assert found == told


def test_one_piece_of_work_at_a_time() -> None:
    worker, diary = beside(), Diary()
    worker.start(diary.work)
    with pytest.raises(AssertionError):
        worker.start(ready().work)
    diary.may_train.set()
    worker.finish()
    assert diary.words == ["train", "adopt"]


def test_the_training_thread_splits_its_products_and_the_callers_do_not_change() -> None:
    before, found = torch.get_num_threads(), []

    def train(keeps_going: KeepsGoing) -> None:
        found.append(torch.get_num_threads())

    worker = Worker(is_concurrent=True, threads=before + 2)
    worker.start(Work(train, lambda: None))
    worker.finish()
    assert found == [before + 2]
    assert torch.get_num_threads() == before


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("out of order"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_error_beside_the_acting_is_raised_where_its_result_is_waited_for(error: BaseException) -> None:
    worker, diary = beside(), ready(error=error)
    assert worker.start(diary.work) is None
    with pytest.raises(type(error)) as caught:
        worker.finish()
    assert caught.value is error
    assert "_train" in [entry.name for entry in caught.traceback]  # where it came from
    assert diary.words == ["train"]  # what failed is not adopted
    worker.stop()
    assert not training_threads()


def test_an_error_at_once_is_raised_at_once() -> None:
    diary = ready(error=RuntimeError("out of order"))
    with pytest.raises(RuntimeError, match="out of order"):
        at_once().start(diary.work)
    assert diary.words == ["train"]


@pytest.mark.parametrize("make", [at_once, beside])
def test_an_error_in_adopting_is_raised_too(make: Callable[[], Worker]) -> None:
    def refuse() -> NoReturn:
        raise RuntimeError("no copy")

    def work(worker: Worker) -> None:
        worker.start(Work(lambda keeps_going: None, refuse))
        worker.finish()

    with pytest.raises(RuntimeError, match="no copy"):
        work(make())


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_stopped_in_the_middle_it_ends_after_its_present_step_and_nothing_is_adopted() -> None:
    """Training is in its third step when it is stopped."""
    worker, is_third = beside(), threading.Event()
    steps: list[int] = []
    adopted: list[bool] = []

    def train(keeps_going: KeepsGoing) -> None:
        while keeps_going():
            steps.append(len(steps))
            if len(steps) == 3:
                is_third.set()
                while keeps_going():
                    pass  # the third step goes on until the stop has reached this thread

    worker.start(Work(train, lambda: adopted.append(True)))
    assert is_third.wait(HUNG_SECONDS)
    worker.stop()
    assert steps == [0, 1, 2]
    assert not adopted
    assert not training_threads()  # whoever stops it may close what it works with


def test_an_error_of_work_that_is_stopped_is_not_told() -> None:
    """Its result is lost, and what stopped the run must not be hidden by what followed from it."""
    worker, diary = beside(), ready(error=RuntimeError("out of order"))
    worker.start(diary.work)
    worker.stop()
    assert diary.words == ["train"]


def test_work_at_once_is_told_of_a_stop_too() -> None:
    """A signal's handler may stop it in the middle."""
    worker = at_once()
    steps: list[int] = []

    def train(keeps_going: KeepsGoing) -> None:
        while keeps_going():
            steps.append(len(steps))
            if len(steps) == 2:
                worker.stop()

    worker.start(Work(train, lambda: None))
    assert steps == [0, 1]


def test_leaving_a_loop_in_the_middle_of_a_window_ends_its_training() -> None:
    """Far more updates than a window could take: without a stop, leaving would take hours."""
    cache = {"schedule": "concurrent", "updates": 1_000_000}
    config = tiny_config("Scripted-v0", cache=cache, optimizer={"batch_size": 1})
    events = make_loop(config, [Scripted("....T", num_actions=3)]).loop.run()
    next(event for event in events if isinstance(event, Boundary))
    next(event for event in events if isinstance(event, GameEnd))
    assert len(training_threads()) == 1
    assert isinstance(events, Generator)
    events.close()
    assert not training_threads()
