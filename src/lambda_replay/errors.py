"""The errors a person may see as one sentence; mistakes of our own are assertions and live nowhere."""


class ConfigError(ValueError):
    """A mistake of the caller's: one sentence that names the thing, the value and the remedy."""


class EnvironmentFault(RuntimeError):
    """The environment gave something that is not a number; the run stops and keeps what it has."""


class DamageError(RuntimeError):
    """A file of a run is missing or not what was written; one sentence that names it."""
