"""The command ``verify``: checks the files of a run without running it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lambda_replay.cli.options import parse, split_path
from lambda_replay.rundir.verification import Finding, verify_run


@dataclass(frozen=True)
class VerifyOptions:
    """Check a run directory without running it."""

    json: bool = False  # one JSON object on standard output


def run(arguments: list[str]) -> int:
    path, rest = split_path(arguments, "verify")
    options = parse(VerifyOptions, rest, usage="lambda-replay verify RUN")
    assert path is not None
    findings = verify_run(path)
    is_sound = all(finding.is_sound for finding in findings)
    if options.json:
        values = {"sound": is_sound, "findings": [finding._asdict() for finding in findings]}
        print(json.dumps(values, allow_nan=False))
    else:
        for finding in findings:
            print(f"{_verdict(finding):<8}  {finding.what}: {finding.sentence}")
    return 0 if is_sound else 2


def _verdict(finding: Finding) -> str:
    if finding.is_sound:
        return "sound"
    return "DIVERGED" if finding.is_diverged else "DAMAGED"
