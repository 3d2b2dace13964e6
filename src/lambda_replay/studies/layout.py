"""Where the files of a study are stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lambda_replay.agents.run_settings import differing_fields
from lambda_replay.config import RunConfig
from lambda_replay.errors import ConfigError
from lambda_replay.rundir.directory import CONFIG, read_config
from lambda_replay.studies.plan import PlannedRun, Study


@dataclass(frozen=True)
class Layout:
    """The directory of one study: OUT/studies/NAME."""

    directory: Path

    @property
    def report(self) -> Path:
        return self.directory / "report.html"

    def run(self, run: PlannedRun) -> Path:
        """The run directory."""
        return self.directory / "runs" / run.place

    def config(self, run: PlannedRun) -> Path:
        """The config that the run is started from."""
        return self._file("configs", run, ".json")

    def log(self, run: PlannedRun) -> Path:
        """Everything the run's processes printed."""
        return self._file("logs", run, ".log")

    def failure(self, run: PlannedRun) -> Path:
        """Exists if the run failed, with the reason."""
        return self._file("failures", run, ".json")

    def mark(self, run: PlannedRun) -> Path:
        """Exists while a process works on the run, and after one that had no time to remove it."""
        return self._file("running", run, ".json")

    def _file(self, kind: str, run: PlannedRun, suffix: str) -> Path:
        place = run.place
        return self.directory / kind / place.with_name(place.name + suffix)


def make_layout(out: Path, study: Study) -> Layout:
    """Where a study is stored below the output directory."""
    place = next((place for place in (out, *out.parents) if place.exists()), out)
    if place.exists() and not place.is_dir():
        raise ConfigError(f"{place} is not a directory; give another --out.")
    return Layout(out / "studies" / study.name)


def check_configs(study: Study, layout: Layout) -> None:
    """Refuse run directories whose settings differ from those in the study file now."""
    for run in study.runs:
        path = layout.run(run)
        if (path / CONFIG).exists():
            _check_config(study, path, run.config)


def _check_config(study: Study, path: Path, planned: RunConfig) -> None:
    fields = differing_fields(read_config(path), planned)
    if fields:
        raise ConfigError(
            f"{path} was run with different settings than {study.file} has now ({', '.join(fields)}); "
            "undo the change, or give the study another name, or remove that directory."
        )
