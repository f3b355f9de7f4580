"""Prefect: the flows, the embedded server, the dashboard, deployments, events, artifacts, crash recovery."""
