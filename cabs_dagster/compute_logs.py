"""What steps print, kept in files for the UI, without echoing it to the terminal of `dagster dev`.

Dagster's own manager echoes through four processes a run (`tail` and a watcher, for stdout and stderr), which cost
more than a run with nothing to do, and which outlive a run worker that was killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dagster import Field, StringSource
from dagster._core.execution.compute_logs import redirect_to_file
from dagster._core.storage.compute_log_manager import CapturedLogContext, ComputeIOType
from dagster._core.storage.local_compute_log_manager import IO_TYPE_EXTENSION, LocalComputeLogManager
from dagster._serdes import ConfigurableClassData
from dagster._utils import ensure_file, touch_file


class FileComputeLogManager(LocalComputeLogManager):
    """Stdout and stderr of each step as files below `base_dir` (default `$DAGSTER_HOME/storage`)."""

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        return {
            "base_dir": Field(
                StringSource, is_required=False, description="Folder; default $DAGSTER_HOME/storage."
            )
        }

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]
    ) -> FileComputeLogManager:
        folder = config_value.get("base_dir") or str(Path(os.environ["DAGSTER_HOME"]) / "storage")
        return cls(base_dir=folder, inst_data=inst_data)

    @contextmanager
    def capture_logs(self, log_key: Sequence[str]) -> Iterator[CapturedLogContext]:
        paths = [
            self.get_captured_local_path(log_key, IO_TYPE_EXTENSION[kind])
            for kind in (ComputeIOType.STDOUT, ComputeIOType.STDERR)
        ]
        for path in paths:
            ensure_file(path)
        with redirect_to_file(sys.stdout, paths[0]), redirect_to_file(sys.stderr, paths[1]):
            yield CapturedLogContext(log_key)
        touch_file(self.complete_artifact_path(log_key))  # readers then know that nothing more comes
