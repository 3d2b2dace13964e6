"""Errors that users see as one sentence; bugs of our own are assertions."""


class ConfigError(ValueError):
    """A mistake by the caller: one sentence that names the setting, its value and the remedy.

    ``settings`` names the settings at fault, most likely first, so that the line of a study file can be shown.
    """

    def __init__(self, sentence: str, *settings: str) -> None:
        super().__init__(sentence)
        self.settings = settings


class DivergenceError(ConfigError):
    """Training diverged under the caller's settings: its numbers are no longer finite."""


class EnvironmentFault(RuntimeError):
    """The environment failed; the run stops and keeps what it has.

    Its cause, if any, is the exception raised by the environment's own code.
    """

    def __init__(self, did: str, remedy: str = "fix the environment") -> None:
        super().__init__(did)
        self.when = ""  # set by the code that plays the game, which knows the step: "at step 100"
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.args[0]}{self.when and ' '}{self.when}; {self.remedy}."


class DamageError(RuntimeError):
    """A file of a run is missing or differs from what was written; one sentence names it."""


def diverged(what: str) -> DivergenceError:
    """The error for values that are not finite; ``what`` is "the loss is" or "the Q-values are"."""
    return DivergenceError(
        f"{what} not finite: training diverged; lower the learning rate, or clip gradients harder (max_grad_norm)."
    )
