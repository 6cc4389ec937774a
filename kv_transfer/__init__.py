"""Tickets, leases, quarantine and transports: how KV moves from one process to another."""
