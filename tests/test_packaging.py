"""The wheel, installed for real: each extra brings all that it promises, and a missing one is named in one sentence.

Every installation is a virtual environment of its own. It holds the wheel, and links into the environment of the tests
for the packages that the wheel's metadata asks for. So nothing is downloaded, and what is not declared is missing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Collection
from importlib import import_module, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lambda_replay import __version__
from lambda_replay.cli.main import COMMANDS
from lambda_replay.extras import EXTRAS, needed_for

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
DISTRIBUTIONS = metadata.packages_distributions()  # import name -> names of distributions
TINY = [
    "--steps", "300", "--memory.start", "100", "--memory.capacity", "200", "--checkpoint-every", "0", "--envs", "1",
    "--cache.size", "80", "--cache.block-length", "8", "--cache.refresh-every", "100", "--cache.updates", "5",
]  # fmt: skip
STUDY = """
name = "small"
environments = ["CartPole-v1"]
seeds = 1
baseline = "peng"
[defaults]
steps = 300
memory = {start = 100, capacity = 200}
cache = {size = 80, block_length = 8, refresh_every = 100, updates = 5}
[arms.peng]
estimator = "peng:0.5"
"""

Ended = subprocess.CompletedProcess[str]


class Installation:
    """A virtual environment with the wheel, what some of its extras bring, and nothing else."""

    def __init__(self, home: Path, wheel: Path, extras: Collection[str], without: Collection[str]) -> None:
        venv.create(home, symlinks=True)
        self._bin = home / "bin"
        (packages,) = home.glob("lib/python*/site-packages")
        self.distributions = brought_in(wheel, extras) - {distribution_of(package) for package in without}
        for name in self.distributions:
            link(metadata.distribution(name), packages)
        pip(
            "--python", str(self._bin / "python"),
            "install", "--no-deps", "--no-index", "--no-compile", str(wheel),
        )  # fmt: skip

    def command(self, *arguments: str, directory: Path) -> Ended:
        """Call the console script in a directory."""
        return self._run("lambda-replay", *arguments, directory=directory)

    def python(self, code: str, *, directory: Path) -> Ended:
        """Run code in a directory."""
        return self._run("python", "-I", "-c", code, directory=directory)

    def _run(self, program: str, *arguments: str, directory: Path) -> Ended:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        # SDL, which pygame draws with, complains on standard error where there is no screen.
        ours = {"PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200", "SDL_VIDEODRIVER": "dummy"}
        return subprocess.run(
            [self._bin / program, *arguments],
            cwd=directory,
            env=inherited | ours,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


Install = Callable[..., Installation]


def pip(*arguments: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


def link(distribution: metadata.Distribution, packages: Path) -> None:
    """Link what a distribution has in its site-packages, its metadata included, from another one."""
    tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
    for top in tops:
        if not (packages / top).exists():  # several distributions may share a namespace
            (packages / top).symlink_to(str(distribution.locate_file(top)))


def distribution_of(package: str) -> str:
    """The canonical name of the distribution that a package is imported from."""
    return canonicalize_name(DISTRIBUTIONS[package][0])


def applies(requirement: Requirement, extras: Collection[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def direct_requirements(wheel: Path, extras: Collection[str]) -> list[Requirement]:
    """What the wheel itself asks for."""
    (own,) = metadata.distributions(path=[str(wheel)])
    requirements = [Requirement(line) for line in own.requires or ()]
    return [requirement for requirement in requirements if applies(requirement, extras)]


def brought_in(wheel: Path, extras: Collection[str]) -> set[str]:
    """Everything that the wheel asks for, directly or not."""
    waiting, seen = direct_requirements(wheel, extras), set()
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key not in seen:
            seen.add(key)
            further = [Requirement(line) for line in metadata.requires(wanted.name) or ()]
            waiting += [requirement for requirement in further if applies(requirement, wanted.extras)]
    return {str(name) for name, _ in seen}


def assert_one_sentence(ended: Ended, *words: str) -> None:
    """Exit code 2, one line on standard error that says what is wrong, nothing on standard output."""
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    assert re.fullmatch(r"lambda-replay: [^\n]+\.\n", ended.stderr), ended.stderr
    for word in words:
        assert word in ended.stderr


def remedy(extra: str) -> str:
    return f"pip install 'lambda-replay[{extra}]'."


def assert_done(ended: Ended) -> None:
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(directory), str(ROOT))
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Makes each installation once."""
    made: dict[tuple[tuple[str, ...], str | None], Installation] = {}

    def install(*extras: str, without: str | None = None) -> Installation:
        key = (extras, without)
        if key not in made:
            left_out = () if without is None else (without,)
            made[key] = Installation(tmp_path_factory.mktemp("installation"), wheel, extras, left_out)
        return made[key]

    return install


# --- the wheel --------------------------------------------------------------------------------------------------------


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    paths = [path.relative_to(SOURCE) for path in (SOURCE / "lambda_replay").rglob("*") if path.is_file()]
    assert names == {path.as_posix() for path in paths if "__pycache__" not in path.parts}
    assert {"py.typed", "report.css", "report.html", "report.js"} <= {Path(name).name for name in names}


def test_without_extras_numpy_is_all_that_is_required(wheel: Path) -> None:
    assert brought_in(wheel, ()) == {"numpy"}


def test_the_extras_that_messages_name_install_the_packages(wheel: Path) -> None:
    for extra, packages in EXTRAS.items():
        names = brought_in(wheel, [extra])
        assert {distribution_of(package) for package in packages} <= names, extra


def test_no_package_of_an_extra_is_without_a_message(wheel: Path) -> None:
    known = {distribution_of(package) for packages in EXTRAS.values() for package in packages}
    required = {canonicalize_name(requirement.name) for requirement in direct_requirements(wheel, EXTRAS)}
    assert required == known - {"pygame-ce", "box2d"} | {"numpy"}  # which Gymnasium's own extras bring


def test_all_is_every_extra_but_those_for_development(wheel: Path) -> None:
    (own,) = metadata.distributions(path=[str(wheel)])
    assert set(own.metadata.get_all("Provides-Extra") or ()) == {*EXTRAS, "all", "bench", "dev"}
    assert brought_in(wheel, ["all"]) == brought_in(wheel, EXTRAS)


# --- NumPy alone ------------------------------------------------------------------------------------------------------


def test_with_numpy_alone_nothing_else_is_there(install: Install, tmp_path: Path) -> None:
    code = "from importlib import metadata; print(sorted(one.name for one in metadata.distributions()))"
    assert install().python(code, directory=tmp_path).stdout == "['lambda-replay', 'numpy']\n"


def test_with_numpy_alone_the_example_of_the_readme_runs(install: Install, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    ended = install().python(f"{example}\nprint(weights.any(axis=0))", directory=tmp_path)
    assert (ended.stdout, ended.stderr) == ("[ True  True]\n", "")


def test_with_numpy_alone_version_and_help_work(install: Install, tmp_path: Path) -> None:
    version = install().command("--version", directory=tmp_path)
    assert (version.returncode, version.stdout, version.stderr) == (0, f"lambda-replay {__version__}\n", "")
    overview = install().command("--help", directory=tmp_path)
    assert (overview.returncode, overview.stderr) == (0, "")
    assert all(f"\n  {name}" in overview.stdout for name in COMMANDS)


@pytest.mark.parametrize("command", [*COMMANDS, "study status", "study report", "train --help", "train atari/pong"])
def test_with_numpy_alone_every_command_names_the_extra(install: Install, tmp_path: Path, command: str) -> None:
    name, *rest = command.split()
    ended = install().command(name, *rest, directory=tmp_path)
    assert_one_sentence(ended, f"lambda-replay: {name} needs ", remedy("train"))
    assert list(tmp_path.iterdir()) == []


def test_with_numpy_alone_training_from_python_names_the_extra(install: Install, tmp_path: Path) -> None:
    code = "import lambda_replay as lr\ntry:\n    lr.train\nexcept lr.ConfigError as error:\n    print(error)"
    ended = install().python(code, directory=tmp_path)
    assert ended.stdout.startswith("lambda_replay.train needs "), ended.stderr
    assert ended.stdout.endswith(remedy("train") + "\n")


# --- the extra `train` and what is missing then -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(install: Install, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run that was trained without any extra but `train`."""
    directory = tmp_path_factory.mktemp("trained")
    ended = install("train").command("train", "CartPole-v1", *TINY, "--out", "run", directory=directory)
    assert_done(ended)
    (line,) = ended.stderr.splitlines()
    assert "no learning curve was drawn" in line
    assert line.endswith(remedy("report"))
    (directory / "small.toml").write_text(STUDY)
    return directory


def test_train_needs_no_other_extra(trained: Path, install: Install) -> None:
    assert not (trained / "run" / "curve.png").exists()
    for command in ("evaluate run --games 1", "describe CartPole-v1", "study status small.toml"):
        assert_done(install("train").command(*command.split(), directory=trained))


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("train atari/pong --out new", "atari"),
        ("describe atari/pong", "atari"),
        ("train minatar/breakout --out new", "minatar"),
        ("train CartPole-v1 --tensorboard --out new", "tensorboard"),
        ("inspect run", "report"),
        ("study run small.toml --ray auto", "ray"),
    ],
)
def test_a_missing_extra_is_one_sentence(trained: Path, install: Install, command: str, extra: str) -> None:
    assert_one_sentence(install("train").command(*command.split(), directory=trained), remedy(extra))
    assert not (trained / "new").exists()


@pytest.mark.parametrize("package", ["gymnasium", "torch"])
def test_an_incomplete_extra_is_one_sentence(install: Install, tmp_path: Path, package: str) -> None:
    ended = install("train", without=package).command("train", "CartPole-v1", directory=tmp_path)
    assert_one_sentence(ended, f"needs {package}, which is not installed", remedy("train"))
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_a_users_environment_lacks_is_not_taken_for_ours(install: Install, tmp_path: Path) -> None:
    (tmp_path / "mygame.py").write_text("import scipy\n")
    ended = install("train").command("train", "mygame:Game-v0", *TINY, directory=tmp_path)
    assert_one_sentence(ended, "mygame:Game-v0 needs a package that is missing (No module named 'scipy'")
    assert "lambda-replay[" not in ended.stderr


@pytest.mark.parametrize("module", ["lambda_replay.nowhere", "torch.nowhere", "a_package_nobody_has"])
def test_other_missing_modules_are_passed_on(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=module), needed_for("train"):
        import_module(module)


# --- each extra is enough ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("extra", "env"), [("atari", "atari/pong"), ("minatar", "minatar/breakout")])
def test_an_extra_of_games_is_enough_to_train(install: Install, tmp_path: Path, extra: str, env: str) -> None:
    assert_done(install(extra).command("train", env, *TINY, "--out", "run", directory=tmp_path))
    assert (tmp_path / "run" / "weights.safetensors").exists()


def test_report_draws_films_and_reports(install: Install, tmp_path: Path) -> None:
    both = install("classic", "report")
    ended = both.command("train", "CartPole-v1", *TINY, "--out", "run", directory=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert_done(both.command("watch", "run", "--max-steps", "20", "--out", "run/play.mp4", directory=tmp_path))
    assert {"curve.png", "play.mp4"} <= {path.name for path in (tmp_path / "run").iterdir()}
    (tmp_path / "small.toml").write_text(STUDY)
    assert_done(both.command("study", "run", "small.toml", directory=tmp_path))
    assert len(list(tmp_path.rglob("report.html"))) == 1


@pytest.mark.parametrize(("extra", "missing"), [("classic", "report"), ("report", "classic")])
def test_a_film_of_cartpole_takes_two_extras(trained: Path, install: Install, extra: str, missing: str) -> None:
    assert_one_sentence(install(extra).command("watch", "run", directory=trained), remedy(missing))


def test_tensorboard_is_enough_to_write_for_it(install: Install, tmp_path: Path) -> None:
    train = ("train", "CartPole-v1", *TINY, "--tensorboard", "--out", "run")
    assert_done(install("tensorboard").command(*train, directory=tmp_path))
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_ray_is_enough_to_look_for_a_cluster(install: Install, trained: Path) -> None:
    address = "127.0.0.1:1"  # where nobody listens
    ended = install("ray").command("study", "run", "small.toml", "--ray", address, directory=trained)
    assert_one_sentence(ended, address)
    assert "lambda-replay[" not in ended.stderr


def test_sb3_brings_stable_baselines3(install: Install, tmp_path: Path) -> None:
    code = "from lambda_replay.sb3 import LambdaReplayBuffer; print(LambdaReplayBuffer.__mro__[1].__name__)"
    assert install("sb3").python(code, directory=tmp_path).stdout == "ReplayBuffer\n"
