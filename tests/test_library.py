"""The library from Python, without the command: train, resume, load; with the caller's own objects."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from environments import NUM_STATES, LinearChain
from gymnasium import spaces
from small_runs import Stopped, differences, small_config, stop_at, train_to_end
from torch import nn

import lambda_replay as lr
from lambda_replay.agents.run_settings import to_dict
from lambda_replay.config import RunConfig
from lambda_replay.envs import make_environment
from lambda_replay.replay.estimator_names import name_of_estimator, parse_estimator
from lambda_replay.training import events
from lambda_replay.training.library import nested
from lambda_replay.training.playing import play
from lambda_replay.training.policy import load_policy

PACKAGE = Path(lr.__file__).parent


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Keywords for ``lr.train`` that give exactly this config."""
    named = ("env", "env_args", "agent", "estimator", "atari", "minatar", "threads")
    return {name: value for name, value in to_dict(config).items() if name not in named}


SMALL: dict[str, Any] = settings_of(small_config())


def half(block: lr.Block) -> Any:
    """An estimator of the user's own, which this module has by this name."""
    return lr.parse_estimator("peng:0.5")(block)


class OneHot(gymnasium.Env[Any, Any]):
    """Actions 3 and 4; shows a number from 0 to 4, which the agent sees one-hot: walking right ends the game."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Discrete(NUM_STATES), spaces.Discrete(2, start=3)
        self._inner = LinearChain()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        observation, _ = self._inner.reset(seed=seed)
        return int(observation.argmax()), {}

    def step(self, action: Any) -> Any:
        assert action in (3, 4)
        observation, *rest = self._inner.step(action - 3)
        return int(observation.argmax()), *rest


# --- what is imported, and when ---------------------------------------------------------------------------------------


def test_the_names_are_there_but_torch_is_imported_on_use_only() -> None:
    code = (
        "import sys, lambda_replay as lr; from lambda_replay import *; "
        "print({'train', 'resume', 'load'} <= set(dir(lr)), 'torch' in sys.modules); "
        "lr.train; print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["True", "False", "True"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'lambda_replay' has no attribute 'trian'"):
        _ = lr.trian  # type: ignore[attr-defined]


def test_the_stub_for_type_checkers_has_the_names_of_the_package() -> None:
    def names(file: str) -> set[str]:
        nodes = ast.walk(ast.parse((PACKAGE / file).read_text(encoding="utf-8")))
        return {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert names("__init__.pyi") == (names("__init__.py") - {"needed_for", "Any"}) | {"train", "resume", "load"}


# --- train ------------------------------------------------------------------------------------------------------------


def test_train_writes_the_bytes_of_the_command(tmp_path: Path) -> None:
    """Which trains the same config by the same functions; the path is a str."""
    config = small_config()
    run = lr.train("CartPole-v1", out=str(tmp_path / "here"), estimator=config.estimator, **SMALL)
    assert (run.path, run.step, run.config.agent) == (tmp_path / "here", 420, "dqn-lambda")
    assert not differences(train_to_end(tmp_path / "there", config), run.path)
    rows = (run.path / "metrics.jsonl").read_text().splitlines()
    assert run.score == json.loads(rows[-1])["score_mean_100"]


def test_every_setting_is_a_keyword_nested_or_dotted(tmp_path: Path) -> None:
    dotted = {"cache.size": 40, "cache": {"updates": 3, "refresh_every": 60}, "cache.block_length": 10}
    run = lr.train("CartPole-v1", out=tmp_path / "run", **{**SMALL, **dotted, "memory": {"start": 150}})
    values = to_dict(run.config)
    assert [values["cache"][name] for name in ("size", "updates", "block_length", "refresh_every")] == [40, 3, 10, 60]
    assert (values["memory"]["start"], values["memory"]["capacity"]) == (150, 50_000)  # the preset's


def test_nested_tables() -> None:
    assert nested({"a.b": 1, "a": {"c": 2}, "a.d.e": 3}) == {"a": {"b": 1, "c": 2, "d": {"e": 3}}}
    assert nested({"a": {"b.c": 1}}) == {"a": {"b": {"c": 1}}}


def test_agent_preset_and_arguments_of_the_environment(tmp_path: Path) -> None:
    target: dict[str, Any] = {"target.copy_every": 60, "memory": {"start": 120, "capacity": 240}}
    run = lr.train("CartPole-v1", agent="dqn", out=tmp_path / "dqn", steps=200, **target)
    assert (run.config.agent, run.config.estimator) == ("dqn", "nstep:3")
    lake = {"map_name": "8x8", "is_slippery": False}
    run = lr.train("FrozenLake-v1", preset="classic", env_args=lake, out=tmp_path / "lake", **SMALL)
    assert run.config.env_arguments == lake
    assert lr.load(run.path).act(63) in range(4)


def test_without_out_the_run_gets_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = lr.train("CartPole-v1", **{**SMALL, "steps": 60})
    assert run.path == Path("runs/cartpole-v1-dqn-lambda-peng-0.9-seed0")
    assert run.path.is_dir()


def test_the_callback_hears_everything_in_order(tmp_path: Path) -> None:
    heard: list[events.RunEvent] = []
    every = {**SMALL, "evaluate_every": 120, "evaluate_games": 2, "film_every": 240}
    run = lr.train("environments:LinearChain-v0", out=tmp_path / "run", on_event=heard.append, **every)
    assert [event.step for event in heard if isinstance(event, events.Learned)] == [120, 180, 240, 300, 360, 420]
    assert [event.step for event in heard if isinstance(event, events.Checkpointed)] == [120, 180, 240, 300, 360]
    assert [event.step for event in heard if isinstance(event, events.Evaluated)] == [240, 360, 420]
    films = [event for event in heard if isinstance(event, events.Filmed)]
    assert [film.path for film in films] == [run.path / "films" / "360.gif", run.path / "films" / "420.gif"]
    games = [event for event in heard if isinstance(event, events.GameEnd)]
    assert len(games) == json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1])["episodes"]
    assert heard[-1] == events.Finished(420, run.score, run.path)
    steps = [event.step for event in heard]
    assert steps == sorted(steps)


def test_a_warning_is_an_event_once(tmp_path: Path) -> None:
    """The game shows the same at every step, so values cannot depend on the state: after 20 rows this is said."""
    heard: list[events.RunEvent] = []
    often = {**SMALL, "steps": 1_800, "cache.updates": 1}
    run = lr.train("environments:Constant-v0", out=tmp_path / "run", on_event=heard.append, **often)
    warned = [event for event in heard if isinstance(event, events.Warned)]
    assert [event.kind for event in warned] == list(dict.fromkeys(event.kind for event in warned))
    assert "values alike" in {event.kind for event in warned} == {warning.kind for warning in run.warnings}


def test_what_the_callback_raises_stops_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        lr.train("CartPole-v1", out=tmp_path / "run", on_event=stop_at(350), **SMALL)
    assert lr.load(tmp_path / "run").step == 300
    lr.resume(str(tmp_path / "run"))
    assert not differences(lr.train("CartPole-v1", out=tmp_path / "whole", **SMALL).path, tmp_path / "run")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"stepps": 5}, "there is no setting stepps; did you mean steps"),
        ({"cache": {"siez": 5}}, "there is no setting cache.siez; did you mean cache.size"),
        ({"steps": "many"}, "steps is 'many'; give a whole number"),
        ({"target.copy_every": 5}, "target settings belong to agent dqn only"),
        ({"agent": "sac-lambda"}, "needs Box actions"),
        ({"agent": "dnq"}, "there is no agent 'dnq'"),
        ({"preset": "classy"}, "there is no preset 'classy'"),
        ({"estimator": "peng:7"}, "'peng:7' is misspelt"),
        ({"estimator": "object/half"}, "object/half was given as a Python object"),
        ({"network": nn.Linear(4, 3)}, r"the network returns shape \(2, 1, 3\)"),
        ({"network": "large"}, "network is str; give a torch.nn.Module"),
        ({"stop_at_score": float("inf")}, "stop_at_score"),
        ({"evaluate_games": 0}, "evaluate_games is 0; give a number above 0"),
        ({"film_every": -1}, "film_every is -1; give 0 or more"),
        ({"estimator": 0.7}, "estimator is 0.7; give a callable or, to train, a name such as 'peng:0.7'"),
        ({"on_event": 3}, "on_event is 3; give a function that takes an event"),
    ],
)
def test_a_mistake_is_one_sentence_and_nothing_is_written(tmp_path: Path, arguments: Any, words: str) -> None:
    with pytest.raises(lr.ConfigError, match=words):
        lr.train("CartPole-v1", out=tmp_path / "run", **arguments)
    assert not list(tmp_path.iterdir())


# --- the caller's own objects -----------------------------------------------------------------------------------------


def test_an_environment_object_or_a_function_gives_the_run_of_its_id(tmp_path: Path) -> None:
    """The id adds a time limit and a check, which change nothing here."""
    env = gymnasium.make("CartPole-v1")
    by_id = lr.train("CartPole-v1", out=tmp_path / "id", estimator="peng:0.9", **SMALL)
    lent = lr.train(env, out=tmp_path / "object", estimator="peng:0.9", **SMALL)
    assert not differences(by_id.path, lent.path)
    assert lent.config.env == "object/CartPoleEnv"
    env.reset()  # it stays open
    made = lr.train(lambda: gymnasium.make("CartPole-v1"), out=tmp_path / "function", estimator="peng:0.9", **SMALL)
    assert not differences(by_id.path, made.path)


def test_an_environment_object_must_be_passed_again(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        lr.train(OneHot, out=tmp_path / "run", on_event=stop_at(350), **SMALL)
    for again in (lr.load, lr.resume):
        with pytest.raises(lr.ConfigError, match=r"object/OneHot was given as a Python object.*pass it again as env="):
            again(tmp_path / "run")
    lr.resume(tmp_path / "run", env=OneHot())
    assert not differences(lr.train(OneHot(), out=tmp_path / "whole", **SMALL).path, tmp_path / "run")


def test_one_environment_is_not_enough_for_several(tmp_path: Path) -> None:
    for more in ({"envs": 2}, {"evaluate_every": 60}, {"film_every": 60}):
        with pytest.raises(lr.ConfigError, match="give a function that returns a new one"):
            lr.train(OneHot(), out=tmp_path / "run", **{**SMALL, **more})
    assert not list(tmp_path.iterdir())
    run = lr.train(OneHot, out=tmp_path / "run", **{**SMALL, "envs": 2, "evaluate_every": 60})
    assert len((run.path / "evaluations.jsonl").read_text().splitlines()) == 5


def test_what_is_not_an_environment_is_said(tmp_path: Path) -> None:
    several = gymnasium.make_vec("CartPole-v1", num_envs=2)
    remedy = r"; give the name of an environment, a gymnasium\.Env, or a function that returns one"
    for wrong, words in (
        (None, "env is None"),
        (5, "env is int"),
        (several, "env is CartPoleVectorEnv"),
        (lambda: several, "env returned CartPoleVectorEnv"),
        (lambda: "CartPole-v1", "env returned str"),
    ):
        with pytest.raises(lr.ConfigError, match=words + remedy) as refused:
            lr.train(wrong, out=tmp_path / "run", **SMALL)
        assert ("envs=N" in str(refused.value)) == ("Vector" in words)
    with pytest.raises(lr.ConfigError, match="without render_mode"):
        lr.train(LinearChain, out=tmp_path / "run", **{**SMALL, "film_every": 60})
    assert not list(tmp_path.iterdir())


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    evaluated = {name: value for name, value in SMALL.items() if name != "network"} | {"evaluate_every": 120}
    whole = lr.train("CartPole-v1", out=tmp_path / "whole", network=make(), **evaluated)
    with pytest.raises(Stopped):
        lr.train("CartPole-v1", out=tmp_path / "run", network=make(), on_event=stop_at(350), **evaluated)
    lr.resume(tmp_path / "run", network=make())
    assert not differences(whole.path, tmp_path / "run")
    assert lr.load(whole.path, network=make(), weights="best").act(np.zeros(4)) in (0, 1)
    with pytest.raises(lr.ConfigError, match=r"belong to another network; .*lr\.load\(run, network=…\)"):
        lr.load(whole.path)
    with pytest.raises(lr.ConfigError, match="agent sac-lambda takes no network of your own"):
        lr.train("Pendulum-v1", out=tmp_path / "none", network=make(), steps=100)
    recurrent = train_to_end(tmp_path / "recurrent", small_config(agent="drqn-lambda"))
    with pytest.raises(lr.ConfigError, match="agent drqn-lambda takes no network of your own; leave network out"):
        lr.load(recurrent, network=make())


def test_an_estimator_of_ones_own(tmp_path: Path) -> None:
    """One that a module has keeps its name; any other must be passed again; a built-in one is the one with its name."""

    def local(block: lr.Block) -> Any:
        return half(block)

    by_name = lr.train("CartPole-v1", out=tmp_path / "name", estimator="peng:0.5", **SMALL)
    for number, (estimator, name) in enumerate(
        [
            (half, "test_library:half"),
            (lr.parse_estimator("peng:0.5"), "peng:0.5"),
            (local, "object/test_an_estimator_of_ones_own-locals-local"),
        ]
    ):
        run = lr.train("CartPole-v1", out=tmp_path / str(number), estimator=estimator, **SMALL)
        assert run.config.estimator == name
        assert (by_name.path / "episodes.csv").read_bytes() == (run.path / "episodes.csv").read_bytes()
    with pytest.raises(Stopped):
        lr.train("CartPole-v1", out=tmp_path / "run", estimator=local, on_event=stop_at(350), **SMALL)
    with pytest.raises(lr.ConfigError, match="pass it again as estimator="):
        lr.resume(tmp_path / "run")
    for wrong in ({"estimator": "peng:0.5"}, {"on_event": 3}):
        with pytest.raises(lr.ConfigError, match="; give a "):
            lr.resume(tmp_path / "run", **wrong)
    lr.resume(tmp_path / "run", estimator=half)
    assert not differences(tmp_path / "2", tmp_path / "run")


@pytest.mark.parametrize("spelling", ["peng:0.75", "nstep:3", "median/10", "retrace:0.9@0.05", "watkins-bounded:0.1"])
def test_a_built_in_estimator_has_its_spelling_as_a_name(spelling: str) -> None:
    assert parse_estimator(name_of_estimator(parse_estimator(spelling))) == parse_estimator(spelling)


# --- load -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "agent", "more"),
    [
        ("CartPole-v1", "dqn-lambda", {"memory": {"start": 120, "capacity": 240, "history": 3}}),
        ("minatar/breakout", "dqn", {}),
        ("Pendulum-v1", "sac-lambda", {}),
        ("Pendulum-v1", "td3-lambda", {}),
        ("CartPole-v1", "dqn-lambda", {"observe": [2, 0]}),
        ("CartPole-v1", "drqn-lambda", {"observe": [0, 2], "recurrence": {"reward": True}}),
        ("CartPole-v1", "dqn-lambda", {"observe": [3, 0, 2], "scale": [0.5, 1, 10]}),
        ("Pendulum-v1", "sdqn-lambda", {}),
    ],
)
def test_a_loaded_agent_plays_the_game_that_evaluate_plays(
    tmp_path: Path, env: str, agent: str, more: dict[str, Any]
) -> None:
    """Action by action, with frames stacked and actions scaled as in training, and reset between episodes."""
    path = train_to_end(tmp_path / "run", small_config(env, agent, **more))
    trained = load_policy(path)
    wanted = [
        play(trained.environment, trained.policy, history=trained.config.memory.history, epsilon=0.0, seed=seed)
        for seed in (0, 1)
    ]
    player, ours = lr.load(str(path)), make_environment(trained.config)
    for seed, game in enumerate(wanted):
        player.reset()
        score, length = 0.0, 0
        if env.startswith("minatar/"):
            observation, is_over = ours.reset(seed), False
            while not is_over:
                step = ours.step(player.act(observation))
                observation, is_over, score, length = step.observation, step.game_over, score + step.score, length + 1
        else:
            gym = gymnasium.make(env)
            observation, _ = gym.reset(seed=seed)
            is_over, earned = False, 0.0
            while not is_over:
                action = player.act(observation, reward=earned)
                assert gym.action_space.contains(action)
                observation, reward, terminated, truncated, _ = gym.step(action)
                earned = float(reward)
                is_over, score, length = terminated or truncated, score + earned, length + 1
        assert (score, length) == (game.score, game.length)


def test_an_agent_that_sees_rewards_asks_for_them(tmp_path: Path) -> None:
    path = train_to_end(tmp_path / "run", small_config(agent="drqn-lambda", recurrence={"reward": True}))
    player = lr.load(path)
    player.act(np.zeros(4))  # nothing was earned before an episode's first state
    with pytest.raises(lr.ConfigError, match=r"also sees rewards \(recurrence\.reward\); pass the last one: act\("):
        player.act(np.zeros(4))
    player.act(np.zeros(4), reward=1.0)
    player.reset()
    player.act(np.zeros(4))


def test_a_loaded_agent_sees_the_rewards_that_it_learned_from(tmp_path: Path) -> None:
    """Atari's are clipped to their signs."""
    clipped = small_config("atari/breakout", "drqn-lambda", recurrence={"reward": True})
    path = train_to_end(tmp_path / "run", clipped)
    screen, hidden = np.zeros((84, 84), dtype=np.uint8), []
    for reward in (1.0, 7.0, 0.0):
        player: Any = lr.load(path)
        player.act(screen)
        player.act(screen, reward=reward)
        hidden.append(player._policy.acting.get_tensors()["state"].tolist())
    assert hidden[0] == hidden[1] != hidden[2]


def test_a_loaded_agent_forgets_its_frames_between_episodes(tmp_path: Path) -> None:
    """The Q-values of a stack that still held the last game's frames would differ."""
    more: dict[str, Any] = {"memory": {"start": 120, "capacity": 240, "history": 4}}
    path = train_to_end(tmp_path / "run", small_config(**more))
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(200, 4)).astype(np.float32)
    player = lr.load(path)
    first = []
    for observation in observations:
        player.reset()
        first.append(player.act(observation))
    critic: Any = load_policy(path).policy.critic
    states = np.zeros((200, 4, 4), dtype=np.float32)
    states[:, -1] = observations
    assert first == critic(states).argmax(axis=1).tolist()
    with_past = np.zeros((200, 4, 4), dtype=np.float32)  # the last four observations of 199 steps without a reset
    for age in range(4):
        with_past[age:, 3 - age] = observations[: 200 - age]
    player.reset()
    assert [player.act(observation) for observation in observations] == critic(with_past).argmax(axis=1).tolist()


def test_observations_and_actions_are_those_of_the_environment(tmp_path: Path) -> None:
    """Discrete observations become one-hot inside, actions start at 3, and random ones come with ε."""
    run = lr.train(OneHot, out=tmp_path / "run", **SMALL)
    player = lr.load(run.path, env=OneHot, seed=1)
    assert {player.act(state) for state in range(NUM_STATES)} <= {3, 4}
    assert {player.act(0, epsilon=1.0) for _ in range(50)} == {3, 4}
    for wrong in (7, 1.5, np.zeros(3)):
        with pytest.raises(lr.ConfigError, match="does not fit object/OneHot"):
            player.act(wrong)
    with pytest.raises(lr.ConfigError, match="epsilon is 2"):
        player.act(0, epsilon=2)


def test_load_refuses_what_has_no_weights(tmp_path: Path) -> None:
    path = train_to_end(tmp_path / "run", small_config())
    with pytest.raises(lr.ConfigError, match="no best weights"):
        lr.load(path, weights="best")
    wrong: Any = "beste"
    with pytest.raises(lr.ConfigError, match="weights is 'beste'; choose last or best"):
        lr.load(path, weights=wrong)
    with pytest.raises(lr.ConfigError, match="there is no run"):
        lr.load(str(tmp_path / "nothing"))
