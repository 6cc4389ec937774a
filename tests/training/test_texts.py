"""Prompts from a folder of texts, and how such a folder is collected."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from training.prompts.collect import collect
from training.prompts.mixture import Prompt
from training.prompts.texts import Texts, read_texts, text_prompts

FUNCTION = '''def halve(number):
    """Returns half of a number, which must be even; raises an error otherwise."""
    return number // 2
'''
SENTENCE = "The zeppelin of Friedrichshafen crossed the ocean in spite of strong winds from the north. "


def folder_of(path: Path) -> Path:
    path.mkdir()
    (path / "a.txt").write_text(f"{SENTENCE * 3}\n\nshort\n\n{SENTENCE * 40}\n")
    (path / "words.topics").write_text("zymurgy\nquokkas\nzymurgy\n")
    (path / "code.py").write_text(FUNCTION)
    (path / "broken.py").write_text("def (")
    return path


def contents(prompts: list[Prompt], kind: str) -> list[str]:
    return [prompt.messages[-1].content for prompt in prompts if prompt.kind == kind]


def test_a_folder_is_read(tmp_path: Path) -> None:
    texts = read_texts(folder_of(tmp_path / "texts"))
    assert [len(passage) for passage in texts.passages] == [2]
    assert texts.topics == ("zymurgy", "quokkas")
    assert len(texts.functions) == 1
    assert texts.functions[0].startswith("def halve(number):")


def test_a_folder_without_anything_of_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no texts"):
        read_texts(tmp_path)


def test_prompts_are_of_the_texts_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    texts = read_texts(folder_of(tmp_path / "texts"))
    prompts = list(islice(text_prompts(texts, 4), 1000))
    assert prompts == list(islice(text_prompts(texts, 4), 1000))
    assert prompts[0] != next(text_prompts(texts, 5))
    assert len({prompt.messages for prompt in prompts}) == 1000
    counts = Counter(prompt.kind for prompt in prompts)
    assert set(counts) == {"chat", "code", "maths", "summarising"}
    asked = contents(prompts, "chat")
    assert sum("zymurgy" in text or "quokkas" in text for text in asked) > len(asked) / 3
    assert sum("zeppelin" in text for text in asked) > 0
    wanted = contents(prompts, "summarising")
    assert sum("zeppelin" in text for text in wanted) > len(wanted) / 2
    assert any("def halve" in text for text in contents(prompts, "code"))
    assert not any(slot in text for text in asked for slot in ("{topic", "{name", "{n}"))


def test_passages_end_with_a_sentence(tmp_path: Path) -> None:
    texts = read_texts(folder_of(tmp_path / "texts"))
    passages = contents(list(islice(text_prompts(texts, 4), 400)), "summarising")
    cut = [text for text in passages if "zeppelin" in text and text.startswith("Summarize: ")]
    assert len(cut) > 5
    assert all(text.rstrip().endswith("north.") for text in cut)
    assert 1800 < max(map(len, cut)) < 3300


def test_what_a_folder_lacks_is_built_in() -> None:
    prompts = list(islice(text_prompts(Texts((), ("zymurgy",), ()), 1), 300))
    assert {prompt.kind for prompt in prompts} == {"chat", "code", "maths", "summarising"}


def test_packages_become_a_folder_of_texts(tmp_path: Path) -> None:
    packages, out = tmp_path / "packages", tmp_path / "out"
    for name in ("x/anarchism/html", "usr/share/help/C/a", "janeaustenr/data"):
        (packages / name).mkdir(parents=True)
    article = f"'''Dogs''' are [[pet|pets]] of [[Quokka Island]]. {SENTENCE * 2}{{{{x}}}}\n\n{SENTENCE * 2}"
    page = f"<page><text>{article}</text></page>"
    dump = packages / "enwiki-latest-shortened.bz2"
    dump.write_bytes(bz2.compress(page.encode()))
    (packages / "lee_background.cor").write_text(f"{SENTENCE * 4}\n{SENTENCE * 5}\n")
    (packages / "x/anarchism/html/a.html").write_text(f"<head>no</head><p>{SENTENCE * 4}</p>&amp;")
    line = "It is a truth universally acknowledged that somebody wrote this."
    strings = b"".join(b"\x00\x04\x00\x09\x00\x00\x00\x40" + line.encode() for _ in range(9))
    packed = zlib.compress(strings + b"\x00\x04\x00\x09")
    (packages / "janeaustenr/data/Rdata.rdb").write_bytes(len(strings).to_bytes(4, "big") + packed)
    entry = f"octothorpe\n\n   {SENTENCE * 6}\n"
    (packages / "foldoc.dict.dz").write_bytes(gzip.compress(entry.encode()))
    noun = "zeppelin n 1 1 @ 1 2 04567890\nsea_cow n 1 1 @ 1 0 01234567\n"
    (packages / "index.noun").write_text(f"  1 a licence\n{noun}")
    collect(packages, out)
    topics = (out / "all.topics").read_text().splitlines()
    assert topics == ["zeppelin", "sea cow", "octothorpe", "Quokka Island"]
    wiki = (out / "wiki-000.txt").read_text()
    assert wiki.startswith("Dogs are pets of Quokka Island. The zeppelin")
    assert "{" not in wiki
    assert (out / "essay-000.txt").read_text() == SENTENCE.strip() + (" " + SENTENCE.strip()) * 3
    assert line in (out / "novel-000.txt").read_text()
    assert (out / "news-001.txt").exists()
    assert read_texts(out).functions
