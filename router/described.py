"""How parameters and answers are described: one form of words, which tests read back.

Both doors use it: the OpenAPI page through these functions, the .proto files by hand.
"""

from __future__ import annotations


def asked(text: str, allowed: str, default: str, unit: str = "none") -> str:
    """Description of something that a client may send.

    Args:
        text: what it does; whole sentences.
        allowed: the values that are accepted, for example `[0, 2]` or `true or false`.
        default: what holds where it is absent or null.
        unit: what a number counts; "none" for a pure number, a text or a switch.
    """
    return f"{text} Range: {allowed}. Default: {default}. Unit: {unit}."


def told(text: str, allowed: str, unit: str = "none") -> str:
    """Description of something that the server sends; the arguments are those of `asked`."""
    return f"{text} Range: {allowed}. Unit: {unit}."


SWITCH = "true or false"
