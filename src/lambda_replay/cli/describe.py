"""The command ``describe``: what a run would be and need, before any of it is spent."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from lambda_replay.agents import make_agent, parse_agent_estimator
from lambda_replay.cli.options import DescribeOptions, parse_run
from lambda_replay.config import RunConfig, to_dict
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.randomness import make_streams
from lambda_replay.replay.estimator_names import LEGEND, SPELLINGS
from lambda_replay.rundir.resources import Needs, available_ram, check_ram, estimate, in_words
from lambda_replay.training.loop import Loop
from lambda_replay.training.run import make_environments

PROBE_STEPS = 400  # agent steps after the start that are timed
PROBE_START = 256
PROBE_LEARNING_RATE = 1e-6  # no matter for the time; a probe must not diverge where the run would
PROBE_SHARE = 16  # one part in so many of the cache and its updates is really computed


def run(arguments: list[str]) -> int:
    if "--estimators" in arguments:
        others = [argument for argument in arguments if argument not in ("--estimators", "--json")]
        if others:
            raise ConfigError(f"describe --estimators takes no {others[0]}; leave it out.")
        print(_estimators(as_json="--json" in arguments))
        return 0
    options = parse_run(DescribeOptions, arguments, "describe")
    environments = make_environments(options.config)
    spec = environments[0].spec
    needs = estimate(options.config, spec)
    parse_agent_estimator(options.config)
    seconds = measure_seconds(options.config)
    if options.json:
        print(json.dumps(_as_json(options, spec, needs, seconds), allow_nan=False))
    else:
        print(_as_text(options, spec, needs, seconds))
    return 0


def _estimators(as_json: bool) -> str:
    rows = []
    for spelling in SPELLINGS.values():
        formula, source = (spelling.kind.__doc__ or "").split(". ", 1)
        family = (
            " (with Watkins's cut)" if spelling.form.startswith("watkins-") and "published" not in spelling.form else ""
        )
        rows.append({"spelling": spelling.form, "formula": formula + family, "source": source})
    if as_json:
        return json.dumps({"estimators": rows}, allow_nan=False)
    legend = "G_t = r_t + γ_t · [V + c · (G_{t+1} − b)],  s' = s_{t+1}, a' = a_{t+1}"
    lines = [f"  {row['spelling']:<20} {row['formula']}\n  {'':<20} {row['source']}" for row in rows]
    return "\n".join([legend, f"{LEGEND}; k is 20 if left out, π is greedy without @ε", "", *lines])


def _as_json(options: DescribeOptions, spec: EnvironmentSpec, needs: Needs, seconds: float) -> dict[str, Any]:
    return {
        "config": to_dict(options.config),
        "environment": {
            "observation_shape": spec.observation_shape,
            "observation_dtype": str(spec.observation_dtype),
            "actions": spec.action_names,
        },
        "needs": {
            "replay_bytes": needs.replay_bytes,
            "cache_bytes": needs.cache_bytes,
            "q_values_bytes": needs.q_values_bytes,
            "ram_bytes": needs.ram_bytes,
            "disk_bytes": needs.disk_bytes,
            "seconds": seconds,
        },
    }


def _as_text(options: DescribeOptions, spec: EnvironmentSpec, needs: Needs, seconds: float) -> str:
    config = options.config
    shape = "×".join(str(side) for side in spec.observation_shape)
    lines = [
        f"{config.env}: observations {shape} {spec.observation_dtype}, actions {', '.join(spec.action_names)}",
        "",
        *_settings(to_dict(config)),
        "",
        f"replay memory   {in_words(needs.replay_bytes)} {'on disk, while it runs' if needs.disk_bytes else 'in RAM'}",
        f"cache           {in_words(needs.cache_bytes)}"
        + (f", and {in_words(needs.q_values_bytes)} of Q-values while it is computed" if needs.q_values_bytes else ""),
        f"RAM in all      about {in_words(needs.ram_bytes)}"
        + (", and what the system has free to keep the replay memory at hand" if needs.disk_bytes else ""),
        f"time            about {_hours(seconds)} on this machine, from a short measurement",
    ]
    return "\n".join(lines)


def _settings(values: dict[str, Any], prefix: str = "") -> list[str]:
    lines: list[str] = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines += _settings(value, f"{prefix}{name}.")
        elif value is not None:
            lines.append(f"  {prefix + name:<26} {value:,}" if type(value) is int else f"  {prefix + name:<26} {value}")
    return lines


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} hours"


def measure_seconds(config: RunConfig) -> float:
    """Time that the whole run would take, from one small window of acting and one of learning."""
    per_step, per_boundary = _measure(config)
    learning_steps = max(0, config.steps - config.memory.start)
    return config.steps * per_step + learning_steps / config.boundary_every * per_boundary


def _measure(config: RunConfig) -> tuple[float, float]:
    """Seconds per acting step and per boundary's learning, both measured small and scaled up."""
    small = _probe_config(config)
    environments = make_environments(small)
    if estimate(small, environments[0].spec).ram_bytes > available_ram():
        check_ram(estimate(config, environments[0].spec))  # what the user asked for, not what would be measured
    streams = make_streams(small.seed, small.envs)
    agent = make_agent(small, environments[0].spec, streams)
    loop = Loop(small, environments, agent, streams)
    marks = [(event.step, time.perf_counter()) for event in loop.run()]
    end = time.perf_counter()
    for environment in environments:
        environment.close()
    start = small.memory.start
    boundary = next(at for step, at in marks if step == start)
    learned = next(at for step, at in reversed(marks) if step == start)
    acting = (end - learned) / (small.steps - start)
    return acting, (learned - boundary) * PROBE_SHARE if config.cache is not None else 0.0


def _probe_config(config: RunConfig) -> RunConfig:
    """The config with few steps, and with a small part of the cache and its updates."""
    estimator = parse_agent_estimator(config)
    block = 1 if config.cache is None else config.cache.block_length + config.cache.tail
    longest = max(block, getattr(estimator, "n", 1)) + config.memory.history + 1
    start = max(-(-PROBE_START // config.envs), longest) * config.envs
    steps = start + -(-PROBE_STEPS // config.envs) * config.envs
    cache = config.cache
    if cache is not None:
        blocks = max(1, cache.num_blocks // PROBE_SHARE)
        updates = max(1, cache.updates_per_refresh // PROBE_SHARE)
        size = blocks * cache.block_length
        cache = replace(cache, size=size, updates=updates, refresh_every=steps, schedule="burst")
    return replace(
        config,
        steps=steps,
        checkpoint_every=0,
        cache=cache,
        memory=replace(config.memory, capacity=2 * steps, start=start, storage="ram"),
        exploration=replace(config.exploration, start=config.exploration.end),
        optimizer=replace(config.optimizer, learning_rate=PROBE_LEARNING_RATE),
    )
