from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from router.text.chat_template import ChatTemplate
from router.text.errors import ChatTemplateError, ModelFilesError
from router.text.tokenizer import Tokenizer
from tests.support.tiny_tokenizer import CHAT_TEMPLATE, text_folder

# The demo model's template: a system prompt where the chat has none.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# One of each thing that templates in use need.
EVERYTHING = """
{{- bos_token }}
{%- set state = namespace(seen=0) %}
{% for message in messages %}
    {% if message.role == 'tool' %}
        {% continue %}
    {% endif %}
    {% set state.seen = state.seen + 1 %}
    {% generation %}
    {% set role = message.role %}
[{{ role }}] {{ message.content | trim }} {{ message | tojson }} {{ dict(a=1) }}
    {% endgeneration %}
    {{ role is defined }}
    {% if state.seen == 3 %}
        {% break %}
    {% endif %}
{% endfor %}
{% if tools is none and not documents %}plain{% endif %}
{{ strftime_now('%Y') }}
{% if add_generation_prompt %}
>>{{ eos_token }}
{% endif %}
"""

TRIMMING = "{% for message in messages %}[{{ message.role }}] {{ message.content | trim }}\n{% endfor %}end"

CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " <b>&'\" é 😀 \n"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "tool", "content": "three"},
        {"role": "user", "content": "four <|im_end|>"},
        {"role": "user", "content": "five"},
    ],
]


def with_template(folder: Path, template: object) -> Path:
    path = text_folder(folder) / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    return folder


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize(
    "template", [CHAT_TEMPLATE, SMOLLM2, EVERYTHING], ids=["tiny", "smollm2", "everything"]
)
async def test_equals_transformers(tmp_path: Path, template: str, chat: list[dict[str, str]]) -> None:
    folder = with_template(tmp_path, template)
    reference = AutoTokenizer.from_pretrained(folder)
    text = ChatTemplate.load(folder).render(chat)
    assert text == reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    ids = await Tokenizer.load(folder).encode(text, add_special_tokens=False)
    assert ids == reference.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize("text", ["two", "a", " spaced ", "ends \n", "<|im_end|>"])
@pytest.mark.parametrize("template", [CHAT_TEMPLATE, SMOLLM2, TRIMMING], ids=["tiny", "smollm2", "trimming"])
def test_continuing_equals_transformers(tmp_path: Path, template: str, text: str) -> None:
    folder = with_template(tmp_path, template)
    chat = [{"role": "user", "content": "one"}, {"role": "assistant", "content": text}]
    reference = AutoTokenizer.from_pretrained(folder)
    expected = reference.apply_chat_template(chat, tokenize=False, continue_final_message=True)
    rendered = ChatTemplate.load(folder).render(
        chat, add_generation_prompt=False, continue_final_message=True
    )
    assert rendered == expected
    assert rendered.rstrip().endswith(text.strip())


@pytest.mark.parametrize(
    ("template", "content", "says"),
    [
        ("{{ 1 }}", "text", "leaves the last"),
        (CHAT_TEMPLATE, "  ", "no text"),
        (CHAT_TEMPLATE, None, "no text"),
    ],
)
def test_nothing_to_continue(tmp_path: Path, template: str, content: str | None, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=says):
        ChatTemplate.load(with_template(tmp_path, template)).render(
            [{"role": "assistant", "content": content}], continue_final_message=True
        )


def test_a_text_that_is_written_twice(tmp_path: Path) -> None:
    template = ChatTemplate.load(
        with_template(tmp_path, "{{ messages[0].content }}|{{ messages[0].content }}.")
    )
    rendered = template.render([{"role": "assistant", "content": "so "}], continue_final_message=True)
    assert rendered == "so |so "


def test_variables_of_the_template(tmp_path: Path) -> None:
    template = ChatTemplate.load(with_template(tmp_path, "{{ flag }}{{ deep.list[1] }}"))
    assert template.render(CHATS[0], variables={"flag": True, "deep": {"list": [1, "x"]}}) == "Truex"
    for name in ("messages", "tools", "documents", "add_generation_prompt", "bos_token"):
        with pytest.raises(ChatTemplateError, match=f"must not set {name}"):
            template.render(CHATS[0], variables={name: 1})


def test_the_size_of_a_prompt_is_bounded(tmp_path: Path) -> None:
    template = ChatTemplate.load(with_template(tmp_path, "{{ messages[0].content }}!"))
    assert template.render(CHATS[0], max_characters=6) == "hello!"
    with pytest.raises(ChatTemplateError, match="more than 5 characters"):
        template.render(CHATS[0], max_characters=5)


def test_named_templates_and_the_jinja_file(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "wrong"}, {"name": "default", "template": "right"}]
    folder = with_template(tmp_path, named)
    assert ChatTemplate.load(folder).render(CHATS[0]) == "right"
    (folder / "chat_template.jinja").write_text("from the file")
    assert ChatTemplate.load(folder).render(CHATS[0]) == "from the file"


def test_special_tokens_may_be_objects(tmp_path: Path) -> None:
    folder = with_template(tmp_path, "{{ bos_token }}|{{ eos_token }}")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["bos_token"] = {"__type": "AddedToken", "content": "<|im_start|>"}
    path.write_text(json.dumps(config))
    assert ChatTemplate.load(folder).render(CHATS[0]) == "<|im_start|>|<|im_end|>"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ nothing.here }}",
    ],
)
def test_what_a_template_refuses_is_a_clear_error(tmp_path: Path, template: str) -> None:
    with pytest.raises(ChatTemplateError, match="chat template refuses"):
        ChatTemplate.load(with_template(tmp_path, template)).render(CHATS[0])


def test_the_reason_reaches_the_client(tmp_path: Path) -> None:
    template = ChatTemplate.load(with_template(tmp_path, "{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        template.render(CHATS[0])


def test_no_template_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        ChatTemplate.load(with_template(tmp_path, None)).render(CHATS[0])


def test_broken_template_is_found_at_start(tmp_path: Path) -> None:
    with pytest.raises(ModelFilesError, match="does not compile"):
        ChatTemplate.load(with_template(tmp_path, "{% if %}"))
