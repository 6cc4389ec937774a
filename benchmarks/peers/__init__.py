"""Engines that are compared with one another.

Each has a runner here, which a process of its own runs in an environment of its own. Runners import only
`benchmarks.peers.protocol` and what their environment holds.
"""
