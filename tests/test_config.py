"""Every setting: its comment, its check, its way through JSON and back."""

from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lambda_replay import config as config_module
from lambda_replay.agents import dqn as dqn_module
from lambda_replay.agents.dqn import DQNConfig, TargetConfig
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.agents.drqn_lambda import DRQNLambdaConfig
from lambda_replay.agents.run_settings import differing_fields, from_dict, override, to_dict
from lambda_replay.config import CacheConfig, ExplorationConfig, MemoryConfig, NetworkConfig, RunConfig, flatten
from lambda_replay.errors import ConfigError
from lambda_replay.training.presets import make_config

RESULTS = sorted((Path(__file__).parents[1] / "results" / "atari").glob("*-atari-*/config.json"))
ATARI = make_config("atari/pong", "paper")
MINATAR = make_config("minatar/breakout")
# With fixed numbers, so that tuning a preset changes nothing here.
MEMORY = MemoryConfig(capacity=50_000, start=1_000, history=1)
CARTPOLE = RunConfig(
    env="CartPole-v1",
    steps=50_000,
    memory=MEMORY,
    algorithm=DQNLambdaConfig(cache=CacheConfig(size=4_000, block_length=50, refresh_every=250, updates=125)),
)
BASELINE = replace(
    CARTPOLE,
    agent="dqn",
    estimator="nstep:3",
    algorithm=DQNConfig(target=TargetConfig(copy_every=500, update_every=2)),
)
ALL = [ATARI, MINATAR, CARTPOLE, BASELINE, make_config("atari/pong", "paper", "dqn")]

# Settings that the paper does not speak of.
NOT_IN_THE_PAPER = {
    "env", "agent", "seed", "device", "threads", "checkpoint_every", "memory.storage", "network.kind", "network.hidden",
    "minatar.sticky", "minatar.ramping", "minatar.all_actions", "env_args", "max_game_steps",
    "evaluate_every", "evaluate_games", "film_every", "stop_at_score",
}  # fmt: skip
REMEDY = re.compile(
    r"; (give|raise|lower|set|use|choose|did you mean|undo)|"
    r"is the (next|nearest)|must be a multiple of|belong to|needs?\b"
)


def refusal(base: RunConfig, changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        override(base, changes)
    return str(caught.value)


def comments() -> dict[str, str]:
    """The comment behind every setting, by the setting's full name."""
    prefixes = {"RunConfig": ""} | {
        type(part).__name__: f"{name}."
        for config in (ATARI, MINATAR, BASELINE)
        for name, part in {**vars(config), **vars(config.algorithm)}.items()
        if is_dataclass(part) and name != "algorithm"
    }
    found = {}
    for module in (config_module, dqn_module):  # the second has the settings of the paper's baseline
        source = inspect.getsource(module)
        lines = source.splitlines()
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef) and node.name in prefixes:
                for item in node.body:
                    if isinstance(item, ast.AnnAssign):
                        name = prefixes[node.name] + ast.unparse(item.target)
                        found[name] = lines[item.lineno - 1].partition("  # ")[2]
    return found


def setting(name: str) -> Any:
    """The value that the preset of the paper gives to a setting."""
    owner = make_config("atari/pong", "paper", "dqn") if name.startswith("target.") else ATARI
    return flatten(to_dict(owner))[name]


COMMENTS = comments()
SETTINGS = [name for name in COMMENTS if name not in {f.name for f in fields(RunConfig) if "Config" in str(f.type)}]


# --- golden -----------------------------------------------------------------------------------------------------------


def test_every_setting_is_found() -> None:
    assert len(SETTINGS) > 40
    assert {"steps", "cache.size", "target.copy_every", "atari.sticky", "minatar.ramping"} <= set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_settings_comment_says_what_it_is_and_the_papers_value(name: str) -> None:
    comment = COMMENTS[name]
    assert comment, f"{name} has no comment, so --help has nothing to say"
    assert name in NOT_IN_THE_PAPER or "paper" in comment


@pytest.mark.parametrize("name", [name for name in SETTINGS if re.search(r"paper [\d.]", COMMENTS[name])])
def test_the_paper_preset_has_the_number_that_the_comment_gives(name: str) -> None:
    number = re.search(r"paper ([\d.,]*\d)", COMMENTS[name])
    assert number is not None
    assert float(number[1].replace(",", "")) == setting(name)


@pytest.mark.parametrize("name", [name for name in SETTINGS if re.search(r"paper (yes|no)\b", COMMENTS[name])])
def test_the_paper_preset_has_the_choice_that_the_comment_gives(name: str) -> None:
    assert setting(name) is ("paper yes" in COMMENTS[name])


def test_derived_values() -> None:
    cache = CacheConfig(size=600, block_length=20, refresh_every=100)
    assert (cache.num_blocks, cache.updates_per_refresh) == (30, 25)
    assert replace(cache, updates=7).updates_per_refresh == 7
    assert replace(cache, refresh_every=3).updates_per_refresh == 1  # never none at all
    assert (CARTPOLE.algorithm.boundary_every, BASELINE.algorithm.boundary_every) == (250, 500)


@pytest.mark.parametrize(
    ("every", "interval"), [(0, 0), (1, 250), (249, 250), (250, 250), (251, 500), (50_000, 50_000), (49_999, 50_000)]
)
def test_checkpoints_are_rounded_up_to_whole_boundaries(every: int, interval: int) -> None:
    assert override(CARTPOLE, {"checkpoint_every": every}).checkpoint_interval == interval


def test_acting_while_training_reserves_the_slots_of_a_window() -> None:
    """250 steps over 2 environments are 125 each, and a step writes two slots at the most: 250."""
    cache = CacheConfig(size=4_000, block_length=50, refresh_every=250)
    assert replace(cache, schedule="concurrent").reserve_slots(num_streams=2) == 250
    assert cache.reserve_slots(num_streams=2) == 0


def test_boundaries_are_counted_from_the_start_of_learning() -> None:
    """The memory fills for 1,000 steps, then a boundary comes every 250."""
    steps = [0, 999, 1_000, 1_001, 1_249, 1_250]
    assert [CARTPOLE.steps_to_boundary(step) for step in steps] == [1_000, 1, 0, 249, 1, 0]
    assert [CARTPOLE.is_boundary(step) for step in steps] == [False, False, True, False, False, True]


# --- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ALL, ids=lambda config: f"{config.env} {config.agent}")
def test_json_and_back(config: RunConfig) -> None:
    text = json.dumps(to_dict(config))
    assert from_dict(json.loads(text)) == config
    assert json.dumps(to_dict(from_dict(json.loads(text)))) == text


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 7, "seed": 2**70, "discount": 1},
        {"cache": {"updates": 3, "priority": 0.1, "tail": 5}, "optimizer": {"max_grad_norm": 10}},
        {"network": {"hidden": []}, "memory": {"storage": "ram"}, "checkpoint_every": 0},
        {"network": {"hidden": [3, 4, 5]}},
    ],
)
def test_json_and_back_with_changes(changes: dict[str, Any]) -> None:
    config = override(CARTPOLE, changes)
    assert config != CARTPOLE
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_overriding_replaces_what_is_named_and_nothing_else() -> None:
    before = to_dict(CARTPOLE)
    changed = override(CARTPOLE, {"seed": 3, "cache": {"size": 400}, "network": {"hidden": [5]}})
    cache = CacheConfig(size=400, block_length=50, refresh_every=250, updates=125)
    algorithm = DQNLambdaConfig(cache=cache, network=NetworkConfig(hidden=(5,)))
    assert changed == replace(CARTPOLE, seed=3, algorithm=algorithm)
    assert to_dict(CARTPOLE) == before
    assert override(CARTPOLE, {}) == CARTPOLE


def test_a_whole_number_will_do_for_a_float_and_none_for_an_optional_setting() -> None:
    assert type(override(CARTPOLE, {"discount": 1}).discount) is float
    assert to_dict(override(CARTPOLE, {"cache": {"updates": None}}))["cache"]["updates"] is None


def test_differing_fields() -> None:
    assert differing_fields(CARTPOLE, CARTPOLE) == []
    changes = {"seed": 3, "cache": {"size": 400}, "network": {"hidden": [5]}, "optimizer": {"max_grad_norm": 1.0}}
    changed = override(CARTPOLE, changes)
    names = ["seed", "cache.size", "network.hidden", "optimizer.max_grad_norm"]
    assert sorted(differing_fields(CARTPOLE, changed)) == sorted(differing_fields(changed, CARTPOLE)) == sorted(names)


def test_differing_fields_of_different_agents_name_the_settings_that_only_one_has() -> None:
    for names in (set(differing_fields(CARTPOLE, BASELINE)), set(differing_fields(BASELINE, CARTPOLE))):
        assert {"agent", "estimator", "cache.size", "target.copy_every"} <= names
        assert "memory.capacity" not in names


def test_configs_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        CARTPOLE.steps = 3  # type: ignore[misc]


# --- every check ------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[RunConfig, dict[str, Any], list[str]]] = [
    (CARTPOLE, {"steps": 0}, ["steps is 0"]),
    (CARTPOLE, {"steps": -5}, ["steps is -5"]),
    (CARTPOLE, {"envs": 0}, ["envs is 0"]),
    (CARTPOLE, {"threads": 0}, ["threads is 0"]),
    (CARTPOLE, {"seed": -1}, ["seed is -1"]),
    (CARTPOLE, {"discount": 1.5}, ["discount is 1.5", "from 0 to 1"]),
    (CARTPOLE, {"discount": float("nan")}, ["discount is nan"]),
    (CARTPOLE, {"flicker": -0.1}, ["flicker is -0.1", "from 0 to 1"]),
    (CARTPOLE, {"checkpoint_every": -1}, ["checkpoint_every is -1"]),
    (CARTPOLE, {"max_game_steps": 0}, ["max_game_steps is 0"]),
    (CARTPOLE, {"env_args": ["gravity"]}, ["env_args", "'gravity'", "name=value"]),
    (CARTPOLE, {"env_args": ["=3"]}, ["env_args", "'=3'"]),
    (CARTPOLE, {"env_args": ["a b=3"]}, ["env_args", "'a b=3'"]),
    (CARTPOLE, {"env_args": ["g=1", "g=2"]}, ["env_args", "g twice"]),
    (CARTPOLE, {"env_args": ["render_mode=human"]}, ["env_args", "render_mode"]),
    (CARTPOLE, {"env_args": ["disable_env_checker=false"]}, ["env_args", "disable_env_checker"]),
    (CARTPOLE, {"env_args": ["id=3"]}, ["env_args", "id"]),
    (CARTPOLE, {"env_args": "g=1"}, ["env_args is 'g=1'", "a list"]),
    (CARTPOLE, {"env_args": [3]}, ["env_args is 3", "a string"]),
    (ATARI, {"env_args": ["sticky=0"]}, ["env_args", "atari/pong", "atari.sticky"]),
    (MINATAR, {"env_args": ["sticky=0"]}, ["env_args", "minatar/breakout", "minatar.sticky"]),
    (CARTPOLE, {"memory": {"capacity": 0}}, ["memory.capacity is 0"]),
    (CARTPOLE, {"memory": {"start": 0}}, ["memory.start is 0"]),
    (CARTPOLE, {"memory": {"history": 0}}, ["memory.history is 0"]),
    (BASELINE, {"memory": {"history": 256}}, ["history", "256", "255"]),
    (CARTPOLE, {"memory": {"capacity": 999}}, ["memory.capacity (999)", "memory.start (1000)"]),
    (CARTPOLE, {"memory": {"storage": "ram"}}, ["memory.storage", "checkpoint_every"]),
    (CARTPOLE, {"cache": {"size": 0}}, ["cache.size is 0"]),
    (CARTPOLE, {"cache": {"block_length": 0}}, ["cache.block_length is 0"]),
    (CARTPOLE, {"cache": {"refresh_every": 0}}, ["cache.refresh_every is 0"]),
    (CARTPOLE, {"cache": {"size": 210, "block_length": 100}}, ["cache.size (210)", "cache.block_length (100)", "200"]),
    (CARTPOLE, {"cache": {"size": 30, "block_length": 100}}, ["cache.size (30)", " 100 is the nearest"]),
    (CARTPOLE, {"cache": {"updates": 0}}, ["cache.updates is 0"]),
    (CARTPOLE, {"cache": {"tail": -1}}, ["cache.tail is -1"]),
    (CARTPOLE, {"cache": {"priority": 1.1}}, ["cache.priority is 1.1"]),
    (CARTPOLE, {"cache": {"priority_quantile": 1}}, ["cache.priority_quantile is 1.0"]),
    (CARTPOLE, {"cache": {"priority_quantile": -0.1}}, ["cache.priority_quantile is -0.1"]),
    (CARTPOLE, {"cache": {"block_length": 1_000, "size": 1_000}}, ["memory.start (1000", "1001", "cache.block_length"]),
    (CARTPOLE, {"cache": {"tail": 951}}, ["memory.start (1000", "1002"]),
    (CARTPOLE, {"memory": {"history": 200, "start": 200}}, ["memory.start (200", "250"]),
    (CARTPOLE, {"envs": 25}, ["memory.start (1000, over 25 environments)", "1275"]),
    (
        CARTPOLE,
        {"cache": {"schedule": "concurrent", "refresh_every": 30_000}},
        ["memory.capacity (50000", "60051"],
    ),
    (CARTPOLE, {"envs": 3}, ["steps (50000)", "envs (3)", "50001 is the next"]),
    (CARTPOLE, {"envs": 3, "steps": 3}, ["memory.start (1000)", "envs (3)", "1002 is the next"]),
    (CARTPOLE, {"envs": 4}, ["cache.refresh_every (250)", "envs (4)", "252 is the next"]),
    (BASELINE, {"envs": 8, "target": {"copy_every": 100, "update_every": 4}}, ["target.copy_every (100)", "104"]),
    (BASELINE, {"target": {"copy_every": 0}}, ["target.copy_every is 0"]),
    (BASELINE, {"target": {"update_every": 0}}, ["target.update_every is 0"]),
    (BASELINE, {"target": {"copy_every": 10, "update_every": 4}}, ["copy_every (10)", "update_every (4)"]),
    (CARTPOLE, {"exploration": {"start": 1.1}}, ["exploration.start is 1.1"]),
    (CARTPOLE, {"exploration": {"end": -0.1}}, ["exploration.end is -0.1"]),
    (CARTPOLE, {"exploration": {"steps": 0}}, ["exploration.steps is 0"]),
    (CARTPOLE, {"optimizer": {"batch_size": 0}}, ["optimizer.batch_size is 0"]),
    (CARTPOLE, {"optimizer": {"learning_rate": 0}}, ["optimizer.learning_rate is 0"]),
    (CARTPOLE, {"optimizer": {"learning_rate": float("nan")}}, ["optimizer.learning_rate is nan"]),
    (CARTPOLE, {"optimizer": {"learning_rate": float("inf")}}, ["optimizer.learning_rate is inf"]),
    (CARTPOLE, {"optimizer": {"epsilon": 0}}, ["optimizer.epsilon is 0"]),
    (CARTPOLE, {"optimizer": {"beta1": 1}}, ["optimizer.beta1 is 1"]),
    (CARTPOLE, {"optimizer": {"beta2": -0.1}}, ["optimizer.beta2 is -0.1"]),
    (CARTPOLE, {"optimizer": {"max_grad_norm": 0}}, ["optimizer.max_grad_norm is 0"]),
    (CARTPOLE, {"network": {"hidden": [8, 0]}}, ["network.hidden is (8, 0)"]),
    (ATARI, {"atari": {"frame_skip": 0}}, ["atari.frame_skip is 0"]),
    (ATARI, {"atari": {"max_frames": 0}}, ["atari.max_frames is 0"]),
    (ATARI, {"atari": {"noop_max": -1}}, ["atari.noop_max is -1"]),
    (ATARI, {"atari": {"sticky": 2}}, ["atari.sticky is 2"]),
    (MINATAR, {"minatar": {"sticky": -1}}, ["minatar.sticky is -1"]),
    # Names and types
    (CARTPOLE, {"stepz": 3}, ["no setting stepz", "steps"]),
    (CARTPOLE, {"cache": {"sise": 3}}, ["no setting cache.sise", "size"]),
    (CARTPOLE, {"steps": 1.5}, ["steps is 1.5", "a whole number"]),
    (CARTPOLE, {"steps": "many"}, ["steps is 'many'", "a whole number"]),
    (CARTPOLE, {"steps": True}, ["steps is True", "a whole number"]),
    (CARTPOLE, {"discount": "0.9"}, ["discount is '0.9'", "a number"]),
    (CARTPOLE, {"discount": True}, ["discount is True", "a number"]),
    (CARTPOLE, {"estimator": 3}, ["estimator is 3", "a string"]),
    (CARTPOLE, {"agent": "sarsa"}, ["no agent 'sarsa'", "choose one of dqn-lambda, dqn"]),
    (CARTPOLE, {"device": "tpu"}, ["device is 'tpu'", "'cpu'"]),
    (CARTPOLE, {"optimizer": {"loss": "l1"}}, ["optimizer.loss is 'l1'", "'squared' or 'huber'"]),
    (CARTPOLE, {"optimizer": {"max_grad_norm": "x"}}, ["optimizer.max_grad_norm is 'x'", "a number"]),
    (CARTPOLE, {"memory": 3}, ["memory is 3", "a table of settings"]),
    (CARTPOLE, {"network": {"hidden": 3}}, ["network.hidden is 3", "a list"]),
    (CARTPOLE, {"network": {"hidden": [1.5]}}, ["network.hidden", "1.5"]),
    (ATARI, {"atari": {"clip_rewards": 1}}, ["atari.clip_rewards is 1", "true or false"]),
    # Combinations that cannot be
    (CARTPOLE, {"agent": "dqn"}, ["cache", "belong to agent dqn-lambda", "only"]),
    (BASELINE, {"agent": "dqn-lambda"}, ["target", "agent dqn only"]),
    (CARTPOLE, {"cache": None}, ["cache is None", "a table of settings"]),
    (BASELINE, {"target": None}, ["target is None", "a table of settings"]),
    (CARTPOLE, {"target": {"copy_every": 100, "update_every": 4}}, ["target", "agent dqn only"]),
    (CARTPOLE, {"env": "atari/pong"}, ["atari/pong needs the atari settings, which are missing"]),
    (MINATAR, {"env": "CartPole-v1"}, ["minatar", "environments only"]),
    (ATARI, {"env": "minatar/breakout"}, ["atari"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("base", "changes", "words"), REFUSED, ids=[f"{base.agent} {changes}" for base, changes, _ in REFUSED]
)
def test_a_mistake_is_one_sentence_that_names_the_setting_the_value_and_the_remedy(
    base: RunConfig, changes: dict[str, Any], words: list[str]
) -> None:
    sentence = refusal(base, changes)
    assert "\n" not in sentence
    assert sentence.endswith((".", "?"))
    assert REMEDY.search(sentence), sentence
    for word in words:
        assert word in sentence, sentence


def test_a_setting_for_a_part_that_is_not_there_names_the_agent_it_belongs_to() -> None:
    """Not the other settings of that part, which nobody asked for."""
    assert "agent dqn" in refusal(BASELINE, {"cache": {"size": 400}})


@pytest.mark.parametrize("name", ["env", "steps", "memory", "cache"])
def test_a_saved_config_with_a_missing_setting_is_refused(name: str) -> None:
    values = to_dict(CARTPOLE)
    del values[name]
    with pytest.raises(ConfigError, match=rf"the setting {name} is missing"):
        from_dict(values)


def test_a_config_of_an_earlier_version_means_what_it_meant() -> None:
    values = to_dict(make_config("CartPole-v1", agent="drqn-lambda"))
    del values["scale"], values["recurrence"]["shortcut"]
    config = from_dict(values)
    assert config.scale == ()
    assert isinstance(config.algorithm, DRQNLambdaConfig)
    assert not config.algorithm.recurrence.shortcut
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_the_runs_in_results_can_be_read(path: Path) -> None:
    assert from_dict(json.loads(path.read_text())).env.startswith("atari/")


def test_a_saved_config_with_a_missing_or_unknown_nested_setting_is_refused() -> None:
    values = to_dict(CARTPOLE)
    del values["memory"]["start"]
    with pytest.raises(ConfigError, match=r"the setting memory\.start is missing"):
        from_dict(values)
    with pytest.raises(ConfigError, match=r"no setting memory\.stop"):
        from_dict({**to_dict(CARTPOLE), "memory": {**to_dict(CARTPOLE)["memory"], "stop": 1}})


def test_reading_checks_the_values_too() -> None:
    with pytest.raises(ConfigError, match="steps is 0"):
        from_dict({**to_dict(CARTPOLE), "steps": 0})


# --- arguments of an environment --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("continuous=true", True),
        ("gravity=-5.0", -5.0),
        ("size=3", 3),
        ("level=null", None),
        ('goal=[1, {"a": 2}]', [1, {"a": 2}]),
        ('name="3"', "3"),
        ("map_name=8x8", "8x8"),
        ("path=a=b", "a=b"),
        ("nothing=", ""),
        ("True=True", "True"),  # Python's spelling is not JSON's; it stays text
        ("brackets=" + "[" * 100_000, "[" * 100_000),
    ],
    ids=lambda value: str(value)[:30],
)
def test_arguments_are_read_as_json_or_as_text(argument: str, value: Any) -> None:
    config = override(CARTPOLE, {"env_args": [argument]})
    assert config.env_arguments == {argument.partition("=")[0]: value}
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


# --- edges that are allowed -------------------------------------------------------------------------------------------


def test_edges_that_are_allowed() -> None:
    assert MemoryConfig(capacity=1, start=1, history=1).start == 1
    assert CacheConfig(size=1, block_length=1, refresh_every=1, priority=1.0, priority_quantile=0.0).num_blocks == 1
    assert TargetConfig(copy_every=4, update_every=4).copy_every == 4
    assert ExplorationConfig(start=0.0, end=1.0, steps=1).end == 1.0
    for discount in (0.0, 1.0):
        assert override(CARTPOLE, {"discount": discount}).discount == discount
    # A block of 50 steps with a history of 1 needs 51 slots of each stream, and just fits into 51.
    assert override(CARTPOLE, {"memory": {"capacity": 51, "start": 51}}).memory.capacity == 51
    assert "51 slots" in refusal(CARTPOLE, {"memory": {"capacity": 51, "start": 50}})
