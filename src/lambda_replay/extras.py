"""Optional packages: the extra that installs each, and the sentence for one that is not installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lambda_replay.errors import ConfigError

# What the extras in pyproject.toml install, by the names that Python imports.
EXTRAS = {
    "train": ("gymnasium", "pydantic", "rich", "safetensors", "threadpoolctl", "torch", "typing_extensions", "tyro"),
    "atari": ("ale_py", "cv2"),
    "minatar": ("minatar",),
    "classic": ("pygame",),
    "report": ("PIL", "imageio", "imageio_ffmpeg", "jinja2", "matplotlib", "scipy"),
    "tensorboard": ("tensorboard",),
    "ray": ("ray",),
    "sb3": ("stable_baselines3",),
}
EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages}


@contextmanager
def needed_for(purpose: str) -> Iterator[None]:
    """A context for imports: if a package of an extra is not installed, says so in one sentence.

    Any other module that is missing, such as one of ours, is passed on as it is.
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
    # A part missing from an installed package is a broken or outdated installation, which an extra would not repair.
    return package if package in EXTRA_OF and importlib.util.find_spec(package) is None else None


def not_installed(package: str, purpose: str) -> ConfigError:
    """The sentence about a package that is not installed; ``purpose`` needs it: "train", "atari/pong", "--ray"."""
    remedy = f"pip install 'lambda-replay[{EXTRA_OF[package]}]'"
    return ConfigError(f"{purpose} needs {package}, which is not installed; install it with: {remedy}.")
