"""Run settings: frozen dataclasses with each field's unit, default and value in the paper.

``RunConfig`` holds the settings that all runs share; each agent's file declares its own, built from the parts here. The
comment after a field is its help text on the command line. "Paper" is Daley & Amato 2019, appendix A.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from lambda_replay.checks import (
    LARGEST_NUMBER,
    require,
    require_fraction,
    require_positive,
    require_reasonable,
    require_widths,
    shown,
)

Schedule = Literal["burst", "concurrent"]
Sampling = Literal["independent", "systematic"]
Device = Literal["auto", "cpu", "cuda", "mps"]
RESERVED = ("id", "render_mode", "disable_env_checker")  # arguments of gymnasium.make that users cannot set
OBJECT = "object/"  # begins the name of what was given as a Python object and cannot be found by any name
MAX_THREADS = 1024  # more than any machine's cores; far more would crash the process
SMALLEST_SCALE, LARGEST_SCALE = 0.0625, 16  # of the networks' widths: one filter of 16, and 2,048 units of 128


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """The replay memory."""

    capacity: int = 1_000_000  # slots, one per observation, shared by all environments; paper 1,000,000
    start: int = 50_000  # agent steps of uniformly random play before learning starts; paper 50,000
    history: int = 4  # observations stacked into one state; paper 4 (1 for partial observability)
    storage: Literal["disk", "ram"] = "disk"  # disk: memory-mapped files in the run directory; ram: plain arrays

    def __post_init__(self) -> None:
        require_reasonable("memory.", self)
        require_positive("memory.", self, "capacity", "start", "history")
        require(
            self.history <= 255, f"memory.history is {self.history}; give a number from 1 to 255.", "memory.history"
        )
        require(
            self.start <= self.capacity,
            f"memory.capacity ({self.capacity}) is smaller than memory.start ({self.start}); "
            "raise memory.capacity or lower memory.start.",
            "memory.capacity",
            "memory.start",
        )


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The refreshed cache of precomputed returns."""

    size: int = 80_000  # rows S; paper 80,000
    block_length: int = 100  # agent steps B per block; paper 100
    refresh_every: int = 10_000  # agent steps F between refreshes; updates stay as they are; paper 10,000
    updates: int | None = None  # minibatches per refresh; None means refresh_every / 4, the paper's ratio
    schedule: Schedule = "burst"  # concurrent: act with the previous network while training; paper burst
    tail: int = 0  # agent steps computed beyond each block and discarded, which lengthens its last returns; paper 0
    priority: float = 0.0  # p at the first step, annealed linearly to 0 at the last; paper 0 or 0.1
    priority_quantile: float = 0.5  # quantile of |TD error| above which samples are preferred; paper 0.5, the median
    newest: bool = False  # the newest block of every environment enters each cache, besides random ones; paper no
    sampling: Sampling = "independent"  # systematic: each row as often as its probability says; paper independent

    def __post_init__(self) -> None:
        require_reasonable("cache.", self)
        require_positive("cache.", self, "size", "block_length", "refresh_every")
        require(
            self.size % self.block_length == 0,
            f"cache.size ({self.size}) must be a multiple of cache.block_length ({self.block_length}); "
            f"{max(1, round(self.size / self.block_length)) * self.block_length} is the nearest.",
            "cache.size",
            "cache.block_length",
        )
        require(self.tail >= 0, f"cache.tail is {self.tail}; give 0 or more agent steps.", "cache.tail")
        require(
            not (self.newest and self.tail),
            f"cache.tail ({self.tail}) would discard the steps that cache.newest adds; leave one of them out.",
            "cache.tail",
            "cache.newest",
        )
        if self.updates is not None:
            require_positive("cache.", self, "updates")
        require_fraction("cache.", self, "priority")
        require(
            0 <= self.priority_quantile < 1,
            f"cache.priority_quantile is {self.priority_quantile}; give a number from 0 up to but not including 1.",
            "cache.priority_quantile",
        )

    @property
    def num_blocks(self) -> int:
        return self.size // self.block_length

    @property
    def updates_per_refresh(self) -> int:
        return max(1, self.refresh_every // 4) if self.updates is None else self.updates

    def reserve_slots(self, num_streams: int) -> int:
        """Slots per stream that acting may push out of the window while training still reads it; 0 for burst."""
        if self.schedule == "burst":
            return 0
        return 2 * self.refresh_every // num_streams  # a step takes at most two slots: see memory_checksums.py


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """ε-greedy exploration, annealed linearly; counted from the first step of the run."""

    start: float = 1.0  # ε at step 0; paper 1
    end: float = 0.1  # ε after the annealing; paper 0.1
    steps: int = 1_000_000  # agent steps of annealing; paper 1,000,000

    def __post_init__(self) -> None:
        require_reasonable("exploration.", self)
        require_fraction("exploration.", self, "start", "end")
        require_positive("exploration.", self, "steps")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam on minibatches."""

    batch_size: int = 32  # samples M per minibatch; paper 32
    learning_rate: float = 1e-4  # Adam α; paper 0.0001
    final_learning_rate: float | None = None  # α at the last step, reached linearly; None means constant; paper None
    rectified: bool = False  # RAdam: small first steps, while the variance is uncertain (Liu et al. 2020); paper no
    beta1: float = 0.9  # Adam; paper 0.9
    beta2: float = 0.999  # Adam; paper 0.999
    epsilon: float = 1e-4  # Adam ε; paper 0.0001
    loss: Literal["squared", "huber"] = "squared"  # paper squared
    max_grad_norm: float | None = None  # clip the gradient norm to this; None means no clipping; paper None

    def __post_init__(self) -> None:
        require_reasonable("optimizer.", self)
        require_positive("optimizer.", self, "batch_size", "learning_rate", "epsilon")
        if self.final_learning_rate is not None:
            require(
                0 <= self.final_learning_rate < math.inf,
                f"optimizer.final_learning_rate is {self.final_learning_rate}; give 0 or more.",
                "optimizer.final_learning_rate",
            )
        for name, value in (("optimizer.beta1", self.beta1), ("optimizer.beta2", self.beta2)):
            require(0 <= value < 1, f"{name} is {value}; give a number from 0 to below 1.", name)
        if self.max_grad_norm is not None:
            require_positive("optimizer.", self, "max_grad_norm")


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The Q-network."""

    kind: Literal["auto", "atari", "minatar", "mlp"] = "auto"  # auto: chosen from the observation space
    hidden: tuple[int, ...] = (128, 128)  # units per hidden layer of the mlp
    width: float = 1.0  # scales filters and units of the atari and minatar networks' hidden layers; paper 1
    layer_norm: bool = False  # normalise each hidden layer before its ReLU (Ba et al. 2016); paper no

    def __post_init__(self) -> None:
        require(
            SMALLEST_SCALE <= self.width <= LARGEST_SCALE,
            f"network.width is {self.width}; give a number from {SMALLEST_SCALE} to {LARGEST_SCALE}.",
            "network.width",
        )
        require_widths(self.hidden)


@dataclass(frozen=True, kw_only=True)
class AtariConfig:
    """Preprocessing of atari/… environments (Mnih et al. 2015)."""

    frame_skip: int = 4  # emulator frames per agent step; paper 4
    noop_max: int = 30  # up to this many agent-chosen no-op frames at the start of a game; paper 30
    max_frames: int = 108_000  # emulator frames per game before it is truncated; paper 108,000
    life_loss_terminal: bool = True  # a lost life is terminal for learning but the game continues; paper yes
    clip_rewards: bool = True  # learn from the sign of rewards; scores stay unclipped; paper yes
    sticky: float = 0.0  # probability that the previous action is repeated; paper 0
    fire_on_reset: bool = False  # press FIRE at the start of games that wait for it; paper no
    all_actions: bool = False  # all 18 joystick actions instead of the game's minimal set; paper no

    def __post_init__(self) -> None:
        require_reasonable("atari.", self)
        require_positive("atari.", self, "frame_skip", "max_frames")
        require(self.noop_max >= 0, f"atari.noop_max is {self.noop_max}; give 0 or more.", "atari.noop_max")
        require_fraction("atari.", self, "sticky")


@dataclass(frozen=True, kw_only=True)
class MinAtarConfig:
    """Settings of minatar/… environments (Young & Tian 2019)."""

    sticky: float = 0.1  # probability that the previous action is repeated; MinAtar's default 0.1
    ramping: bool = True  # difficulty rises during a game; MinAtar's default yes
    all_actions: bool = False  # all six actions (v0) instead of the game's minimal set (v1)

    def __post_init__(self) -> None:
        require_fraction("minatar.", self, "sticky")


class AgentConfig(Protocol):
    """What an agent's own settings must provide."""

    @property
    def boundary_every(self) -> int:
        """Agent steps between boundaries (refreshes, or target network copies), where checkpoints are taken."""
        ...

    @property
    def schedule(self) -> Schedule:
        """Whether learning runs in one go (burst) or alongside acting (concurrent)."""
        ...

    def check(self, run: RunConfig) -> None:
        """Reject settings that do not fit the rest of the run."""
        ...


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A complete run: the same config and seed give the same metrics, byte for byte, on the same machine's CPU."""

    env: str  # atari/pong, minatar/breakout, CartPole-v1, Pendulum-v1, or package:Env-v0 (any Gymnasium id)
    env_args: tuple[str, ...] = ()  # name=value arguments of a Gymnasium environment; values are JSON, or else text
    agent: str = "dqn-lambda"  # dqn-, drqn-, uvfa-lambda, dqn, pqn; Box: sac-, td3-, ddpg-, naf-, sdqn-lambda, sac, td3
    estimator: str = "peng:0.75"  # return estimator; dqn, sac and td3 take nstep:n only; the paper's baseline nstep:3
    steps: int = 10_000_000  # agent steps, summed over all environments; paper 10,000,000
    seed: int = 0  # all random streams of the run derive from it
    envs: int = 1  # environments stepped in lock-step, each with its own stream in the memory; paper 1
    discount: float = 0.99  # γ; paper 0.99
    flicker: float = 0.0  # probability that a pixel observation is blanked; paper 0
    observe: tuple[int, ...] = ()  # components of a vector observation that are seen, from 0; empty: all; paper all
    scale: tuple[float, ...] = ()  # factors of the components of a vector observation that are seen; empty, paper: none
    device: Device = "auto"  # where the network runs; auto: cuda, then mps, then cpu
    threads: int | None = None  # arithmetic threads, which affect the last bits; None: chosen for machine and network
    checkpoint_every: int = 50_000  # agent steps between checkpoints, rounded up to whole refreshes; 0: none
    evaluate_every: int = 0  # agent steps between evaluations, rounded up to whole refreshes, and at the end; 0: none
    evaluate_games: int = 10  # whole games per evaluation, played greedily
    film_every: int = 0  # agent steps between films of a greedy game, rounded up to refreshes, and at the end; 0: none
    stop_at_score: float | None = None  # stop once the mean score of the last 100 games is at least this; None: never
    max_game_steps: int = 500_000  # agent steps before a game is truncated; limits how much a resume replays
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    algorithm: AgentConfig  # the agent's own settings, which files and commands list with the run's
    atari: AtariConfig | None = None
    minatar: MinAtarConfig | None = None

    def __post_init__(self) -> None:
        require_reasonable("", self)
        require_positive("", self, "steps", "envs", "max_game_steps", "evaluate_games")
        if self.threads is not None:
            require(
                1 <= self.threads <= MAX_THREADS,
                f"threads is {self.threads}; give a number from 1 to {MAX_THREADS}.",
                "threads",
            )
        require_fraction("", self, "discount", "flicker")
        require(
            len(set(self.observe)) == len(self.observe) and all(0 <= place <= LARGEST_NUMBER for place in self.observe),
            f"observe is {' '.join(map(shown, self.observe))}; give component numbers from 0, each only once.",
            "observe",
        )
        require(
            all(0 < factor < math.inf for factor in self.scale),
            f"scale is {' '.join(map(shown, self.scale))}; give numbers above 0.",
            "scale",
        )
        require(self.seed >= 0, f"seed is {self.seed}; give a whole number of 0 or more.", "seed")
        for name in ("checkpoint_every", "evaluate_every", "film_every"):
            value = getattr(self, name)
            require(value >= 0, f"{name} is {value}; give 0 or more steps.", name)
        require(
            self.stop_at_score is None or math.isfinite(self.stop_at_score),
            f"stop_at_score is {self.stop_at_score}; give a finite score.",
            "stop_at_score",
        )
        require(
            self.memory.storage == "disk" or self.checkpoint_every == 0,
            "memory.storage ram leaves nothing to resume from; set checkpoint_every to 0, or memory.storage to disk.",
            "memory.storage",
            "checkpoint_every",
        )
        self._check_families()
        self._check_env_args()
        self.check_lock_step("steps", self.steps)
        self.check_lock_step("memory.start", self.memory.start)
        self.algorithm.check(self)

    @property
    def env_arguments(self) -> dict[str, Any]:
        """``env_args`` as names and values: ``("gravity=-5.0", "mode=hard")`` is {"gravity": -5.0, "mode": "hard"}."""
        pairs = (argument.partition("=") for argument in self.env_args)
        return {name: _json_or_text(text) for name, _, text in pairs}

    @property
    def checkpoint_interval(self) -> int:
        """Agent steps between checkpoints: ``checkpoint_every`` rounded up to whole boundaries."""
        return self._whole_boundaries(self.checkpoint_every)

    def is_due(self, every: int, boundary: int) -> bool:
        """Whether what happens every so many steps, rounded up to whole boundaries, happens at this boundary.

        The first boundary, before anything is learnt, does not count; 0 is never.
        """
        learning_steps = boundary - self.memory.start
        return every > 0 and learning_steps > 0 and learning_steps % self._whole_boundaries(every) == 0

    def _whole_boundaries(self, steps: int) -> int:
        boundary_every = self.algorithm.boundary_every
        return -(-steps // boundary_every) * boundary_every

    def steps_to_boundary(self, step: int) -> int:
        """Steps until the next boundary, 0 if it is now; the first is due when the memory reaches its start size."""
        start = self.memory.start
        return start - step if step < start else (start - step) % self.algorithm.boundary_every

    def is_boundary(self, step: int) -> bool:
        return self.steps_to_boundary(step) == 0

    def state_shape(self, observation_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape [F, *observation] of a state, which stacks the last observations."""
        return (self.memory.history, *observation_shape)

    def check_lock_step(self, name: str, value: int) -> None:
        """Reject a step count that the environments, which advance together, never reach."""
        require(
            value % self.envs == 0,
            f"{name} ({value}) must be a multiple of envs ({self.envs}), which advance together; "
            f"{-(-value // self.envs) * self.envs} is the next.",
            name,
            "envs",
        )

    def _check_families(self) -> None:
        """Require each family's settings exactly when its environment is used: no setting is silently ignored."""
        for name, part in (("atari", self.atari), ("minatar", self.minatar)):
            is_wanted = self.env.startswith(f"{name}/")
            require(
                part is not None or not is_wanted,
                f"{self.env} needs the {name} settings, which are missing; add them.",
            )
            require(
                part is None or is_wanted,
                f"the {name} settings belong to {name}/… environments only; this is {self.env}.",
                name,
            )

    def _check_env_args(self) -> None:
        names = [argument.partition("=")[0] for argument in self.env_args]
        for argument, name in zip(self.env_args, names, strict=True):
            is_pair = "=" in argument and name.isidentifier()
            require(
                is_pair,
                f"env_args has {argument!r}; give name=value, such as continuous=true or gravity=-5.0.",
                "env_args",
            )
            require(names.count(name) == 1, f"env_args gives {name} twice; give it once.", "env_args")
            require(
                name not in RESERVED,
                f"env_args has {name}, which lambda-replay sets itself; give the environment's own arguments only.",
                "env_args",
            )
        family = self.env.partition("/")[0]
        require(
            not self.env_args or family not in ("atari", "minatar"),
            f"env_args are for Gymnasium environments, but this is {self.env}; use the {family} settings, "
            f"such as {family}.sticky.",
            "env_args",
        )


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def environment_directory(environment: str) -> str:
    """An environment's name as a file or directory name: atari/pong becomes atari-pong."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", environment).strip("-.") or "environment"


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names: ``{"cache": {"size": 400}}`` becomes ``{"cache.size": 400}``."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat.update(flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat
