"""Adapters of Rota to the interfaces of other libraries: kazoo's SetPartitioner, APScheduler, Celery beat; and the
SDK's metrics for Prometheus and OpenTelemetry.

Only the adapter's own module imports its library.
"""
