"""A policy's distribution: a Gaussian squashed into (−1, 1) by tanh, and the gradient of its parameters.

u = μ + σ·ε,   ε ~ N(0, 1),   a = tanh(u),   log π(a|s) = Σ_d [ log N(u_d; μ_d, σ_d) − log(1 − tanh²(u_d)) ]

Haarnoja et al. 2018, appendix C. A policy's outputs are μ and log σ, side by side.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

LOG_STD_RANGE = (-20.0, 2.0)  # of log σ, which is clipped to it; Haarnoja et al. 2018, released code
LARGEST_ACTION = 1 - 2**-24  # the largest float32 below 1
EDGE = math.atanh(1 - 2**-25)  # about 9; beyond ±EDGE, tanh(u) rounds to ±1 in float32
HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class Sampled(NamedTuple):
    """Actions drawn from the policy, with what their gradient needs; [n, D] but for ``log_probs``."""

    actions: Tensor
    log_probs: Tensor  # [n]  log π(a|s)
    deviations: Tensor  # σ·ε
    is_clipped: Tensor  # where log σ is outside its range


def sample(outputs: Tensor, noise: Tensor) -> Sampled:
    """Actions of a policy with these outputs [n, 2·D] for noise ε [n, D].

    log(1 − tanh²(u)) = 2·(log 2 − u − softplus(−2u)), which is exact where tanh rounds to ±1.
    """
    means, log_stds = outputs.chunk(2, dim=-1)
    clipped = log_stds.clamp(*LOG_STD_RANGE)
    deviations = clipped.exp() * noise
    latent = means + deviations
    of_squashing = 2 * (math.log(2) - latent - functional.softplus(-2 * latent))
    log_probs = -(0.5 * noise.square() + clipped + of_squashing + HALF_LOG_TWO_PI).sum(dim=-1)
    return Sampled(latent.tanh(), log_probs, deviations, clipped != log_stds)


def output_gradient(sampled: Sampled, of_actions: Tensor, of_log_probs: Tensor) -> Tensor:
    """The gradient [n, 2·D] of a policy's outputs from those of its actions [n, D] and of each log π(a|s).

    ∂a/∂u = 1 − a²,   ∂log π/∂u = 2a,   ∂u/∂μ = 1,   ∂u/∂log σ = σ·ε,   and ∂log π/∂log σ = −1 besides.
    """
    actions = sampled.actions
    of_latent = of_actions * (1 - actions.square()) + 2 * of_log_probs * actions
    of_log_stds = (of_latent * sampled.deviations - of_log_probs).masked_fill_(sampled.is_clipped, 0.0)
    return torch.cat([of_latent, of_log_stds], dim=-1)


def log_densities(outputs: Tensor, actions: Tensor) -> Tensor:
    """log π(a|s) [n] of given actions [n, D].

    A number that tanh rounded to ±1 has no density but a probability: that of |u| > EDGE on its side.
    """
    means, log_stds = outputs.chunk(2, dim=-1)
    clipped = log_stds.clamp(*LOG_STD_RANGE)
    precision = (-clipped).exp()  # 1/σ
    inside = actions.clamp(-LARGEST_ACTION, LARGEST_ACTION)
    noise = (inside.atanh() - means) * precision
    of_squashing = torch.log1p(-inside) + torch.log1p(inside)
    densities = -(0.5 * noise.square() + clipped + of_squashing + HALF_LOG_TWO_PI)
    probabilities = torch.special.log_ndtr((actions.sign() * means - EDGE) * precision)
    return torch.where(actions.abs() > LARGEST_ACTION, probabilities, densities).sum(dim=-1)
