"""Rota behind the interfaces of other libraries: kazoo's SetPartitioner, APScheduler, Celery beat; and the SDK's
metrics for Prometheus and OpenTelemetry.

Each module imports the library that it is for, and nothing else does.
"""
