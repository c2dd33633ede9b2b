"""Sensors: new and changed pool files, and alerts. All of them are off until somebody switches them on."""

from __future__ import annotations

from cabs_dagster.sensors.alerts import alert_on_checks, alert_on_failure
from cabs_dagster.sensors.pool_files import pool_files

sensors = [pool_files, alert_on_failure, alert_on_checks]
