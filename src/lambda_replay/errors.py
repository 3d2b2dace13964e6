"""The errors a person may see as one sentence; mistakes of our own are assertions and live nowhere."""


class ConfigError(ValueError):
    """A mistake of the caller's: one sentence that names the thing, the value and the remedy."""


class DivergenceError(ConfigError):
    """Training diverged: what it computes is no longer finite, which comes from the caller's settings."""


class EnvironmentFault(RuntimeError):
    """The environment did something wrong; the run stops and keeps what it has.

    Its cause, where there is one, is the exception of the environment's own code.
    """

    def __init__(self, did: str, remedy: str = "repair the environment") -> None:
        super().__init__(did)
        self.when = ""  # whoever plays the game knows the step, and says it here: "at step 100"
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.args[0]}{self.when and ' '}{self.when}; {self.remedy}."


class DamageError(RuntimeError):
    """A file of a run is missing or not what was written; one sentence that names it."""


def diverged(what: str) -> DivergenceError:
    """The one sentence about values that are not finite; ``what`` is "the loss is", "the Q-values are"."""
    return DivergenceError(
        f"{what} not finite: training diverged; lower the learning rate, or clip gradients harder (max_grad_norm)."
    )
