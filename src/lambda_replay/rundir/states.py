"""The states of a run in a study."""

from typing import Literal

State = Literal["finished", "running", "waiting", "failed", "diverged"]
