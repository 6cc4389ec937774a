"""General questions and instructions: facts, advice, writing, role play, reasoning, extraction, rewriting."""

from __future__ import annotations

from random import Random

from training.prompts.filling import fill, templates

_GREETINGS = ("", "", "", "", "Hi! ", "Hello, ", "Please help me. ", "Can you help? ", "I have a question. ")
_MANNERS = ("Answer briefly.", "Answer in detail.", "Use simple words.", "Use lists.", "")


def question(rng: Random) -> str:
    """One question or instruction, at times with a greeting."""
    return rng.choice(_GREETINGS) + fill(rng.choice(templates("questions")), rng)


def role(rng: Random) -> str:
    """A system prompt."""
    about = fill("You are a {tone} assistant who knows much about {topic}.", rng)
    return f"{about} {rng.choice(_MANNERS)}".strip()
