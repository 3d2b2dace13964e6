"""The errors a person may see as one sentence; mistakes of our own are assertions and live nowhere."""


class ConfigError(ValueError):
    """A mistake of the caller's: one sentence that names the thing, the value and the remedy."""


class DivergenceError(ConfigError):
    """Training diverged: what it computes is no longer finite, which comes from the caller's settings."""


class EnvironmentFault(RuntimeError):
    """The environment gave something that is not a number; the run stops and keeps what it has."""


class DamageError(RuntimeError):
    """A file of a run is missing or not what was written; one sentence that names it."""


def diverged(what: str) -> DivergenceError:
    """The one sentence about values that are not finite; ``what`` is "the loss is", "the Q-values are"."""
    return DivergenceError(
        f"{what} not finite: training diverged; lower the learning rate, or clip gradients harder (max_grad_norm)."
    )
