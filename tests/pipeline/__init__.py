"""Tests of the pipeline: pure folds, and one Spark for what needs it."""
