"""Whose run it is: no module of somebody else's run is imported before its user agrees."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from small_runs import small_config, train_to_end, train_until

from lambda_replay.cli import main
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.trust import sign
from lambda_replay.training.policy import load_policy
from lambda_replay.training.resuming import resume_run

ENV = "restless:Steady-v0"
TESTS = Path(__file__).parent


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of this user, empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def finished(tmp_path: Path, state: Path) -> Path:
    return train_to_end(tmp_path / "run", small_config(ENV, steps=180))


def become_somebody_else(state: Path) -> None:
    shutil.rmtree(state, ignore_errors=True)


def change(run: Path, file: str, **values: Any) -> None:
    path = run / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_policy(path)
    return str(caught.value)


def test_a_key_is_made_when_it_is_needed_and_only_its_user_can_read_it(state: Path) -> None:
    assert sign(small_config("CartPole-v1")) is None  # nothing is imported for it
    assert not state.exists()
    signature = sign(small_config(ENV))
    key = state / "lambda-replay" / "key"
    assert (key.stat().st_mode & 0o777, key.stat().st_size) == (0o600, 32)
    assert [path.name for path in key.parent.iterdir()] == ["key"]
    assert signature is not None
    assert sign(small_config(ENV, seed=3)) == signature
    other = [
        small_config("restless:Restless-v0"),
        small_config(ENV, env_args=["is_steady=false"]),
        small_config(ENV, estimator="toys:between"),
        small_config("CartPole-v1", estimator="toys:between"),
    ]
    assert len({signature, *map(sign, other)}) == 5
    become_somebody_else(state)
    assert sign(small_config(ENV)) not in (signature, None)


def test_ones_own_run_is_played_without_a_question(finished: Path) -> None:
    assert load_policy(finished).config.env == ENV


def test_a_foreign_run_is_refused_until_somebody_agrees(finished: Path, state: Path) -> None:
    become_somebody_else(state)
    sentence = refusal(finished)
    assert f"{finished} was not created by you" in sentence
    assert "the module restless" in sentence
    assert "--trust" in sentence
    asked: list[tuple[Path, str]] = []

    def agree(path: Path, module: str) -> bool:
        asked.append((path, module))
        return True

    assert load_policy(finished, agree).config.env == ENV
    assert asked == [(finished, "restless")]


def test_no_module_of_a_foreign_run_is_imported(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One's own run whose environment somebody changed is foreign too."""
    (tmp_path / "evil.py").write_text("from pathlib import Path\nPath('harm').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    change(finished, "config.json", env="evil:Env-v0")
    assert "the module evil" in refusal(finished)
    for command in ("evaluate", "watch", "inspect"):
        assert main([command, str(finished)]) == 2
    (finished / "weights.safetensors").unlink()
    assert main(["resume", str(finished)]) == 2
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("values", [{"env_args": ["is_steady=false"]}, {"env": "restless:Restless-v0"}], ids=str)
def test_the_signature_is_of_the_environment_and_its_arguments(finished: Path, values: dict[str, Any]) -> None:
    change(finished, "config.json", **values)
    assert "was not created by you" in refusal(finished)


@pytest.mark.parametrize("signature", [None, "", 3, "\ud800", "0" * 64])
def test_a_signature_that_is_none(finished: Path, signature: Any) -> None:
    change(finished, "provenance.json", signature=signature)
    assert "was not created by you" in refusal(finished)


def test_a_run_without_provenance_is_foreign(finished: Path) -> None:
    (finished / "provenance.json").unlink()
    assert "was not created by you" in refusal(finished)


@pytest.mark.parametrize("is_file", [True, False])
def test_where_no_key_can_be_kept_every_run_is_foreign(tmp_path: Path, state: Path, is_file: bool) -> None:
    """A state directory that cannot be made, or a key that is not one: training goes on all the same."""
    if is_file:
        state.write_text("in the way")
    else:
        (state / "lambda-replay").mkdir(parents=True)
        (state / "lambda-replay" / "key").write_bytes(b"short")
    run = train_to_end(tmp_path / "run", small_config(ENV, steps=180))
    assert json.loads((run / "provenance.json").read_text())["signature"] is None
    assert "was not created by you" in refusal(run)


@pytest.mark.parametrize("env", ["CartPole-v1", "minatar/breakout"])
def test_environments_without_a_module_are_never_asked_about(tmp_path: Path, state: Path, env: str) -> None:
    run = train_to_end(tmp_path / "run", small_config(env, steps=180))
    become_somebody_else(state)
    assert load_policy(run).config.env == env
    assert not state.exists()


def test_resuming_asks_too(tmp_path: Path, state: Path) -> None:
    train_until(tmp_path / "run", small_config(ENV), 250)
    become_somebody_else(state)
    with pytest.raises(ConfigError, match="was not created by you"):
        resume_run(tmp_path / "run", print)
    resume_run(tmp_path / "run", print, may_import=lambda path, module: True).close()


# --- the command line -------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    code: int
    shown: str


def at_a_terminal(answer: str, *arguments: str) -> Answer:
    """A command with a person at the terminal, who types an answer."""
    controller, terminal = pty.openpty()
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-m", "lambda_replay", *arguments],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environ,
    )
    os.close(terminal)
    os.write(controller, f"{answer}\n".encode())
    shown = b""
    while True:
        try:
            piece = os.read(controller, 65_536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(controller)
    return Answer(process.wait(), " ".join(shown.decode().split()))


@pytest.mark.parametrize(("word", "code"), [("y", 0), ("yes", 0), ("n", 2), ("", 2), ("what", 2)])
def test_a_person_at_the_terminal_is_asked(finished: Path, state: Path, word: str, code: int) -> None:
    become_somebody_else(state)
    answer = at_a_terminal(word, "evaluate", str(finished), "--games", "1")
    assert answer.code == code, answer.shown
    assert "imports the module restless, which can run any code. Import it? [y/N]" in answer.shown
    assert ("mean score" in answer.shown) == (code == 0)


def test_nobody_is_asked_about_ones_own_run_or_with_the_flag(finished: Path, state: Path) -> None:
    assert "[y/N]" not in at_a_terminal("n", "evaluate", str(finished), "--games", "1").shown
    become_somebody_else(state)
    assert "[y/N]" not in at_a_terminal("n", "evaluate", str(finished), "--games", "1", "--trust").shown


@pytest.mark.parametrize("command", ["evaluate --games 1", "inspect --length 10"])
def test_without_a_terminal_the_flag_is_needed(
    finished: Path, state: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    become_somebody_else(state)
    name, *options = command.split()
    assert main([name, str(finished), *options]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main([name, str(finished), *options, "--trust"]) == 0


def test_a_foreign_run_is_resumed_with_the_flag(tmp_path: Path, state: Path) -> None:
    train_until(tmp_path / "run", small_config(ENV), 250)
    become_somebody_else(state)
    assert main(["resume", str(tmp_path / "run")]) == 2
    assert main(["resume", str(tmp_path / "run"), "--trust"]) == 0


def test_a_config_that_the_user_names_is_the_users_own(finished: Path, state: Path, tmp_path: Path) -> None:
    become_somebody_else(state)
    assert main(["train", "--config", str(finished / "config.json"), "--out", str(tmp_path / "again")]) == 0
