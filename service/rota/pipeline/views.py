"""Queries over the views of a report, and values in them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def all_rows(spark: SparkSession, query: str) -> list[dict[str, Any]]:
    """The rows of a query that has few."""
    return [row.asDict(recursive=True) for row in spark.sql(query).collect()]


def literal(at: datetime) -> str:
    """A moment in UTC, the zone of our sessions."""
    return f"timestamp'{at:%Y-%m-%d %H:%M:%S.%f}'"
