"""Trains critics on minibatches of frozen returns, and summarises what they saw."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lambda_replay.config import OptimizerConfig
from lambda_replay.learning.ensemble_optimizer import EnsembleOptimizer
from lambda_replay.learning.fast_ensembles import FastEnsemble
from lambda_replay.learning.training_summary import NORM_EVERY, summarise


class CriticGradient(NamedTuple):
    """A gradient, and what it saw."""

    gradients: list[Tensor]
    errors: Tensor  # [N, B]  R − Q_j(s, a)
    values: Tensor  # [N, B]  Q_j(s, a)


def critic_gradient(critics: FastEnsemble, inputs: Tensor, returns: Tensor, *, is_huber: bool) -> CriticGradient:
    """The gradient of the mean over a minibatch of Σ_j [R − Q_j(s, a)]², or of its Huber version.

    ``inputs`` are states and actions [B, inputs + D], ``returns`` [B].
    """
    outputs, saved = critics.forward_saving(inputs)
    values = outputs[..., 0]  # [N, B]
    errors = returns - values
    slopes = errors.clamp(-1, 1) if is_huber else 2 * errors
    return CriticGradient(critics.gradients(saved, slopes[..., None] / -len(returns)), errors, values)


class CriticSummary(NamedTuple):
    """Means over the samples of some minibatches, each measured before its own gradient step."""

    loss: float
    gradient_norm: float  # before clipping; mean over those that were measured
    q_values: list[float]  # Q_j(s, a) of each critic
    td_error_abs: float


class CriticRecord:
    """What some minibatches showed, for a summary."""

    def __init__(self, *, is_huber: bool) -> None:
        self._is_huber = is_huber
        self._errors: list[Tensor] = []
        self._values: list[Tensor] = []
        self._norms: list[Tensor] = []

    @property
    def measures_next(self) -> bool:
        """Whether the norm of the next gradient is wanted."""
        return len(self._errors) % NORM_EVERY == 0

    def add(self, errors: Tensor, values: Tensor, norm: Tensor | None) -> None:
        """Errors R − Q_j(s, a) and values Q_j(s, a) [N, B] of a minibatch, and its gradient's norm if it is known."""
        self._norms += [] if norm is None else [norm]
        self._errors.append(errors)
        self._values.append(values)

    def summarise(self) -> CriticSummary:
        """The summary; raises DivergenceError if anything in it is not finite."""
        errors, values = (torch.stack(many).cpu().numpy() for many in (self._errors, self._values))  # [updates, N, B]
        summary = summarise(errors, values, self._norms, is_huber=self._is_huber)
        q_values = values.mean(axis=(0, 2)).tolist()
        return CriticSummary(summary.loss, summary.gradient_norm, q_values, summary.td_error_abs)


class CriticTraining:
    """The critics' gradient steps since ``begin``."""

    def __init__(self, critics: FastEnsemble, config: OptimizerConfig) -> None:
        self._critics, self._is_huber = critics, config.loss == "huber"
        self.optimizer = EnsembleOptimizer(critics, config)
        self.begin()

    def begin(self) -> None:
        """Forget the minibatches seen."""
        self._record = CriticRecord(is_huber=self._is_huber)

    def update(self, inputs: Tensor, returns: Tensor) -> None:
        """One gradient step."""
        gradients, errors, values = critic_gradient(self._critics, inputs, returns, is_huber=self._is_huber)
        norm = self.optimizer.step(gradients, measures=self._record.measures_next)
        self._record.add(errors, values, norm)

    def summarise(self) -> CriticSummary:
        return self._record.summarise()
