"""Whose run a directory is: a config can name modules, and importing a module executes its code.

A run is this user's own if its provenance carries a signature made with a key that only this user can read.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError, DamageError
from lambda_replay.replay.estimator_names import module_of_estimator
from lambda_replay.rundir.directory import read_provenance

MayImport = Callable[[Path, str], bool]  # run directory, module -> whether it may be imported
KEY_BYTES = 32


def refuse(path: Path, module: str) -> bool:
    """Import no module for a run that somebody else created."""
    return False


def check_trust(path: Path, config: RunConfig, may_import: MayImport) -> None:
    """Reject a run that needs modules to be imported, unless this user created it or agrees."""
    modules = modules_of(config)
    if not modules or _is_own(path, config) or all(may_import(path, module) for module in modules):
        return
    raise ConfigError(
        f"{path} was not created by you, and it imports the module {' and '.join(modules)}, which can run any code; "
        "give --trust (from Python: trust=True) if you trust the run."
    )


def modules_of(config: RunConfig) -> list[str]:
    """The modules that an environment ``package.module:Env-v0`` and an estimator ``package.module:callable`` name."""
    module, colon, _ = config.env.partition(":")
    estimator_module = module_of_estimator(config.estimator)
    return [*([module] if colon else []), *([] if estimator_module is None else [estimator_module])]


def sign(config: RunConfig) -> str | None:
    """This user's signature of the code that a config runs; None if there is no module to trust, or no key."""
    key = _key() if modules_of(config) else None
    if key is None:
        return None
    named = json.dumps([config.estimator, config.env, *config.env_args])
    return hmac.digest(key, named.encode(), "sha256").hex()


def _is_own(path: Path, config: RunConfig) -> bool:
    try:
        found = read_provenance(path).get("signature")
    except DamageError:
        return False
    wanted = sign(config)
    return wanted is not None and found == wanted


def _key() -> bytes | None:
    """The user's key, created when first needed; None if it cannot be stored."""
    try:
        state = os.environ.get("XDG_STATE_HOME", "")
        home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
        place = home / "lambda-replay" / "key"
        if not place.exists():
            _create_key(place)
        key = place.read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: the home directory is unknown
        return None
    return key if len(key) == KEY_BYTES else None


def _create_key(place: Path) -> None:
    """Write the key under another name first, so that two processes never see half a key, or two keys."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = place.with_name(f"key.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        os.link(draft, place)
    except FileExistsError:
        pass  # another process was faster
    finally:
        draft.unlink(missing_ok=True)
