"""What holds for every test: nothing is written into the user's home, and the machine may be slow or busy.

And two small runs that the tests of resume and of packing share; whoever changes one works on a copy.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
# A shell starts what runs in its background with Ctrl-C ignored, and processes pass that on to those they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that tests start inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that never stopped."""
    from small_runs import small_config, train_to_end

    return train_to_end(tmp_path_factory.mktemp("runs") / "undisturbed", small_config())


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, broken off; its checkpoints are at 240 and 300."""
    from small_runs import STOPPED_AT, small_config, train_until

    run = tmp_path_factory.mktemp("runs") / "stopped"
    train_until(run, small_config(), STOPPED_AT)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["240", "300"]
    return run
