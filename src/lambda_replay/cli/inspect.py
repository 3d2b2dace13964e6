"""The command ``inspect``: draws one block of a refresh under several estimators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lambda_replay.agents.table import agent_kind
from lambda_replay.analysis.inspection import draw_block
from lambda_replay.cli.options import check_file, check_play_options, parse, split_path
from lambda_replay.cli.train import title_of
from lambda_replay.cli.trust import asking
from lambda_replay.errors import ConfigError
from lambda_replay.randomness import make_streams
from lambda_replay.replay.critic import as_critic, promote_slots
from lambda_replay.replay.data import Evaluation
from lambda_replay.replay.estimator_names import parse_estimator
from lambda_replay.replay.estimators import Estimator, check_fits
from lambda_replay.rundir.directory import read_config
from lambda_replay.training.playing import play_block
from lambda_replay.training.policy import load_policy

USUAL = ("nstep:3", "peng:0.75", "watkins:0.75", "median")
LONGEST = 100_000  # agent steps; a plot of more would be unreadable


@dataclass(frozen=True)
class InspectOptions:
    """Draw one block of a refresh: rewards, Q-values, each estimator's returns, and the λ or trace behind them."""

    estimators: tuple[str, ...] = ()  # which to compare; by default the run's own and the usual ones that fit it
    length: int = 100  # agent steps in the block
    epsilon: float | None = None  # probability of a random action; by default the run's final ε
    seed: int | None = None  # seed of the games; by default the run's
    out: Path | None = None  # file ending in .png; by default inspect.png in the run's directory
    trust: bool = False  # import the modules that a run names even if you did not create the run


def run(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "inspect")
    options = parse(InspectOptions, rest, usage="lambda-replay inspect RUN")
    assert path is not None
    if not 2 <= options.length <= LONGEST:
        raise ConfigError(f"--length is {options.length}; give 2 to {LONGEST} agent steps.")
    if "--estimators" in rest and not options.estimators:
        raise ConfigError("--estimators is empty; name one or more, or leave it out.")
    check_play_options(options.epsilon or 0.0, options.seed, max_steps=None)
    estimators = [parse_estimator(spelling) for spelling in options.estimators]
    read_config(path)  # so that a missing run is reported first
    out = path / "inspect.png" if options.out is None else options.out
    check_file(out, ".png")
    trained = load_policy(path, asking(options.trust))
    config = trained.config
    memory = play_block(
        trained.environment,
        trained.policy,
        length=options.length,
        history=config.memory.history,
        epsilon=agent_kind(config.agent).final_epsilon(config, trained.environment.spec)
        if options.epsilon is None
        else options.epsilon,
        rng=make_streams(config.seed if options.seed is None else options.seed, num_envs=1).evaluate,
    )
    slots = np.arange(options.length + 1)[None]
    blocks = promote_slots(memory, slots, discount=config.discount, length=options.length)
    evaluation = as_critic(trained.policy.critic).evaluate(blocks)
    if not estimators:
        usual = [spelling for spelling in USUAL if spelling != config.estimator]
        estimators = [parse_estimator(spelling) for spelling in (config.estimator, *usual)]
        estimators = [estimator for estimator in estimators if _fits(evaluation, estimator)]
    when = "final weights" if trained.step is None else f"weights of step {trained.step:,}"
    draw_block(evaluation, estimators, out, f"{title_of(config)} · {when}")
    print(f"{out}: {options.length} steps under {', '.join(repr(estimator) for estimator in estimators)}")
    return 0


def _fits(evaluation: Evaluation, estimator: Estimator) -> bool:
    """Whether the run's critic knows what an estimator needs; a row of Q-values tells it all."""
    try:
        check_fits(estimator, evaluation)
    except ConfigError:
        return False
    return True
