"""The command ``describe``: shows a run's settings and what it would need, before anything is spent."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from lambda_replay.agents.run_settings import FAMILIES, to_dict
from lambda_replay.agents.table import agent_kind
from lambda_replay.cli.options import DescribeOptions, parse_run
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.replay.estimator_names import LEGEND, NAMED
from lambda_replay.rundir.resources import Needs, available_ram, check_ram, estimate, in_words
from lambda_replay.training.assembly import assemble, check_agent, make_environments

PROBE_STEPS = 400  # agent steps that are timed after the start
PROBE_START = 256
PROBE_SHARE = 16  # one part in this many of the cache and its updates is actually computed


def run(arguments: list[str]) -> int:
    if "--estimators" in arguments:
        others = [argument for argument in arguments if argument not in ("--estimators", "--json")]
        if others:
            raise ConfigError(f"describe --estimators does not take {others[0]}; leave it out.")
        print(_estimators(as_json="--json" in arguments))
        return 0
    options = parse_run(DescribeOptions, arguments, "describe")
    environments = make_environments(options.config)
    spec = environments[0].spec
    check_agent(options.config, spec)
    needs = estimate(options.config, spec)
    seconds = measure_seconds(options.config)
    if options.json:
        print(json.dumps(_as_json(options, spec, needs, seconds), allow_nan=False))
    else:
        print(_as_text(options, spec, needs, seconds))
    return 0


def _estimators(as_json: bool) -> str:
    rows = [{"spelling": named.form, "formula": named.formula, "source": named.source} for named in NAMED.values()]
    if as_json:
        return json.dumps({"estimators": rows}, allow_nan=False)
    legend = "G_t = r_t + γ_t · [V + c · (G_{t+1} − b)],  s' = s_{t+1}, a' = a_{t+1}"
    lines = [f"  {row['spelling']:<20} {row['formula']}\n  {'':<20} {row['source']}" for row in rows]
    return "\n".join([legend, f"{LEGEND}; k is 20 if omitted, π is greedy without @ε", "", *lines])


def _as_json(
    options: DescribeOptions[RunConfig], spec: EnvironmentSpec, needs: Needs, seconds: float
) -> dict[str, Any]:
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


def _as_text(options: DescribeOptions[RunConfig], spec: EnvironmentSpec, needs: Needs, seconds: float) -> str:
    config = options.config
    shape = "×".join(str(side) for side in spec.observation_shape)
    lines = [
        f"{config.env}: observations {shape} {spec.observation_dtype}, {_actions(spec)}",
        "",
        *_settings(to_dict(config)),
        "",
        f"replay memory   {in_words(needs.replay_bytes)} {'on disk while it runs' if needs.disk_bytes else 'in RAM'}",
        f"cache           {in_words(needs.cache_bytes)}"
        + (f", and {in_words(needs.q_values_bytes)} of Q-values while it is computed" if needs.q_values_bytes else ""),
        f"RAM in all      about {in_words(needs.ram_bytes)}"
        + (", plus any free RAM to cache the replay memory" if needs.disk_bytes else ""),
        f"time            about {_hours(seconds)} on this machine, from a short measurement",
    ]
    return "\n".join(lines)


def _actions(spec: EnvironmentSpec) -> str:
    if not spec.is_continuous:
        return f"actions {', '.join(spec.action_names)}"
    size = len(spec.action_names)
    return f"actions of {size} number{'s' if size > 1 else ''} ({', '.join(spec.action_names)})"


def _settings(values: dict[str, Any], prefix: str = "") -> list[str]:
    lines: list[str] = []
    for name, value in values.items():
        if isinstance(value, dict):
            lines += _settings(value, f"{prefix}{name}.")
        elif value is not None or name not in FAMILIES:
            lines.append(f"  {prefix + name:<29} {value:,}" if type(value) is int else f"  {prefix + name:<29} {value}")
    return lines


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} hours"


def measure_seconds(config: RunConfig) -> float:
    """Estimated time for the whole run, from one small window of acting and one of learning."""
    per_step, per_boundary = _measure(config)
    learning_steps = max(0, config.steps - config.memory.start)
    return config.steps * per_step + learning_steps / config.algorithm.boundary_every * per_boundary


def _measure(config: RunConfig) -> tuple[float, float]:
    """Seconds per acting step and per boundary of learning, both measured on a small scale and extrapolated."""
    small, scale = _probe_config(config)
    environments = make_environments(small)
    if estimate(small, environments[0].spec).ram_bytes > available_ram():
        check_ram(estimate(config, environments[0].spec))  # report what the user asked for, not the measurement
    marks = [(event.step, time.perf_counter()) for event in assemble(small, environments).loop.run()]
    end = time.perf_counter()
    for environment in environments:
        environment.close()
    start = small.memory.start
    boundary = next(at for step, at in marks if step == start)
    learned = next(at for step, at in reversed(marks) if step == start)
    acting = (end - learned) / (small.steps - start)
    return acting, (learned - boundary) * scale


def _probe_config(config: RunConfig) -> tuple[RunConfig, float]:
    """The config with few steps and a small part of the learning at a boundary, and the factor to scale it up."""
    kind = agent_kind(config.agent)
    start = max(-(-PROBE_START // config.envs), kind.shortest_start(config) + 1) * config.envs
    steps = start + -(-PROBE_STEPS // config.envs) * config.envs
    algorithm, scale = kind.probe(config, steps, PROBE_SHARE)
    memory = replace(config.memory, capacity=2 * steps, start=start, storage="ram")
    return replace(config, steps=steps, checkpoint_every=0, algorithm=algorithm, memory=memory), scale
