"""What a run is said to need against what it takes, and the sentence when that is not there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import pytest
import torch
from environments import cached, tiny_config
from numpy.typing import NDArray

from lambda_replay.agents.run_settings import override
from lambda_replay.config import RunConfig
from lambda_replay.envs import Environment, EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.learning.networks import make_network
from lambda_replay.replay.cache import Cache, refresh
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.memory import ReplayMemory
from lambda_replay.rundir import resources
from lambda_replay.rundir.memory_checksums import spare_slots
from lambda_replay.rundir.resources import available_ram, check_room, estimate, in_words
from lambda_replay.training.assembly import assemble
from lambda_replay.training.presets import make_config

VECTOR = EnvironmentSpec((4,), np.dtype(np.float32), 2, ("left", "right"))
PLANES = EnvironmentSpec((10, 10, 4), np.dtype(np.bool_), 3, ("a", "b", "c"))
PIXELS = EnvironmentSpec((84, 84), np.dtype(np.uint8), 6, tuple("abcdef"))


class DiskUsage(NamedTuple):
    total: int
    used: int
    free: int


def set_free(monkeypatch: pytest.MonkeyPatch, *, disk: int = 10**12, ram: int = 10**12) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(10**13, 0, disk))
    monkeypatch.setattr(resources, "available_ram", lambda: ram)


# --- golden -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1 kB"),
        (1_234, "1.23 kB"),
        (56_789, "56.8 kB"),
        (999_400, "999 kB"),
        (999_600, "1 MB"),  # never "1e+03 kB"
        (7_070_000_000, "7.07 GB"),
        (2.5e12, "2.5 TB"),
    ],
)
def test_bytes_in_words(num_bytes: float, words: str) -> None:
    assert in_words(num_bytes) == words


def test_bytes_in_words_are_never_powers_of_ten() -> None:
    assert not [size for size in range(1, 200) if "e" in in_words(1.2345**size).replace("bytes", "")]


def test_a_million_atari_frames_take_at_most_7_2_gigabytes() -> None:
    """84·84 + 14 bytes each: 7.07 GB; with checkpoints, spare slots come on top."""
    config = override(make_config("atari/pong", "paper"), {"checkpoint_every": 0})
    needs = estimate(config, PIXELS)
    assert needs.replay_bytes == 7_071_000_000
    assert needs.disk_bytes == needs.replay_bytes
    assert needs.ram_bytes < 1_000_000_000


def test_the_paper_s_cache_takes_1_7_megabytes() -> None:
    """80,000 rows of 21 bytes; while it is computed, also 4 bytes for 6 actions in each of 800 · 101 states."""
    needs = estimate(make_config("atari/pong", "paper"), PIXELS)
    assert needs.cache_bytes == 1_680_000
    assert needs.q_values_bytes == 1_939_200
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"{in_words(needs.cache_bytes)} for the paper's 80,000" in readme
    assert f"{in_words(needs.q_values_bytes)} of Q-values" in readme


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [VECTOR, PLANES, PIXELS])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"envs": 2, "memory": {"capacity": 501}},
        {"checkpoint_every": 100, "memory": {"storage": "disk"}},
        {"checkpoint_every": 70, "memory": {"storage": "disk"}, "envs": 2},
    ],
)
def test_the_replay_memory_takes_what_was_said(tmp_path: Path, spec: EnvironmentSpec, changes: dict[str, Any]) -> None:
    config = tiny_config("Some-v0", **changes)
    needs = estimate(config, spec)
    is_on_disk = config.memory.storage == "disk"
    memory = assemble(
        config,
        [cast(Environment, SimpleNamespace(spec=spec))] * config.envs,  # never played
        spare_slots=spare_slots(config.checkpoint_interval, config.envs),
        memory_directory=tmp_path / "memory" if is_on_disk else None,
    ).memory
    assert needs.replay_bytes == memory.nbytes
    if is_on_disk:
        files = sum(path.stat().st_size for path in (tmp_path / "memory").iterdir())
        assert needs.disk_bytes == files
        assert needs.ram_bytes < 10**9
    else:
        assert needs.disk_bytes == 0
        assert needs.ram_bytes >= memory.nbytes


def make_cache(config: RunConfig) -> tuple[Cache, int]:
    """A cache of the config, and the bytes of the Q-values that it was computed from."""
    memory = ReplayMemory(500, (4,), np.float32)
    memory.begin(np.zeros(4, dtype=np.float32))
    for _ in range(200):
        memory.append(0, 0.0, np.zeros(4, dtype=np.float32))
    q_values_bytes = 0
    settings = cached(config).cache

    def q_function(states: NDArray[Any]) -> NDArray[np.float32]:
        nonlocal q_values_bytes
        q_values = np.zeros((len(states), 2), dtype=np.float32)
        q_values_bytes += q_values.nbytes
        return q_values

    cache = refresh(
        memory,
        q_function,
        parse_estimator(config.estimator),
        discount=0.9,
        size=settings.size,
        block_length=settings.block_length,
        tail=settings.tail,
        rng=np.random.default_rng(0),
    )
    return cache, q_values_bytes


@pytest.mark.parametrize("tail", [0, 5])
def test_the_cache_takes_what_was_said(tail: int) -> None:
    config = tiny_config("Some-v0", cache={"tail": tail})
    needs = estimate(config, VECTOR)
    without = estimate(tiny_config("Some-v0", cache={"tail": tail, "size": 8}), VECTOR)  # one block
    cache, q_values_bytes = make_cache(config)
    assert needs.cache_bytes == cache.nbytes
    assert needs.q_values_bytes == q_values_bytes
    taken = needs.ram_bytes - without.ram_bytes
    assert taken == cache.nbytes + q_values_bytes - without.cache_bytes - without.q_values_bytes


def test_agent_dqn_needs_no_cache() -> None:
    needs = estimate(tiny_config(agent="dqn"), VECTOR)
    assert (needs.cache_bytes, needs.q_values_bytes) == (0, 0)


@pytest.mark.parametrize(("agent", "copies"), [("dqn-lambda", 9), ("dqn", 9)])
def test_the_network_is_counted_with_its_optimizer(agent: Literal["dqn-lambda", "dqn"], copies: int) -> None:
    """4 inputs, 2 actions: 8 units have 4·8+8 + 8·2+2 = 58 weights, 7 have 51, and 2 numbers less per sample of 8."""
    eight, seven = (
        estimate(tiny_config("Some-v0", agent, network={"hidden": (width,)}), VECTOR).ram_bytes for width in (8, 7)
    )
    assert eight - seven == (58 - 51) * 4 * copies + 8 * 2 * 4


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"optimizer": {"batch_size": 10**13}}, "optimizer.batch_size (10000000000000)"),
        ({"cache": {"updates": 10**15}}, "cache.updates (1000000000000000)"),
        ({"network": {"hidden": (10**6, 10**6)}}, "network.hidden (1000000, 1000000)"),
        ({"estimator": "median/100", "cache": {"size": 10**11, "updates": 1}}, "estimator (median/100)"),
        ({"agent": "dqn", "optimizer": {"batch_size": 10**13}}, "optimizer.batch_size"),
    ],
)
def test_what_takes_most_is_named(tmp_path: Path, changes: dict[str, Any], setting: str) -> None:
    agent = changes.pop("agent", "dqn-lambda")
    config = override(make_config("CartPole-v1", agent=agent), changes)
    with pytest.raises(ConfigError) as caught:
        check_room(config, VECTOR, tmp_path / "run")
    assert re.fullmatch(r"this run needs \S+ [TPE]B of memory, but only .* is free; lower .*\.", str(caught.value))
    assert setting in str(caught.value)


def test_a_network_of_ones_own_is_counted_instead() -> None:
    config = tiny_config("Some-v0")
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))  # 10 weights
    own = estimate(config, VECTOR, network).ram_bytes
    ours = make_network(cached(config).network, (config.memory.history, 4), 2, seed=0)
    difference = sum(parameter.numel() for parameter in ours.parameters()) - 10
    assert estimate(config, VECTOR).ram_bytes - own == difference * 4 * 9


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_run_that_just_fits_is_let_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = override(tiny_config(), {"memory": {"storage": "disk"}})
    needs = estimate(config, PIXELS)
    set_free(monkeypatch, disk=needs.disk_bytes, ram=needs.ram_bytes)
    check_room(config, PIXELS, tmp_path / "runs" / "new")
    set_free(monkeypatch, disk=needs.disk_bytes - 1, ram=needs.ram_bytes)
    with pytest.raises(ConfigError):
        check_room(config, PIXELS, tmp_path / "runs" / "new")
    set_free(monkeypatch, disk=needs.disk_bytes, ram=needs.ram_bytes - 1)
    with pytest.raises(ConfigError):
        check_room(config, PIXELS, tmp_path / "runs" / "new")


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_free(monkeypatch, disk=5_000_000_000)
    with pytest.raises(ConfigError) as caught:
        check_room(override(make_config("atari/pong", "paper"), {"checkpoint_every": 0}), PIXELS, tmp_path)
    sentence = str(caught.value)
    assert "7.07 GB" in sentence
    assert "5 GB" in sentence
    assert "memory.capacity" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"memory": {"storage": "ram"}, "checkpoint_every": 0}, "memory.capacity"),
        ({"cache": {"size": 100_000_000}}, "cache.size"),
    ],
)
def test_too_little_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any], remedy: str
) -> None:
    set_free(monkeypatch, ram=1_000_000_000)
    config = override(make_config("atari/pong", "paper"), changes)
    with pytest.raises(ConfigError) as caught:
        check_room(config, PIXELS, tmp_path)
    sentence = str(caught.value)
    assert in_words(estimate(config, PIXELS).ram_bytes) in sentence
    assert "1 GB" in sentence
    assert remedy in sentence


def test_the_disk_is_looked_at_where_the_run_will_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The directory does not exist yet: the first one above it that does."""
    looked_at = []

    def disk_usage(path: Path) -> DiskUsage:
        looked_at.append(Path(path))
        return DiskUsage(10**13, 0, 10**12)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    check_room(tiny_config(), VECTOR, tmp_path / "a" / "b" / "c")
    monkeypatch.chdir(tmp_path)
    check_room(tiny_config(), VECTOR, Path("runs/new"))
    assert looked_at == [tmp_path, tmp_path]


def test_available_memory_is_that_of_a_computer() -> None:
    assert 50_000_000 < available_ram() < 10**14
