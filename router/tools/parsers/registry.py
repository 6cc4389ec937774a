"""Tool parsers by name: adding a family is adding a file and a line here."""

from __future__ import annotations

from router.tools.parsers import hermes, llama3_json
from router.tools.parsers.base import CallForm

FORMS = {"hermes": hermes.FORM, "llama3_json": llama3_json.FORM}
AUTO, NONE = "auto", "none"


def tool_parser_names() -> tuple[str, ...]:
    """What a deployment may say."""
    return (AUTO, NONE, *FORMS)


def call_form(name: str, template: str | None) -> CallForm | None:
    """The form that a deployment's setting means; None for none.

    Args:
        name: one of `tool_parser_names`.
        template: the model's chat template. "auto" looks there for a family's own way: its marker, or, for
            Llama, the role of tool results together with the parameters' name.
    """
    if name != AUTO:
        return FORMS.get(name)
    text = template or ""
    if hermes.FORM.start in text:
        return hermes.FORM
    if llama3_json.FORM.start in text or ('"parameters"' in text and "ipython" in text):
        return llama3_json.FORM
    return None
