"""What holds for every test: Hypothesis, too, takes the machine as it is, however slow or busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
