"""What keeps parts of a deployment from serving, told as it comes and goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Troubles:
    """Remembers what was told.

    Args:
        note: told in words of each change.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._known: Mapping[str, str] = {}

    def are(self, now: Mapping[str, str], *, told: bool, left_alone: str = "") -> None:
        """Takes the present state: part -> why it does not serve, empty where it does.

        Args:
            now: of all parts.
            told: whether changes are noted; while a deployment starts or stops they are nothing new.
            left_alone: a part that others restart.
        """
        for name, trouble in now.items() if told else ():
            if trouble == self._known.get(name, ""):
                continue
            healing = "" if name == left_alone else "; restarting"
            self._note(f"{name}: {trouble}{healing}" if trouble else f"{name} serves again")
        self._known = dict(now)
