"""Benchmarks: our figures beside the floor they rest on, measured in the same run. They report and never assert."""
