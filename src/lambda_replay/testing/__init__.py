"""A conformance kit for multi-step returns: cases with exact answers, and the names of common mistakes. NumPy only.

from lambda_replay import testing

def test_my_returns():
    testing.check(lambda case: my_returns(case.rewards, case.discounts, case.next_values, case.lambdas), "peng")
"""

from lambda_replay.testing.cases import Case, cases
from lambda_replay.testing.conformance import Verdict, check, check_returns, examine
from lambda_replay.testing.on_block import on_block
from lambda_replay.testing.stories import ESTIMATORS, LAYOUTS

__all__ = ["ESTIMATORS", "LAYOUTS", "Case", "Verdict", "cases", "check", "check_returns", "examine", "on_block"]
