"""What real clients do with a deployment, each run in an environment of its own.

Runners import only `benchmarks.client_checks.checks` and what their environment holds.
"""
