"""Optional packages: the extra that installs each, and the message if one is not installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lambda_replay.errors import ConfigError

# What each extra in pyproject.toml installs, by import name.
EXTRAS = {
    "train": (
        "gymnasium",
        "pydantic",
        "rich",
        "safetensors",
        "threadpoolctl",
        "tomli",
        "torch",
        "typing_extensions",
        "tyro",
    ),
    "atari": ("ale_py", "cv2"),
    "minatar": ("minatar",),
    "classic": ("pygame",),
    "box2d": ("Box2D",),
    "mujoco": ("mujoco",),
    "robotics": ("gymnasium_robotics",),
    "report": ("PIL", "imageio", "imageio_ffmpeg", "jinja2", "matplotlib", "scipy"),
    "tensorboard": ("tensorboard",),
    "ray": ("ray",),
    "sb3": ("stable_baselines3",),
}
EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages}


@contextmanager
def needed_for(purpose: str) -> Iterator[None]:
    """A context for imports that reports a missing package of an extra in one sentence.

    Errors about any other missing module, such as one of ours, pass through unchanged.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = missing_package(error)
        if package is None:
            raise
        raise not_installed(package, purpose) from error


def load_extra(module: str) -> Any:
    """A module of the extra ``report``, imported on first use: training needs neither SciPy nor matplotlib."""
    with needed_for("a figure or a report"):
        return importlib.import_module(module)


def missing_package(error: BaseException | None) -> str | None:
    """The package of an extra whose absence caused the error; None if the error has another cause."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    # A part missing from an installed package means a broken or outdated installation, which no extra would fix.
    return package if package in EXTRA_OF and importlib.util.find_spec(package) is None else None


def not_installed(package: str, purpose: str) -> ConfigError:
    """The error for a missing package that ``purpose`` needs: "train", "atari/pong", "--ray"."""
    remedy = f"pip install 'lambda-replay[{EXTRA_OF[package]}]'"
    return ConfigError(f"{purpose} needs {package}, which is not installed; install it with: {remedy}.")
