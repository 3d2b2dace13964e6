"""The command ``describe``: shows a run's settings and what it would need, before anything is spent."""

from __future__ import annotations

import json
import time
from typing import Any

from lambda_replay.agents.run_settings import FAMILIES, to_dict
from lambda_replay.cli.options import DescribeOptions, parse_run
from lambda_replay.config import RunConfig
from lambda_replay.envs import EnvironmentSpec
from lambda_replay.errors import ConfigError
from lambda_replay.replay.estimator_names import LEGEND, NAMED
from lambda_replay.rundir.resources import Needs, available_ram, check_ram, estimate, in_words
from lambda_replay.training.assembly import assemble, check_agent, make_environments
from lambda_replay.training.events import Boundary
from lambda_replay.training.speed import is_mark, make_stopwatch, shorten

START = 256  # minimum agent steps of random play before the measurement
SECONDS = 1.0  # of acting and learning that are timed, at least


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
    """Estimated time for the whole run: random play, then cycles of acting and learning, timed on a small memory."""
    small, has_cycles = shorten(config, START)
    environments = make_environments(small)
    if estimate(small, environments[0].spec).ram_bytes > available_ram():
        check_ram(estimate(config, environments[0].spec))  # report what the user asked for, not the measurement
    loop, start = assemble(small, environments).loop, small.memory.start
    began, played = time.perf_counter(), 0.0
    stopwatch = make_stopwatch(small, SECONDS, has_cycles=has_cycles)
    for event in loop.run():
        if event.step == start and isinstance(event, Boundary):
            played = time.perf_counter() - began
        if is_mark(event, has_cycles=has_cycles) and stopwatch.is_over(event.step):
            break
    for environment in environments:
        environment.close()
    random_steps = min(config.memory.start, config.steps)
    return random_steps * played / start + (config.steps - random_steps) / stopwatch.steps_per_second
