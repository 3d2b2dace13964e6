"""Every knob of a run: frozen dataclasses with unit, default and the paper's value; using them is done elsewhere.

The comment behind a field is its help text on the command line. "Paper" is Daley & Amato 2019, appendix A.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lambda_replay.errors import ConfigError

AgentName = Literal["dqn-lambda", "dqn"]
Schedule = Literal["burst", "concurrent"]
Device = Literal["auto", "cpu", "cuda", "mps"]
RESERVED = ("id", "render_mode", "disable_env_checker")  # arguments of gymnasium.make that no user may give
MAX_THREADS = 1024  # more than any machine's cores; far more would crash the process
LARGEST_NUMBER = 10**15  # of any count or size: all of them can be computed with exactly in floating point
LARGEST_RUN_SEED = 2**128 - 1  # as long as NumPy recommends
LARGEST_WIDTH = 10**6  # units of a hidden layer; the product of two widths is still a number that torch can hold
T = TypeVar("T")


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ConfigError(sentence)


def _require_reasonable(prefix: str, owner: object) -> None:
    """Refuse whole numbers with which neither arrays nor files nor sentences can deal."""
    for name, value in vars(owner).items():
        largest = LARGEST_RUN_SEED if name == "seed" else LARGEST_NUMBER
        if isinstance(value, int) and abs(value) > largest:
            raise ConfigError(f"{prefix}{name} is {_shown(value)}; give a number up to {largest}.")


def _shown(value: Any) -> str:
    """The value for a sentence; Python refuses to write whole numbers of thousands of digits."""
    is_long = isinstance(value, int) and abs(value) > LARGEST_RUN_SEED
    return f"{'-' if value < 0 else ''}10^{math.log10(abs(value)):.0f}" if is_long else repr(value)


def _require_positive(prefix: str, owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        _require(0 < value < math.inf, f"{prefix}{name} is {value}; give a number above 0.")


def _require_fraction(prefix: str, owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        _require(0 <= value <= 1, f"{prefix}{name} is {value}; give a number from 0 to 1.")


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """The replay memory."""

    capacity: int = 1_000_000  # slots, one per observation, shared by all environments; paper 1,000,000
    start: int = 50_000  # agent steps of uniformly random play before learning starts; paper 50,000
    history: int = 4  # observations stacked into one state; paper 4 (1 for partial observability)
    storage: Literal["disk", "ram"] = "disk"  # disk: memory-mapped files in the run directory; ram: plain arrays

    def __post_init__(self) -> None:
        _require_reasonable("memory.", self)
        _require_positive("memory.", self, "capacity", "start", "history")
        _require(self.history <= 255, f"memory.history is {self.history}; give a number from 1 to 255.")
        _require(
            self.start <= self.capacity,
            f"memory.capacity ({self.capacity}) is smaller than memory.start ({self.start}); "
            "raise memory.capacity or lower memory.start.",
        )


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """The refreshed cache of precomputed returns (agent dqn-lambda)."""

    size: int = 80_000  # rows S; paper 80,000
    block_length: int = 100  # agent steps B per block; paper 100
    refresh_every: int = 10_000  # agent steps F between refreshes; paper 10,000
    updates: int | None = None  # minibatches per refresh; None means refresh_every / 4, the paper's ratio
    schedule: Schedule = "burst"  # concurrent: act while training, with the network from before it; paper burst
    tail: int = 0  # agent steps computed beyond each block and dropped, so that its last returns are longer; paper 0
    priority: float = 0.0  # p at the first step, annealed linearly to 0 at the last; paper 0 or 0.1
    priority_quantile: float = 0.5  # quantile of |TD error| above which samples are preferred; paper 0.5, the median

    def __post_init__(self) -> None:
        _require_reasonable("cache.", self)
        _require_positive("cache.", self, "size", "block_length", "refresh_every")
        _require(
            self.size % self.block_length == 0,
            f"cache.size ({self.size}) must be a multiple of cache.block_length ({self.block_length}); "
            f"{max(1, round(self.size / self.block_length)) * self.block_length} is the nearest.",
        )
        _require(self.tail >= 0, f"cache.tail is {self.tail}; give 0 or more agent steps.")
        if self.updates is not None:
            _require_positive("cache.", self, "updates")
        _require_fraction("cache.", self, "priority")
        _require(
            0 <= self.priority_quantile < 1,
            f"cache.priority_quantile is {self.priority_quantile}; give a number from 0 up to but not including 1.",
        )

    @property
    def num_blocks(self) -> int:
        return self.size // self.block_length

    @property
    def updates_per_refresh(self) -> int:
        return max(1, self.refresh_every // 4) if self.updates is None else self.updates


@dataclass(frozen=True, kw_only=True)
class TargetConfig:
    """The target network (agent dqn, the paper's baseline)."""

    copy_every: int = 10_000  # agent steps between copies of the network into the target network; paper 10,000
    update_every: int = 4  # agent steps per minibatch; paper 4

    def __post_init__(self) -> None:
        _require_reasonable("target.", self)
        _require_positive("target.", self, "copy_every", "update_every")
        _require(
            self.copy_every % self.update_every == 0,
            f"target.copy_every ({self.copy_every}) must be a multiple of target.update_every ({self.update_every}).",
        )


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """ε-greedy exploration, annealed linearly; counted from the first step of the run."""

    start: float = 1.0  # ε at step 0; paper 1
    end: float = 0.1  # ε after the annealing; paper 0.1
    steps: int = 1_000_000  # agent steps of annealing; paper 1,000,000

    def __post_init__(self) -> None:
        _require_reasonable("exploration.", self)
        _require_fraction("exploration.", self, "start", "end")
        _require_positive("exploration.", self, "steps")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam on minibatches."""

    batch_size: int = 32  # samples M per minibatch; paper 32
    learning_rate: float = 1e-4  # Adam α; paper 0.0001
    beta1: float = 0.9  # Adam; paper 0.9
    beta2: float = 0.999  # Adam; paper 0.999
    epsilon: float = 1e-4  # Adam ε; paper 0.0001
    loss: Literal["squared", "huber"] = "squared"  # paper squared
    max_grad_norm: float | None = None  # clip the gradient's norm to this; None means no clip; paper None
    cuda_graph: bool = False  # on CUDA, record the training step and replay it; never run on a GPU yet; burst only

    def __post_init__(self) -> None:
        _require_reasonable("optimizer.", self)
        _require_positive("optimizer.", self, "batch_size", "learning_rate", "epsilon")
        _require(0 <= self.beta1 < 1, f"optimizer.beta1 is {self.beta1}; give a number from 0 to below 1.")
        _require(0 <= self.beta2 < 1, f"optimizer.beta2 is {self.beta2}; give a number from 0 to below 1.")
        if self.max_grad_norm is not None:
            _require_positive("optimizer.", self, "max_grad_norm")


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """The Q-network."""

    kind: Literal["auto", "atari", "minatar", "mlp"] = "auto"  # auto: chosen from the observation space
    hidden: tuple[int, ...] = (128, 128)  # units per hidden layer of the mlp (the other networks have their own)

    def __post_init__(self) -> None:
        if not all(0 < width <= LARGEST_WIDTH for width in self.hidden):
            widths = ", ".join(map(_shown, self.hidden))
            raise ConfigError(f"network.hidden is ({widths}); give widths from 1 to {LARGEST_WIDTH}.")


@dataclass(frozen=True, kw_only=True)
class AtariConfig:
    """Preprocessing of atari/… environments (Mnih et al. 2015)."""

    frame_skip: int = 4  # emulator frames per agent step; paper 4
    noop_max: int = 30  # up to this many agent-chosen no-op frames at the start of a game; paper 30
    max_frames: int = 108_000  # emulator frames per game before it is truncated; paper 108,000
    life_loss_terminal: bool = True  # a lost life is terminal for learning, the game goes on; paper yes
    clip_rewards: bool = True  # learn from the sign of rewards; scores stay unclipped; paper yes
    sticky: float = 0.0  # probability that the previous action is repeated; paper 0
    fire_on_reset: bool = False  # press FIRE at the start of games that wait for it; paper no
    all_actions: bool = False  # all 18 joystick actions instead of the game's minimal set; paper no

    def __post_init__(self) -> None:
        _require_reasonable("atari.", self)
        _require_positive("atari.", self, "frame_skip", "max_frames")
        _require(self.noop_max >= 0, f"atari.noop_max is {self.noop_max}; give 0 or more.")
        _require_fraction("atari.", self, "sticky")


@dataclass(frozen=True, kw_only=True)
class MinAtarConfig:
    """Settings of minatar/… environments (Young & Tian 2019)."""

    sticky: float = 0.1  # probability that the previous action is repeated; MinAtar's default 0.1
    ramping: bool = True  # difficulty rises during a game; MinAtar's default yes
    all_actions: bool = False  # all six actions (v0) instead of the game's minimal set (v1)

    def __post_init__(self) -> None:
        _require_fraction("minatar.", self, "sticky")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A complete run: the same config and seed give the same metrics, byte for byte, on the same machine's CPU."""

    env: str  # atari/pong, minatar/breakout, CartPole-v1, or package:Env-v0 (any Gymnasium id with discrete actions)
    env_args: tuple[str, ...] = ()  # name=value arguments of a Gymnasium environment; values as in JSON, or else text
    agent: AgentName = "dqn-lambda"  # dqn-lambda: cached returns; dqn: target network, the paper's baseline
    estimator: str = "peng:0.75"  # return estimator; agent dqn takes nstep:n only; the paper's baseline nstep:3
    steps: int = 10_000_000  # agent steps, all environments together; paper 10,000,000
    seed: int = 0  # every random stream of the run comes from it
    envs: int = 1  # environments stepped in lock-step, each with its own stream in the memory; paper 1
    discount: float = 0.99  # γ; paper 0.99
    flicker: float = 0.0  # probability that a pixel observation is blanked; paper 0
    device: Device = "auto"  # where the network runs; auto: cuda, then mps, then cpu
    threads: int | None = None  # arithmetic threads, which change the last bits; None: what suits machine and network
    checkpoint_every: int = 50_000  # agent steps between checkpoints, rounded up to whole refreshes; 0: none
    max_game_steps: int = 500_000  # agent steps of a game before it is truncated; bounds what a resume repeats
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    cache: CacheConfig | None = field(default_factory=CacheConfig)
    target: TargetConfig | None = None
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    atari: AtariConfig | None = None
    minatar: MinAtarConfig | None = None

    def __post_init__(self) -> None:
        _require_reasonable("", self)
        _require_positive("", self, "steps", "envs", "max_game_steps")
        if self.threads is not None:
            _require(
                1 <= self.threads <= MAX_THREADS, f"threads is {self.threads}; give a number from 1 to {MAX_THREADS}."
            )
        _require_fraction("", self, "discount", "flicker")
        _require(self.seed >= 0, f"seed is {self.seed}; give a whole number of 0 or more.")
        _require(self.checkpoint_every >= 0, f"checkpoint_every is {self.checkpoint_every}; give 0 or more steps.")
        _require(
            self.memory.storage == "disk" or self.checkpoint_every == 0,
            "memory.storage ram leaves nothing to resume from; set checkpoint_every to 0, or memory.storage to disk.",
        )
        _require(
            not self.optimizer.cuda_graph or self.cache is None or self.cache.schedule == "burst",
            "optimizer.cuda_graph and cache.schedule concurrent exclude each other: what the acting thread moves to "
            "the device would break the recording; leave one of them out.",
        )
        self._check_parts()
        self._check_env_args()
        self._check_lock_step()
        if self.cache is not None:
            self._check_room_for_blocks(self.cache)

    @property
    def env_arguments(self) -> dict[str, Any]:
        """``env_args`` as names and values: ``("gravity=-5.0", "mode=hard")`` is {"gravity": -5.0, "mode": "hard"}."""
        pairs = (argument.partition("=") for argument in self.env_args)
        return {name: _json_or_text(text) for name, _, text in pairs}

    @property
    def boundary_every(self) -> int:
        """Agent steps between two refreshes, or two copies of the target network."""
        return self.cache.refresh_every if self.cache is not None else self.target.copy_every  # type: ignore[union-attr]

    @property
    def reserve_slots(self) -> int:
        """Slots per stream that acting may push out of the window while training still reads it; 0 in bursts."""
        if self.cache is None or self.cache.schedule == "burst":
            return 0
        return 2 * self.cache.refresh_every // self.envs  # a step takes two slots at the most: see checkpoints.py

    @property
    def checkpoint_interval(self) -> int:
        """Agent steps between checkpoints: ``checkpoint_every`` rounded up to whole boundaries."""
        return -(-self.checkpoint_every // self.boundary_every) * self.boundary_every

    def _check_parts(self) -> None:
        """Each part is there exactly when its owner is, so that no setting is silently without effect."""
        owners = {
            "cache": (self.cache, self.agent == "dqn-lambda"),
            "target": (self.target, self.agent == "dqn"),
            "atari": (self.atari, self.env.startswith("atari/")),
            "minatar": (self.minatar, self.env.startswith("minatar/")),
        }
        for name, (part, wanted) in owners.items():
            owner = _OWNERS[name]
            here = f"this is agent {self.agent} on {self.env}"
            _require(part is not None or not wanted, f"the {name} settings are missing, which {owner} needs; {here}.")
            _require(part is None or wanted, f"the {name} settings belong to {owner} only; {here}.")

    def _check_env_args(self) -> None:
        names = [argument.partition("=")[0] for argument in self.env_args]
        for argument, name in zip(self.env_args, names, strict=True):
            is_pair = "=" in argument and name.isidentifier()
            _require(is_pair, f"env_args has {argument!r}; give name=value, such as continuous=true or gravity=-5.0.")
            _require(names.count(name) == 1, f"env_args gives {name} twice; give it once.")
            _require(
                name not in RESERVED,
                f"env_args has {name}, which lambda-replay sets itself; give the environment's own arguments only.",
            )
        family = self.env.partition("/")[0]
        _require(
            not self.env_args or family not in ("atari", "minatar"),
            f"env_args are for Gymnasium environments, and this is {self.env}; use the {family} settings, "
            f"such as {family}.sticky.",
        )

    def _check_lock_step(self) -> None:
        numbers = {"steps": self.steps, "memory.start": self.memory.start}
        if self.cache is not None:
            numbers["cache.refresh_every"] = self.cache.refresh_every
        if self.target is not None:
            numbers["target.copy_every"] = self.target.copy_every
        for name, value in numbers.items():
            _require(
                value % self.envs == 0,
                f"{name} ({value}) must be a multiple of envs ({self.envs}), which advance together; "
                f"{-(-value // self.envs) * self.envs} is the next.",
            )

    def _check_room_for_blocks(self, cache: CacheConfig) -> None:
        block = cache.block_length + cache.tail + self.memory.history
        per_stream = {
            "memory.capacity": (self.memory.capacity, block + self.reserve_slots),
            "memory.start": (self.memory.start, block),
        }
        for name, (value, needed) in per_stream.items():
            _require(
                value // self.envs >= needed,
                f"{name} ({value}, over {self.envs} environments) is smaller than a block, which needs {needed} slots; "
                f"raise it to {needed * self.envs} or lower cache.block_length ({cache.block_length}).",
            )


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def to_dict(config: RunConfig) -> dict[str, Any]:
    """The config as plain values, for JSON."""
    return asdict(config)


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """The config that ``to_dict`` wrote, with every name and type checked."""
    return _read(RunConfig, values, "")


def override(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """A copy of the config with some fields replaced: ``{"steps": 1000, "cache": {"size": 400}}``."""
    return _override(config, values, "")


def differing_fields(one: RunConfig, other: RunConfig) -> list[str]:
    """Names of the fields in which two configs differ: ``["seed", "cache.size"]``."""
    left, right = flatten(to_dict(one)), flatten(to_dict(other))
    return [name for name in {**left, **right} if left.get(name) != right.get(name)]


def environment_directory(environment: str) -> str:
    """An environment's name as that of a file or directory: atari/pong becomes atari-pong."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", environment).strip("-.") or "environment"


_OWNERS = {
    "cache": "agent dqn-lambda",
    "target": "agent dqn",
    "atari": "atari/… environments",
    "minatar": "minatar/… environments",
}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted names: ``{"cache": {"size": 400}}`` becomes ``{"cache.size": 400}``."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat.update(flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value})
    return flat


def _known(kind: type, values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The type of each field that is named, or a sentence about the first name that is none."""
    hints = get_type_hints(kind)
    unknown = next((name for name in values if name not in hints), None)
    if unknown is not None:
        meant = difflib.get_close_matches(unknown, hints, n=1)
        remedy = f"perhaps you meant {prefix}{meant[0]}" if meant else f"known here: {', '.join(hints)}"
        raise ConfigError(f"there is no setting {prefix}{unknown}; {remedy}.")
    return hints


def _read(kind: type[T], values: Mapping[str, Any], prefix: str) -> T:
    hints = _known(kind, values, prefix)
    missing = [f.name for f in fields(kind) if f.name not in values]  # type: ignore[arg-type]
    _require(not missing, f"the setting {prefix}{missing[0] if missing else ''} is missing.")
    return kind(**{name: _value(hints[name], value, f"{prefix}{name}") for name, value in values.items()})


def _override(config: T, values: Mapping[str, Any], prefix: str) -> T:
    hints = _known(type(config), values, prefix)
    changes: dict[str, Any] = {}
    for name, value in values.items():
        present = getattr(config, name)
        if isinstance(value, Mapping) and present is None:
            raise ConfigError(f"the {prefix}{name} settings belong to {_OWNERS[name]} only, which this is not.")
        if isinstance(value, Mapping) and is_dataclass(present):
            changes[name] = _override(present, value, f"{prefix}{name}.")
        else:
            changes[name] = _value(hints[name], value, f"{prefix}{name}")
    return replace(config, **changes)  # type: ignore[type-var]


def _value(hint: Any, value: Any, name: str) -> Any:
    """The value as the hinted type, or a sentence that names the setting."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        if option is types.NoneType and value is None:
            return None
        if is_dataclass(option) and isinstance(value, Mapping):
            return _read(option, value, f"{name}.")  # type: ignore[arg-type]
        if get_origin(option) is Literal and value in get_args(option):
            return value
        if get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(_value(get_args(option)[0], item, name) for item in value)
        if option is float and (type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)):
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
    wanted = " or ".join(_type_words(option) for option in options)
    raise ConfigError(f"{name} is {_shown(value)}; give {wanted}.")


def _type_words(option: Any) -> str:
    if get_origin(option) is Literal:
        return " or ".join(repr(choice) for choice in get_args(option))
    if get_origin(option) is tuple:
        return "a list of texts" if get_args(option)[0] is str else "a list of whole numbers"
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", types.NoneType: "none"}
    return words.get(option, "a table of settings")
