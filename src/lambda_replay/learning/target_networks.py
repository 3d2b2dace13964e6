"""Target networks: copies of trained networks that follow them slowly."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lambda_replay.learning.actor_critic import ActorCritic, joined, part_of
from lambda_replay.learning.divergence import require_all_finite
from lambda_replay.learning.ensembles import Ensemble

Part = Literal["policy", "critics"]


class TargetNetworks:
    """θ' ← τ·θ + (1 − τ)·θ' for the parts that have a target; the other part is the trained one itself.

    Polyak averaging, as in Lillicrap et al. 2016, Algorithm 1.
    """

    def __init__(self, trained: ActorCritic, rate: float, parts: Sequence[Part]) -> None:
        """``rate`` is τ."""
        self._rate = rate
        self._copies: dict[str, Ensemble] = {part: copy.deepcopy(trained.modules[part]) for part in parts}
        self.networks = ActorCritic(**{**trained.modules, **self._copies}, device=trained.device)
        self._pairs = [
            (own.detach(), followed.detach())
            for part, module in self._copies.items()
            for own, followed in zip(module.parameters(), trained.modules[part].parameters(), strict=True)
        ]

    @torch.no_grad()
    def follow(self) -> None:
        """One step towards the trained networks."""
        own, followed = (list(many) for many in zip(*self._pairs, strict=True))
        torch._foreach_lerp_(own, followed, self._rate)

    def check_finite(self) -> None:
        """Raise DivergenceError if any weight is not finite."""
        require_all_finite("the target networks' weights are", [own for own, _ in self._pairs])

    def weights(self) -> dict[str, Tensor]:
        """A copy of the targets' own parameters on the host."""
        parameters = joined(**{part: module.state_dict() for part, module in self._copies.items()})
        return {name: value.cpu().clone() for name, value in parameters.items()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        for part, module in self._copies.items():
            module.load_state_dict(part_of(weights, part))
