"""What happens around training: evaluations, films, a score to stop at, longer runs, a checkpoint on Ctrl-C.

All of it survives kills to the byte.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from processes import Server, command_line
from small_runs import (
    Stopped,
    copy_run,
    differences,
    finish,
    learnt_the_same,
    resume_to_end,
    small_config,
    stop_at,
    train_command,
    train_to_end,
    train_until,
)

from lambda_replay.agents.run_settings import override, to_dict
from lambda_replay.cli import leaving
from lambda_replay.cli.train import conduct
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError
from lambda_replay.randomness import make_side_stream, make_streams
from lambda_replay.rundir.checkpoints import read_state, saved_steps
from lambda_replay.rundir.directory import read_config, read_provenance
from lambda_replay.rundir.files import load_tensors
from lambda_replay.rundir.verification import verify_run
from lambda_replay.training.events import Evaluated, GameEnd, RunEvent
from lambda_replay.training.extending import Extension
from lambda_replay.training.playing import LARGEST_SEED, play
from lambda_replay.training.policy import load_policy
from lambda_replay.training.resuming import resume_run
from lambda_replay.training.run import start_run, train_run

CHAIN = "environments:LinearChain-v0"
BUSY: dict[str, Any] = {"evaluate_every": 60, "evaluate_games": 3, "film_every": 120, "checkpoint_every": 120}

LEARNING: dict[str, Any] = {"exploration": {"steps": 300, "end": 0.05}, "steps": 900}  # 0.6 after 100 games, then 0.78
HALF = (51, 58, 66)  # calls between the first and the last write of an extension, of which one can be killed


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with command_line("environments", "imageio.v3", "imageio_ffmpeg") as server:
        yield server


def busy_config(**values: Any) -> RunConfig:
    return small_config(CHAIN, **{**BUSY, **values})


def rows_of(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def everything(run: Path) -> dict[str, bytes]:
    """All that a finished run leaves but clocks, histories and pictures of a picture library."""
    left_out = ("timing.jsonl", "provenance.json", "curve.png", "config.json", "lock")
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in left_out]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


# --- evaluations ------------------------------------------------------------------------------------------------------


def test_evaluations_and_films_change_nothing_in_training(tmp_path: Path) -> None:
    plain = train_to_end(tmp_path / "plain", busy_config(evaluate_every=0, film_every=0))
    busy = train_to_end(tmp_path / "busy", busy_config())
    for name in ("metrics.jsonl", "episodes.csv"):
        assert (plain / name).read_bytes() == (busy / name).read_bytes()
    weights, others = (load_tensors(run / "weights.safetensors") for run in (plain, busy))
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert not (plain / "evaluations.jsonl").exists()
    assert not (plain / "weights-best.safetensors").exists()


@pytest.mark.parametrize("schedule", ["burst", "concurrent"])
def test_a_row_is_what_its_weights_play(tmp_path: Path, schedule: str) -> None:
    """Played again here with the weights of each checkpoint, and with random numbers that follow from seed and step."""
    more = {"cache": {"schedule": schedule}, "memory": {"capacity": 400}, "checkpoint_every": 60, "seed": 5}
    config, run = busy_config(film_every=0, **more), tmp_path / "run"
    played: dict[int, list[float]] = {}

    def play_again(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.step < 420:
            trained, rng = load_policy(run), np.random.default_rng(np.random.SeedSequence(5, spawn_key=(6, event.step)))
            assert trained.step == event.step
            seeds = [int(rng.integers(LARGEST_SEED)) for _ in range(3)]
            games = [play(trained.environment, trained.policy, history=1, epsilon=0.0, seed=seed) for seed in seeds]
            played[event.step] = [game.score for game in games]
            assert event.length_mean == np.mean([game.length for game in games])

    train_run(run, config, on_event=play_again)
    rows = rows_of(run, "evaluations.jsonl")
    assert [row["step"] for row in rows] == [180, 240, 300, 360, 420]
    for row in rows[:-1]:
        scores = played[row["step"]]
        assert row["score_mean"] == pytest.approx(np.mean(scores))
        assert row["score_error"] == pytest.approx(np.std(scores, ddof=1) / 3**0.5)
        assert (row["score_min"], row["score_max"], row["games"]) == (min(scores), max(scores), 3)


def test_the_best_weights_are_those_of_the_first_highest_mean(tmp_path: Path) -> None:
    run, weights = tmp_path / "run", {}

    def keep(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.is_best:
            weights[event.step] = load_tensors(run / "weights-best.safetensors")

    train_run(run, busy_config(film_every=0, steps=900), on_event=keep)
    rows = rows_of(run, "evaluations.jsonl")
    means = [row["score_mean"] for row in rows]
    highest_before = [max(means[:number], default=-np.inf) for number in range(len(means))]
    assert [row["is_best"] for row in rows] == [
        mean > before for mean, before in zip(means, highest_before, strict=True)
    ]
    best = rows[means.index(max(means))]["step"]
    assert best == max(weights)
    found = load_tensors(run / "weights-best.safetensors")
    assert all(torch.equal(found[name], weights[best][name]) for name in found)
    best_critic, wanted = load_policy(run, weights="best").policy.critic, weights[best]
    own: Any = best_critic
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in own.weights().items())


def test_evaluations_have_games_of_their_own() -> None:
    """None of training, of the command evaluate, of films, or of another step."""
    streams = [
        make_streams(0, 1).evaluate,
        make_streams(0, 1).envs[0],
        make_side_stream(0, "evaluations", 60),
        make_side_stream(0, "evaluations", 120),
        make_side_stream(1, "evaluations", 60),
        make_side_stream(0, "films", 60),
    ]
    seeds = [int(rng.integers(LARGEST_SEED)) for rng in streams for _ in range(50)]
    assert len(set(seeds)) == len(seeds)


def test_an_evaluation_of_weights_that_diverged_is_not_made(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", busy_config(film_every=0))

    def spoil(event: RunEvent) -> None:
        if isinstance(event, Evaluated) and event.step == 240:
            next(iter(run._agent._network.module.parameters())).data.fill_(float("nan"))  # type: ignore[attr-defined]

    with pytest.raises(ConfigError, match="not finite"):
        run.train(spoil)
    run.close()
    assert all(bool(tensor.isfinite().all()) for tensor in load_tensors(run.path / "weights-best.safetensors").values())


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"cache": {"schedule": "concurrent"}, "memory": {"capacity": 400}, "envs": 2},
        {**LEARNING, "cache": {"updates": 10}, "stop_at_score": 0.75, "film_every": 300},
    ],
    ids=["burst", "concurrent-2", "score"],
)
def test_killed_again_and_again_with_everything_on(server: Server, tmp_path: Path, values: dict[str, Any]) -> None:
    config = busy_config(**values)
    rng = random.Random(str(to_dict(config)))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reference = server.run(*train_command(config, tmp_path, whole), die_at=0)
    assert reference.code == 0, reference.err
    command = train_command(config, tmp_path, killed)
    for _ in range(3):
        ended = server.run(*command, die_at=rng.randrange(30, max(31, reference.calls // 3)))
        assert ended.code in (0, -signal.SIGKILL), ended.err
        command = ["resume", str(killed), "--trust"] if (killed / "config.json").exists() else command
    ended = server.run(*command)
    assert ended.code == 0, ended.err
    assert everything(whole) == everything(killed)
    assert {"evaluations.jsonl", "weights-best.safetensors", "films"} <= {path.name for path in killed.iterdir()}
    assert all(finding.is_sound for finding in verify_run(killed))


def test_a_damaged_log_of_evaluations_is_begun_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_until(run, busy_config(checkpoint_every=60, film_every=0), 250)
    stopped = saved_steps(run)[0]
    assert read_state(run, stopped)["best"] is not None
    (run / "evaluations.jsonl").write_bytes(b"x" * 10)
    said = resume_to_end(run)
    assert any("evaluations.jsonl" in sentence for sentence in said)
    assert [row["step"] for row in rows_of(run, "evaluations.jsonl")] == [*range(stopped + 60, 421, 60)]
    whole = train_to_end(tmp_path / "whole", busy_config(checkpoint_every=60, film_every=0))
    best, wanted = (load_tensors(path / "weights-best.safetensors") for path in (run, whole))
    assert all(torch.equal(best[name], wanted[name]) for name in best)  # the checkpoint knows the best, not the log


# --- a score to stop at -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["burst", "concurrent"])
def test_a_run_stops_at_the_first_boundary_with_the_score(tmp_path: Path, schedule: str) -> None:
    """Worked out from the games of a run that does not stop: 100 games, and their mean, before the boundary."""
    more: dict[str, Any] = {**LEARNING, "cache": {"schedule": schedule, "updates": 10}, "memory": {"capacity": 400}}
    whole = train_to_end(tmp_path / "whole", small_config(CHAIN, **more))
    with (whole / "episodes.csv").open(newline="") as file:
        games = [(int(row["step"]), float(row["score"])) for row in csv.DictReader(file)]
    wanted, at = 0.75, None
    for boundary in range(120, 900, 60):
        scores = [score for step, score in games if step <= boundary][-100:]
        if len(scores) == 100 and np.mean(scores) >= wanted:
            at = boundary
            break
    assert at is not None
    run = train_to_end(tmp_path / "run", small_config(CHAIN, **more, stop_at_score=wanted))
    rows, all_rows = rows_of(run, "metrics.jsonl"), rows_of(whole, "metrics.jsonl")
    assert rows[-1]["step"] == at
    assert rows[-1]["score_mean_100"] >= wanted
    assert len({row["step"] for row in rows}) == len(rows)
    assert rows[:-1] == all_rows[: len(rows) - 1]
    lines = (run / "episodes.csv").read_text().splitlines()
    assert lines == (whole / "episodes.csv").read_text().splitlines()[: len(lines)]


def test_a_run_that_never_reaches_the_score_ends_at_its_last_step(tmp_path: Path) -> None:
    whole = train_to_end(tmp_path / "whole", small_config(CHAIN))
    run = train_to_end(tmp_path / "run", small_config(CHAIN, stop_at_score=2.0))
    assert not differences(whole, run)


def test_the_commands_say_what_happened(server: Server, tmp_path: Path) -> None:
    config = busy_config(**LEARNING, cache={"updates": 10}, stop_at_score=0.6, film_every=0, evaluate_every=240)
    run = tmp_path / "run"
    trained = server.run(*train_command(config, tmp_path, run))
    assert trained.code == 0, trained.err
    assert re.search(r"\nstopped at step \d+ of 900: the score reached 0\.6\n", trained.out)
    assert "greedy score (3) " in trained.out
    for command in (["evaluate", str(run), "--games", "2"], ["watch", str(run), "--out", str(tmp_path / "film.gif")]):
        ended = server.run(*command, "--weights", "best", "--trust")
        assert ended.code == 0, ended.err
    finished = server.run("resume", run, "--trust")
    assert (finished.code, finished.out) == (0, f"{run} is already finished; there was nothing left to do.\n")
    for lengths, words in (
        (["--stop-at-score", "0.75"], "kept no replay memory to go on with"),
        (["--steps", "100"], "steps is 100, but"),
        (["--steps", "1200"], "stops at 0.6; give a higher stop_at_score"),
    ):
        refused = server.run("resume", run, "--trust", *lengths)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert words in refused.err


# --- longer runs ------------------------------------------------------------------------------------------------------


def extended(path: Path, **lengths: Any) -> Path:
    finish(resume_run(path, lambda sentence: None, extension=Extension(**lengths), may_import=lambda *_: True))
    return path


def keep(path: Path, config: RunConfig) -> Path:
    train_run(path, config, keep_memory=True)
    return path


@pytest.mark.parametrize(
    "values",
    [
        {"cache": {"schedule": "concurrent"}, "memory": {"capacity": 400}},
        {"agent": "dqn", "envs": 3, "env": "CartPole-v1"},
        {"env": "Pendulum-v1", "agent": "sac-lambda"},
        BUSY,
    ],
    ids=["concurrent", "dqn-3", "sac", "busy"],
)
def test_a_longer_run_is_one_that_was_planned_so_long(tmp_path: Path, values: dict[str, Any]) -> None:
    """To the byte, whether it was finished or stopped, because nothing in these configs depends on its length."""
    base = {"env": CHAIN, **values}
    short, long = small_config(**base), small_config(**{**base, "steps": 660})
    whole = train_to_end(tmp_path / "whole", long)
    finished = extended(keep(tmp_path / "finished", short), steps=660)
    train_until(tmp_path / "stopped", short, 350)
    stopped = extended(tmp_path / "stopped", steps=660)
    for run in (finished, stopped):
        assert not differences(whole, run)
        assert read_config(run) == read_config(whole)
        assert all(finding.is_sound for finding in verify_run(run))
        (note,) = read_provenance(run)["notes"]
        assert note.endswith("steps 660 instead of 420")
    if "evaluate_every" in values:
        assert everything(whole) == everything(stopped)
    assert saved_steps(finished)  # it still keeps its memory


@pytest.mark.parametrize(("steps", "last"), [(420, 360), (421, 420)])
def test_a_run_that_keeps_its_memory_goes_on_from_its_last_boundary(tmp_path: Path, steps: int, last: int) -> None:
    """Otherwise there would be checkpoints at 120 and 480 only."""
    config = small_config(CHAIN, steps=steps, checkpoint_every=360)
    whole = train_to_end(tmp_path / "whole", override(config, {"steps": 660}))
    short = train_to_end(tmp_path / "short", config)
    run = keep(tmp_path / "run", config)
    assert not differences(short, run)
    assert saved_steps(run)[0] == last
    assert not differences(whole, extended(run, steps=660))
    (note,) = read_provenance(run)["notes"]
    assert note.startswith(f"extended at step {last}:")


def test_a_run_without_a_checkpoint_starts_over_with_the_new_length(tmp_path: Path) -> None:
    train_until(tmp_path / "run", small_config(CHAIN), 60)
    assert not saved_steps(tmp_path / "run")
    whole = train_to_end(tmp_path / "whole", small_config(CHAIN, steps=480))
    assert not differences(whole, extended(tmp_path / "run", steps=480))


def test_damage_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    """Of an older checkpoint, which goes, and of a log, which is begun anew."""
    whole = train_to_end(tmp_path / "whole", small_config(CHAIN, steps=480, stop_at_score=2.0))
    run = keep(tmp_path / "run", small_config(CHAIN, stop_at_score=2.0))
    assert saved_steps(run) == [360, 300]
    (run / "checkpoints" / "300" / "state.json").write_text("{}")
    (run / "metrics.jsonl").write_text("damaged")
    assert learnt_the_same(whole, extended(run, steps=480), {"metrics.jsonl": metrics_before(whole, 360)})
    assert saved_steps(run) == [420, 360]


def metrics_before(run: Path, step: int) -> int:
    """Where in the log the row of a step begins."""
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    return sum(len(line) for line in lines if json.loads(line)["step"] < step)


def test_schedules_that_depend_on_the_length_follow_the_new_plan(tmp_path: Path) -> None:
    """Priorities fall from 0.5 at step 0 to 0 at the last one: of 420 before the checkpoint at 360, of 840 after it."""
    short = small_config(CHAIN, cache={"priority": 0.5})
    run = extended(keep(tmp_path / "run", short), steps=840)
    priorities = {row["step"]: row["priority"] for row in rows_of(run, "metrics.jsonl") if "priority" in row}
    assert priorities[300] == pytest.approx(0.5 * (1 - 300 / 420))
    assert priorities[360] == pytest.approx(0.5 * (1 - 360 / 840))
    assert priorities[780] == pytest.approx(0.5 * (1 - 780 / 840))


def test_a_run_that_stopped_at_a_score_goes_on_to_a_higher_one(tmp_path: Path) -> None:
    config = small_config(CHAIN, **LEARNING, cache={"updates": 10}, stop_at_score=0.6)
    run = keep(tmp_path / "run", config)
    with pytest.raises(ConfigError, match=r"stops at 0\.6; give a higher stop_at_score"):
        extended(run, steps=1_200)
    whole = train_to_end(tmp_path / "whole", override(config, {"stop_at_score": 0.75}))
    assert not differences(whole, extended(run, stop_at_score=0.75))
    assert rows_of(run, "metrics.jsonl")[-1]["score_mean_100"] >= 0.75
    assert rows_of(run, "metrics.jsonl")[-1]["step"] < 900


def test_what_cannot_go_on_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    gone = train_to_end(tmp_path / "gone", small_config(CHAIN))
    kept = keep(tmp_path / "kept", small_config(CHAIN))
    for run, lengths, words in (
        (gone, {"steps": 660}, "kept no replay memory to go on with; train with --keep-memory"),
        (kept, {"steps": 300}, "steps is 300, but .* was planned for 420; give more"),
        (kept, {"steps": 420}, "is finished; there is nothing to resume"),
        (kept, {}, "is finished; there is nothing to resume"),
    ):
        before = everything(run)
        with pytest.raises(ConfigError, match=words):
            extended(run, **lengths)
        assert everything(run) == before
    with pytest.raises(ConfigError, match="must be a multiple of envs"):
        extended(keep(tmp_path / "three", small_config(CHAIN, envs=3)), steps=661)


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of 660 steps, and one of 420 that can go on."""
    place, config = tmp_path_factory.mktemp("longer"), busy_config(film_every=0)
    return train_to_end(place / "whole", override(config, {"steps": 660})), keep(place / "kept", config)


def extend_after_a_kill(server: Server, longer: tuple[Path, Path], run: Path, die_at: int, *again: str) -> bool:
    """Kill an extension at a call, complete it and check it; whether it was half written down."""
    whole, kept = longer
    copy_run(kept, run)
    assert server.run("resume", run, "--steps", "660", "--trust", die_at=die_at).code == -signal.SIGKILL
    is_half = bool(read_provenance(run).get("extends_to"))
    ended = server.run("resume", run, "--trust", *again)
    assert ended.code == 0, ended.err
    if read_config(run).steps == 420:  # nothing had been written down
        assert not is_half
        return False
    assert everything(whole).items() <= everything(run).items()  # which keeps its memory
    assert all(finding.is_sound for finding in verify_run(run))
    assert len(read_provenance(run)["notes"]) == 1
    return is_half


def test_a_killed_extension_is_completed_by_the_next_resume(
    server: Server, longer: tuple[Path, Path], tmp_path: Path
) -> None:
    """By one that says so again, or not."""
    half = [
        extend_after_a_kill(server, longer, tmp_path / str(die_at), die_at, *again)
        for die_at, again in ((HALF[0], ()), (HALF[1], ("--steps", "660")), (HALF[2], ()))
    ]
    assert all(half)


@pytest.mark.torture
@pytest.mark.parametrize("again", [(), ("--steps", "660")], ids=["plain", "again"])
def test_an_extension_killed_anywhere(
    server: Server, longer: tuple[Path, Path], tmp_path: Path, again: tuple[str, ...]
) -> None:
    half = [extend_after_a_kill(server, longer, tmp_path / str(die_at), die_at, *again) for die_at in range(45, 90)]
    assert sum(half) > 5


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def signal_at(step: int, *signals: int) -> Any:
    def on_event(event: RunEvent) -> None:
        if isinstance(event, GameEnd) and step <= event.step and signals_left:
            os.kill(os.getpid(), signals_left.pop(0))

    signals_left = list(signals)
    return on_event


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_checkpoint_at_the_next_boundary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signum: int
) -> None:
    """With all the time it needs, a run stopped after step 200 saves its state at 240, where none is due."""
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 1_000.0)
    config = busy_config(checkpoint_every=240)
    whole = train_to_end(tmp_path / "whole", config)
    run = start_run(tmp_path / "run", config)
    send = signal_at(200, signum)
    before = signal.getsignal(signum)
    monkeypatch.setattr("lambda_replay.cli.display.Display.on_event", lambda self, event: send(event))
    with pytest.raises(KeyboardInterrupt, match=r"stopped at step 240; .*\(0 steps will be repeated\)"):
        conduct(run, has_tensorboard=False)
    assert saved_steps(run.path) == [240, 120]
    assert signal.getsignal(signum) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert resume_to_end(run.path) == []
    assert everything(whole) == everything(run.path)


def test_a_second_signal_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 1_000.0)
    run = start_run(tmp_path / "run", small_config(CHAIN, checkpoint_every=240, cache={"refresh_every": 240}))
    send = signal_at(200, signal.SIGINT, signal.SIGTERM)
    monkeypatch.setattr("lambda_replay.cli.display.Display.on_event", lambda self, event: send(event))
    with pytest.raises(KeyboardInterrupt, match=r"steps will be repeated"):
        conduct(run, has_tensorboard=False)
    assert saved_steps(run.path) == [120]


def slow_disk(monkeypatch: pytest.MonkeyPatch, *signals: int) -> None:
    """Let every fsync of a run that is to stop take longer than it has; the first after step 240 sends ``signals``."""
    fsync, signals_left = os.fsync, list(signals)

    def fsync_slowly(descriptor: int) -> None:
        if signals_left and (Path(f"/proc/self/fd/{descriptor}").resolve().parent.name == "240"):
            os.kill(os.getpid(), signals_left.pop(0))
        if signal.getitimer(signal.ITIMER_REAL)[0] > 0:
            signal.setitimer(signal.ITIMER_REAL, 1e-3)
        while signal.getitimer(signal.ITIMER_REAL)[0] > 0:
            time.sleep(1e-3)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync_slowly)
    monkeypatch.setattr(leaving, "GRACE_SECONDS", 1_000.0)


@pytest.mark.parametrize("when", ["before the save", "during the save"])
def test_time_does_not_run_out_while_a_checkpoint_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Whether the signal came before the boundary at 240 or while its checkpoint was written."""
    is_before = when == "before the save"
    config = small_config(CHAIN, checkpoint_every=240 if is_before else 120)
    whole = train_to_end(tmp_path / "whole", config)
    slow_disk(monkeypatch, *(() if is_before else (signal.SIGTERM,)))
    run = start_run(tmp_path / "run", config)
    send = signal_at(200, *((signal.SIGTERM,) if is_before else ()))
    monkeypatch.setattr("lambda_replay.cli.display.Display.on_event", lambda self, event: send(event))
    with pytest.raises(KeyboardInterrupt, match=r"stopped at step 240; .*\(0 steps will be repeated\)"):
        conduct(run, has_tensorboard=False)
    assert saved_steps(run.path) == [240, 120]
    assert resume_to_end(run.path) == []
    assert not differences(whole, run.path)


def test_a_second_signal_stops_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_disk(monkeypatch, signal.SIGTERM, signal.SIGINT)
    run = start_run(tmp_path / "run", small_config(CHAIN, checkpoint_every=120))
    with pytest.raises(KeyboardInterrupt, match=r"stopped at step 240; .*\(120 steps will be repeated\)"):
        conduct(run, has_tensorboard=False)
    assert saved_steps(run.path) == [120]


def test_a_run_stopped_at_every_boundary_is_the_same(tmp_path: Path) -> None:
    """More checkpoints than planned overwrite nothing that an older one needs: each is checked by the next resume."""
    config = busy_config(film_every=0, checkpoint_every=180)
    whole = train_to_end(tmp_path / "whole", config)
    run = start_run(tmp_path / "run", config)
    for _ in range(6):
        run.leave_soon()
        with pytest.raises(KeyboardInterrupt):
            run.train(lambda event: None)
        run.close()
        step = saved_steps(run.path)[0]
        said: list[str] = []
        run = resume_run(run.path, said.append, may_import=lambda *_: True)
        assert (run.loop.step, said) == (step, [])
        with pytest.raises(Stopped):
            run.train(stop_at(step + 1))
        run.close()
        run = resume_run(run.path, said.append, may_import=lambda *_: True)
        assert run.loop.step == step
    finish(run)
    assert everything(whole) == everything(run.path)
