"""Study files: what they resolve to, how mistakes in them are answered, and that ours say what the paper did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environments import cached

from lambda_replay.agents.dqn import DQNConfig
from lambda_replay.agents.dqn_lambda import DQNLambdaConfig
from lambda_replay.agents.run_settings import to_dict
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError
from lambda_replay.studies.attempt import find_reason
from lambda_replay.studies.execute import check_room, default_workers, tidy_finished, unfinished
from lambda_replay.studies.key_lines import find_key_lines, line_of
from lambda_replay.studies.layout import Layout, check_configs, make_layout
from lambda_replay.studies.plan import PlannedRun, Study, read_study
from lambda_replay.studies.status import RunStatus, read_status, seconds_left
from lambda_replay.training.presets import make_config

STUDIES = Path(__file__).resolve().parents[1] / "studies"
ATARI = tuple(f"atari/{game}" for game in ("beam_rider", "breakout", "pong", "qbert", "seaquest", "space_invaders"))
MINATAR = tuple(f"minatar/{game}" for game in ("breakout", "space_invaders", "asterix", "freeway"))
FIGURES = ("peng", "watkins", "ablation", "median", "bounded", "partial-observability", "wall-clock")

EXAMPLE = """\
name = "example"
environments = ["minatar/breakout", "CartPole-v1"]
seeds = [3, 1]
baseline = "dqn"

[defaults]
steps = 2_000
cache.size = 400
memory = {start = 500}
envs = 1
[arms.dqn]
agent = "dqn"

[arms.peng]
estimator = "peng:0.5"
cache.priority = 0.1

[arms.peng.on."CartPole-v1"]
estimator = "peng:0.9"
threads = 2

[thresholds]
"CartPole-v1" = 195
"""


def write(directory: Path, text: str) -> Path:
    file = directory / "example.toml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return read_study(write(tmp_path, EXAMPLE))


def config_of(study: Study, environment: str, arm: str) -> RunConfig:
    return next(run.config for run in study.runs if (run.environment, run.arm) == (environment, arm))


# What a file resolves to


def test_arguments_of_an_environment_are_settings_like_others(tmp_path: Path) -> None:
    given = EXAMPLE.replace("threads = 2\n", 'threads = 2\nenv_args = ["sutton_barto_reward=true"]\n')
    study = read_study(write(tmp_path, given))
    assert config_of(study, "CartPole-v1", "peng").env_arguments == {"sutton_barto_reward": True}
    assert config_of(study, "CartPole-v1", "dqn").env_arguments == {}
    for line, wrong in (
        (8, EXAMPLE.replace("cache.size", 'env_args = ["a=1"]\ncache.size')),
        (21, given.replace("=t", " t")),
    ):
        with pytest.raises(ConfigError, match=f"line {line}: env_args "):  # MinAtar takes none; no name=value
            read_study(write(tmp_path, wrong))


def test_runs_are_seeds_then_environments_then_arms(study: Study) -> None:
    assert [(run.seed, run.environment, run.arm) for run in study.runs] == [
        (seed, environment, arm)
        for seed in (3, 1)
        for environment in ("minatar/breakout", "CartPole-v1")
        for arm in ("dqn", "peng")
    ]
    assert all(run.config.seed == run.seed and run.config.env == run.environment for run in study.runs)


def test_settings_come_from_preset_defaults_arm_and_environment_in_that_order(study: Study) -> None:
    minatar, cartpole = (config_of(study, env, "peng") for env in ("minatar/breakout", "CartPole-v1"))
    preset = make_config("minatar/breakout")
    assert minatar.memory.capacity == preset.memory.capacity
    assert (minatar.steps, minatar.memory.start) == (2_000, 500)
    assert (cached(minatar).cache.size, cached(minatar).cache.priority) == (400, 0.1)
    assert (minatar.estimator, minatar.threads) == ("peng:0.5", 1)
    assert (cartpole.estimator, cartpole.threads) == ("peng:0.9", 2)


def test_cache_settings_among_the_defaults_leave_arms_without_a_cache_alone(study: Study) -> None:
    config = config_of(study, "minatar/breakout", "dqn")
    assert config.algorithm == make_config("minatar/breakout", agent="dqn").algorithm
    assert config.estimator == "nstep:3"


def test_the_rest_of_the_study(study: Study) -> None:
    assert (study.name, study.baseline, study.arms) == ("example", "dqn", ("dqn", "peng"))
    assert (study.seeds, study.steps, study.thresholds) == ((3, 1), 2_000, {"CartPole-v1": 195.0})
    assert study.defaults["minatar/breakout"].memory.start == 500
    assert study.runs[0].place == Path("minatar-breakout/dqn/seed-3")


def test_a_number_of_seeds_counts_from_0(tmp_path: Path) -> None:
    assert read_study(write(tmp_path, EXAMPLE.replace("[3, 1]", "3"))).seeds == (0, 1, 2)


# Mistakes


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ('"example"', "example", 1, "not TOML"),
        ("[arms.dqn]", "[arms.dqn", 11, "not TOML"),
        ("seeds = [3, 1]", "seeds = 0", 3, "or a list of different seeds"),
        ("seeds = [3, 1]", "seeds = [1, 1]", 3, "or a list of different seeds"),
        ("seeds = [3, 1]", "seeds = true", 3, "or a list of different seeds"),
        ("seeds = [3, 1]", "seed = 5", 3, "'seed' is not a key of a study file"),
        ("seeds = [3, 1]\n", "", 1, "seeds is missing; write seeds = 5"),
        ('"example"', '"my study"', 1, "letters, digits"),
        ('"CartPole-v1"]', '"minatar/breakout"]', 2, "twice"),
        ('["minatar/breakout", "CartPole-v1"]', '"CartPole-v1"', 2, 'write environments = ["minatar/breakout"'),
        ('baseline = "dqn"', 'baseline = "dqm"', 4, "choose one of dqn, peng"),
        ("steps = 2_000", 'steps = "many"', 7, "give a whole number"),
        ("steps = 2_000", "stepps = 2_000", 7, "there is no setting stepps"),
        ("steps = 2_000", "seed = 7", 7, "use seeds at the top"),
        ("steps = 2_000", 'preset = "papper"', 7, "there is no preset 'papper'"),
        ("cache.size = 400", "cache.sise = 400", 8, "there is no setting cache.sise"),
        ("cache.size = 400", "cache.size = 450", 8, "must be a multiple"),
        ("cache.size = 400", "atari.sticky = 0.25", 8, "which no arm has"),
        ("memory = {start = 500}", "memory = {start = -1}", 9, "memory.start is -1"),
        ('agent = "dqn"', 'agent = "dqn-lambada"', 12, "there is no agent"),
        ('agent = "dqn"', 'agent = "dqn"\nestimator = "peng:0.5"', 13, "agent dqn takes the estimator nstep:n"),
        ('agent = "dqn"', 'agent = "dqn"\ncache.size = 800', 13, "belong to agent dqn-lambda"),
        ('estimator = "peng:0.5"', 'estimator = "pang:0.5"', 15, "there is no estimator 'pang:0.5'"),
        ("cache.priority = 0.1", "cache.priority = 1.1", 16, "from 0 to 1"),
        ('on."CartPole-v1"', 'on."CartPole-v2"', 18, "not among"),
        ("threads = 2", "threads = 0", 20, "threads is 0"),
        ("= 195", '= "high"', 23, "write [thresholds]"),
        ("= 195", "= inf", 23, "write [thresholds]"),
        ("steps = 2_000", "Steps = 2_000", 7, "there is no setting Steps"),
        ("steps = 2_000", "batch-size = 32", 7, "there is no setting batch-size"),
        ("[arms.peng]", "[arms.peng-0.5]", 14, 'write [arms."peng-0.5"]'),
        ("[arms.peng]", "[arms.dqn]", 14, "each only once"),
        ("[arms.peng]", '[arms.copy]\nagent = "dqn"\n[arms.peng]', 14, "the arms dqn and copy have the same settings"),
        ("[arms.dqn]", '[arms."d/q/n"]', 11, "needs another name, with at most 100 letters"),
        ('"example"', f'"{"x" * 101}"', 1, "at most 100 letters"),
        ("seeds = [3, 1]", "seeds = 1_000_000_000_000", 3, "at most 1,000"),
        ("steps = 2_000", "step = 2_000", 7, "did you mean steps"),
    ],
)
def test_a_mistake_is_answered_with_its_line_and_the_right_form(
    tmp_path: Path, old: str, new: str, line: int, said: str
) -> None:
    assert old in EXAMPLE
    file = write(tmp_path, EXAMPLE.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        read_study(file)
    assert str(error.value).startswith(f"{file}, line {line}: ")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_mark_before_the_first_character_does_not_matter(tmp_path: Path) -> None:
    file = write(tmp_path, EXAMPLE)
    expected = read_study(file).runs
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_study(file).runs == expected


def test_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    file = write(tmp_path, EXAMPLE)
    file.write_bytes(file.read_bytes().replace(b"[arms.dqn]", b"# m\xe4rz\n[arms.dqn]"))
    with pytest.raises(ConfigError, match=r"line 11: this is not UTF-8, .* save the file as UTF-8"):
        read_study(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no study file"):
        read_study(tmp_path / "none.toml")


def test_keys_are_found_wherever_they_stand() -> None:
    text = '# a = 1\nx = 1\n[t."a=b"]\n"k=1" = 2\nlist = [\n  "y = 1",\n]\nc.d = {e = 1}\n'
    lines = find_key_lines(text)
    assert lines["x",] == 2
    assert lines["t", "a=b"] == 3
    assert lines["t", "a=b", "k=1"] == 4
    assert lines["t", "a=b", "c", "d"] == 8
    assert line_of(lines, ("t", "a=b", "c", "d", "e")) == 8  # inside an inline table
    assert line_of(lines, ("nowhere",)) == 1
    assert ("a",) not in lines


# Directories and progress


def begin_run(layout: Layout, run: PlannedRun, *, step: int, is_weighed: bool = False) -> Path:
    """A run directory as a process would leave it at some step."""
    path = layout.run(run)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(to_dict(run.config)))
    (path / "provenance.json").write_text('{"notes": [], "keep_memory": false}')
    (path / "timing.jsonl").write_text(f'{{"step": {step}, "seconds": {step / 100}}}\n')
    (path / "metrics.jsonl").write_text(f'{{"step": {step}, "score_mean_100": 7.5}}\n{{"st')
    (path / "episodes.csv").write_text(f"episode,step,score\n0,{step + 3},7.5\n1,9")
    if is_weighed:
        (path / "weights.safetensors").touch()
    return path


def test_a_run_made_with_other_settings_is_refused_with_their_names(study: Study, tmp_path: Path) -> None:
    layout = make_layout(tmp_path, study)
    begin_run(layout, study.runs[0], step=100)
    check_configs(study, layout)
    changed = read_study(write(tmp_path, EXAMPLE.replace("2_000", "3_000").replace("start = 500", "start = 600")))
    with pytest.raises(ConfigError, match=r"\(steps, memory.start\).*another name"):
        check_configs(changed, layout)


def test_states_and_progress_are_read_from_the_files(study: Study, tmp_path: Path) -> None:
    layout = make_layout(tmp_path, study)
    finished, interrupted, failed, waiting = study.runs[:4]
    begin_run(layout, finished, step=2_000, is_weighed=True)
    begin_run(layout, interrupted, step=500)
    layout.failure(failed).parent.mkdir(parents=True)
    layout.failure(failed).write_text('{"reason": "no memory"}')
    layout.mark(interrupted).parent.mkdir(parents=True)
    layout.mark(interrupted).touch()  # left by a study that was killed: nobody holds the lock
    found = {status.run: status for status in read_status(study, layout)}
    assert (found[finished].state, found[finished].score) == ("finished", 7.5)
    assert (found[interrupted].state, found[interrupted].step, found[interrupted].seconds) == ("waiting", 503, 5.0)
    assert (found[failed].state, found[failed].reason) == ("failed", "no memory")
    assert (found[waiting].state, found[waiting].step) == ("waiting", 0)


def test_what_a_power_failure_left_of_a_log_is_passed_over(study: Study, tmp_path: Path) -> None:
    layout = make_layout(tmp_path, study)
    path = begin_run(layout, study.runs[0], step=500)
    for name in ("timing.jsonl", "metrics.jsonl", "episodes.csv"):
        with (path / name).open("ab") as file:
            file.write(bytes(40) + b"\n")
    status = read_status(study, layout)[0]
    assert (status.step, status.seconds, status.score) == (503, 5.0, 7.5)


@pytest.mark.parametrize(
    "line",
    ["5", "null", "[" * 5_000, '{"step": null}', '{"step": "x", "seconds": []}', '{"step": Infinity}', "\x00é,x"],
)
def test_a_damaged_log_does_not_hide_the_other_runs(study: Study, tmp_path: Path, line: str) -> None:
    layout = make_layout(tmp_path, study)
    first, second = (begin_run(layout, run, step=500) for run in study.runs[:2])
    for name in ("timing.jsonl", "metrics.jsonl", "episodes.csv"):
        (first / name).write_text(line + "\n")
    status, other = read_status(study, layout)[:2]
    assert (status.step, status.seconds, status.score) == (0, 0.0, None)
    assert (other.step, other.seconds, other.score) == (503, 5.0, 7.5)
    for name in ("timing.jsonl", "metrics.jsonl", "episodes.csv"):
        (second / name).unlink()
        (second / name).mkdir()
    assert read_status(study, layout)[1].step == 0


def test_what_a_killed_process_left_of_a_finished_run_is_removed(study: Study, tmp_path: Path) -> None:
    layout = make_layout(tmp_path, study)
    finished, interrupted = study.runs[:2]
    paths = [
        begin_run(layout, finished, step=2_000, is_weighed=True),
        begin_run(layout, interrupted, step=500),
    ]
    for path in paths:
        (path / "memory").mkdir()
    tidy_finished(study, layout)
    assert [(path / "memory").exists() for path in paths] == [False, True]


def test_time_left_is_judged_by_runs_of_the_same_arm(study: Study, tmp_path: Path) -> None:
    """peng took 10 s per 1,000 steps, dqn 20 s; left: peng 500 steps, dqn 2,000 steps: 5 s + 40 s."""

    def status(number: int, state: Any, step: int, seconds: float) -> RunStatus:
        return RunStatus(study.runs[number], tmp_path, state, step=step, timed_step=step, seconds=seconds)

    statuses = [
        status(0, "finished", 2_000, 40.0),
        status(1, "running", 1_500, 15.0),
        status(2, "waiting", 0, 0.0),
    ]
    assert seconds_left(statuses, workers=1) == pytest.approx(45)
    assert seconds_left(statuses, workers=2) == pytest.approx(40)  # the longest alone
    assert seconds_left(statuses[2:], workers=2) is None
    assert seconds_left(statuses[:1], workers=2) == 0


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("step 1 of 9\nlambda-replay: no disk.\n", "no disk."),
        ("Traceback (most …):\n  File x\n    f()\nOSError: off\ncontinue with: resume\n", "OSError: off"),
        ("lambda-replay: checkpoint 4 is damaged.\nTraceback (most …):\n  f()\nKeyError: 'k'\n", "KeyError: 'k'"),
        ("Killed\n\n", "Killed"),
        ("", ""),
    ],
)
def test_the_reason_of_a_failure_is_found_in_what_was_said(said: str, reason: str) -> None:
    assert find_reason(said) == reason


def test_workers_share_the_cores_by_the_threads_of_a_run(tmp_path: Path) -> None:
    many = read_study(write(tmp_path, EXAMPLE.replace("threads = 2", "threads = 1_000")))
    assert default_workers(many) == 1


def test_more_workers_than_fit_are_refused_with_the_number_that_does(study: Study, tmp_path: Path) -> None:
    from lambda_replay.rundir.resources import Needs, available_ram

    layout = make_layout(tmp_path, study)
    layout.directory.mkdir(parents=True)
    third = available_ram() // 3
    needs = dict.fromkeys(study.runs, Needs(0, 0, third, 0))
    check_room(study, layout, needs, workers=1)
    with pytest.raises(ConfigError, match=r"8 runs at once need .* of memory.*--workers [123]\."):
        check_room(study, layout, needs, workers=8)


# The files in studies/


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_study_is_named_as_its_file_and_has_the_papers_baseline(file: Path) -> None:
    study = read_study(file)
    is_small = "mini" in file.stem
    assert study.name == file.stem
    assert study.baseline == "dqn-3step"
    assert study.seeds == tuple(range(5 if is_small else 10))
    assert {run.config.steps for run in study.runs} == {400_000 if is_small else 10_000_000}
    assert study.environments == (MINATAR if is_small else ATARI) or file.stem.startswith("ablation")
    for environment in study.environments:
        baseline = config_of(study, environment, study.baseline)
        assert (baseline.agent, baseline.estimator) == ("dqn", "nstep:3")


def test_every_figure_has_a_full_and_a_small_study() -> None:
    names = {file.stem for file in STUDIES.glob("*.toml")}
    assert names == {"mini", *FIGURES, *(f"{figure}-mini" for figure in FIGURES)}


@pytest.mark.parametrize("file", sorted(STUDIES.glob("choices/*.toml")), ids=lambda file: file.stem)
def test_every_choice_is_between_a_preset_and_changes_of_it(file: Path) -> None:
    """Of the preset as it was then, which its defaults spell out where it has changed."""
    study = read_study(file)
    assert study.name == file.stem
    assert study.baseline == "preset"
    for environment in study.environments:
        preset = config_of(study, environment, "preset")
        now = replace(make_config(environment, agent=preset.agent), steps=preset.steps, threads=1, seed=preset.seed)
        looked_at = replace(now, evaluate_every=preset.evaluate_every, evaluate_games=preset.evaluate_games)
        assert replace(preset, estimator=now.estimator, algorithm=now.algorithm) == looked_at
        assert all(config_of(study, environment, arm) != preset for arm in study.arms if arm != "preset")


def test_agents_are_compared_on_seeds_that_no_setting_was_chosen_with() -> None:
    choices = [read_study(file) for file in STUDIES.glob("choices/*.toml")]
    for file in STUDIES.glob("agents/*.toml"):
        study = read_study(file)
        assert study.name == file.stem
        for choice in choices:
            if set(choice.environments) & set(study.environments):
                assert not set(choice.seeds) & set(study.seeds), choice.name


@pytest.mark.parametrize("figure", FIGURES)
def test_full_studies_have_the_papers_numbers(figure: str) -> None:
    """Appendix A: the table of hyper-parameters and the text around it."""
    for config in {run.config for run in read_study(STUDIES / f"{figure}.toml").runs}:
        assert isinstance(config.algorithm, DQNLambdaConfig | DQNConfig)
        optimizer, exploration = config.algorithm.optimizer, config.algorithm.exploration
        memory, atari = config.memory, config.atari
        assert (memory.capacity, memory.start) == (1_000_000, 50_000)
        assert memory.history == (1 if figure == "partial-observability" else 4)
        assert (config.discount, config.envs, config.flicker) == (0.99, 1, 0.0)
        assert (optimizer.batch_size, optimizer.learning_rate, optimizer.loss) == (32, 1e-4, "squared")
        assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon) == (0.9, 0.999, 1e-4)
        assert (exploration.start, exploration.end, exploration.steps) == (1.0, 0.1, 1_000_000)
        assert atari is not None
        assert (atari.frame_skip, atari.noop_max, atari.sticky, atari.clip_rewards) == (4, 30, 0.0, True)
        if isinstance(config.algorithm, DQNConfig):
            target = config.algorithm.target
            assert (target.copy_every, target.update_every) == (10_000, 4)
        else:
            cache = config.algorithm.cache
            assert (cache.block_length, cache.refresh_every, cache.tail) == (100, 10_000, 0)
            assert cache.updates_per_refresh == 2_500
            assert cache.size == 80_000 or figure == "ablation"
            assert cache.priority_quantile == 0.5


def lambdas(family: str, prefix: str) -> dict[str, tuple[str, float]]:
    values = {"025": "0.25", "050": "0.5", "075": "0.75", "100": "1"}
    return {f"{prefix}-{label}": (f"{family}:{value}", 0.0) for label, value in values.items()}


MEDIAN, BOUNDED = {"median": ("median", 0.1)}, {"bounded": ("bounded:0.025", 0.1)}
ARMS = {
    "peng": lambdas("peng", "peng"),
    "watkins": {**lambdas("watkins-published", "watkins-published"), **lambdas("watkins", "watkins")},
    "median": MEDIAN,
    "bounded": BOUNDED,
    "partial-observability": MEDIAN,
    "wall-clock-mini": lambdas("peng", "peng"),
    "mini": {
        "cached-3step": ("nstep:3", 0.0),
        **lambdas("peng", "peng"),
        "watkins-075": ("watkins:0.75", 0.0),
        "watkins-published-075": ("watkins-published:0.75", 0.0),
        **MEDIAN,
        **BOUNDED,
    },
}
ARMS |= {f"{name}-mini": arms for name, arms in ARMS.items() if name in FIGURES}


@pytest.mark.parametrize("name", ARMS)
def test_arms_are_the_figures(name: str) -> None:
    """Estimator and priority of every arm beside the baseline, the same on all environments."""
    study = read_study(STUDIES / f"{name}.toml")
    for environment in study.environments:
        configs = {arm: config_of(study, environment, arm) for arm in study.arms if arm != study.baseline}
        found = {arm: (config.estimator, cached(config).cache.priority) for arm, config in configs.items()}
        assert found == ARMS[name]


def test_the_wall_clock_study_has_each_games_best_lambda() -> None:
    study = read_study(STUDIES / "wall-clock.toml")
    best = {environment: config_of(study, environment, "peng-best").estimator for environment in study.environments}
    assert best == {
        "atari/beam_rider": "peng:0.5",
        "atari/breakout": "peng:0.25",
        "atari/pong": "peng:0.75",
        "atari/qbert": "peng:0.5",
        "atari/seaquest": "peng:0.5",
        "atari/space_invaders": "peng:0.25",
    }


@pytest.mark.parametrize(("name", "smallest"), [("ablation", 80_000), ("ablation-mini", None)])
def test_the_ablation_varies_the_cache_alone(name: str, smallest: int | None) -> None:
    study = read_study(STUDIES / f"{name}.toml")
    kind = "atari" if name == "ablation" else "minatar"
    assert study.environments == (f"{kind}/seaquest", f"{kind}/space_invaders")
    arms = [arm for arm in study.arms if arm != study.baseline]
    caches = [cached(config_of(study, study.environments[0], arm)).cache for arm in arms]
    sizes = [cache.size for cache in caches]
    first = sizes[0] if smallest is None else smallest
    assert sizes == [first, 2 * first, 3 * first]
    assert len({cache.updates_per_refresh for cache in caches}) == 1
    assert {run.config.estimator for run in study.runs} == {"nstep:3"}


def test_small_partial_observability_hides_observations() -> None:
    configs = {run.config for run in read_study(STUDIES / "partial-observability-mini.toml").runs}
    assert {(config.memory.history, config.flicker) for config in configs} == {(1, 0.5)}


# Divergence


def test_a_diverged_run_is_told_from_the_others_by_its_file(study: Study, tmp_path: Path) -> None:
    layout = make_layout(tmp_path, study)
    first, second, *rest = study.runs
    path = begin_run(layout, first, step=500)
    (path / "diverged.json").write_text('{"step": 503, "sentence": "at step 503 the loss is not finite."}')
    (begin_run(layout, second, step=500) / "diverged.json").write_text("[1]")  # damaged, but there
    found = read_status(study, layout)
    assert [(status.state, status.reason) for status in found[:2]] == [
        ("diverged", "at step 503 the loss is not finite."),
        ("diverged", "training diverged."),
    ]
    assert unfinished(study, layout) == rest


def test_what_an_older_version_wrote_of_a_divergence_does_not_reach_the_status(study: Study, tmp_path: Path) -> None:
    """It wrote NaN, which is not JSON."""
    layout = make_layout(tmp_path, study)
    path = begin_run(layout, study.runs[0], step=500)
    (path / "metrics.jsonl").write_text('{"step": 500, "score_mean_100": NaN, "loss": Infinity}\n')
    assert read_status(study, layout)[0].score is None


@pytest.mark.parametrize("failure", [b"", b"[]", b"{}", b"\xff", b'{"reason": 3}'])
def test_a_damaged_failure_is_a_failure(study: Study, tmp_path: Path, failure: bytes) -> None:
    layout = make_layout(tmp_path, study)
    path = layout.failure(study.runs[0])
    path.parent.mkdir(parents=True)
    path.write_bytes(failure)
    assert read_status(study, layout)[0].state == "failed"


@pytest.mark.parametrize("out", ["file", "file/below", "file/far/below"])
def test_a_study_cannot_lie_below_a_file(study: Study, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is not a directory; give another --out"):
        make_layout(tmp_path / out, study)


def test_defaults_may_fit_the_arms_agents_alone(tmp_path: Path) -> None:
    """A preset that the usual agent does not have, or numbers that only fit another."""
    study = read_study(
        write(
            tmp_path,
            """
name = "baselines"
environments = ["Pendulum-v1"]
seeds = 1
baseline = "sac"
[defaults]
preset = "continuous"
steps = 5_000
[arms.sac]
agent = "sac"
[arms.td3]
agent = "td3"
""",
        )
    )
    assert [run.config.agent for run in study.runs] == ["sac", "td3"]
    assert study.defaults == {}
