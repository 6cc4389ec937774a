"""Tickets, quarantine, reader and the wire."""
