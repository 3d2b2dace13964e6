"""Runs an agent's learning immediately, or in a thread alongside acting.

Alongside acting, θ_k plays a window while θ_{k+1} is trained from the cache of θ_k. The result does not depend on
timing: everything that training reads is fixed when the work is created, the slots it reads states from are not
overwritten in that window, and what was learnt is adopted only at the next boundary.
"""

from __future__ import annotations

import threading

import torch

from lambda_replay.agents.protocol import Work
from lambda_replay.replay.diagnostics import Metrics


class Worker:
    """Runs one ``Work`` at a time."""

    def __init__(self, *, is_concurrent: bool, threads: int) -> None:
        """``threads``: how many threads concurrent training uses for its products; acting then has one."""
        self._is_concurrent, self._threads = is_concurrent, threads
        self._is_stopped = False
        self._thread: threading.Thread | None = None
        self._work: Work | None = None
        self._metrics: Metrics | None = None
        self._error: BaseException | None = None

    def start(self, work: Work) -> Metrics | None:
        """Do the work and return its metrics or, if it runs alongside acting, start it and return None."""
        if not self._is_concurrent:
            metrics = work.train(self._keeps_going)
            work.adopt()
            return metrics
        assert self._thread is None
        self._work = work
        self._thread = threading.Thread(target=self._train_beside, args=(work,), name="training", daemon=True)
        self._thread.start()
        return None

    def finish(self) -> Metrics | None:
        """Wait for work in progress and adopt its result; returns its metrics, or None if there was none."""
        if self._thread is None:
            return None
        self._thread.join()
        self._thread = None
        if self._error is not None:
            raise self._error
        assert self._work is not None
        self._work.adopt()
        return self._metrics

    def stop(self) -> None:
        """Stop work in progress after its current gradient step; its result is lost."""
        self._is_stopped = True
        if self._thread is not None:
            self._thread.join()

    def _keeps_going(self) -> bool:
        return not self._is_stopped

    def _train_beside(self, work: Work) -> None:
        try:
            torch.set_num_threads(self._threads)  # for this thread only
            self._metrics = work.train(self._keeps_going)
        except BaseException as error:  # noqa: BLE001 — raised again in the thread that waits for the result
            self._error = error
