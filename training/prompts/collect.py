"""Collects a folder of texts for `kvrelay train-draft --data DIR` from free packages.

    mkdir packages && cd packages
    apt-get download anarchism dict-foldoc wordnet-base gnome-user-docs debian-history postgresql-doc-15 \\
        r-cran-janeaustenr && for each in *.deb; do dpkg -x "$each" .; done
    pip download --no-deps gensim==4.4.0 && unzip gensim-*.whl 'gensim/test/test_data/*'
    python -m training.prompts.collect packages texts

The packages are Debian 12's. What they hold is under several licences (GFDL, CC BY-SA, GPL, PostgreSQL's,
WordNet's; novels of the public domain): it is made prompts of, and no part of it is in a head. Functions to
complete are of the libraries under BSD, MIT, PSF and Apache licences that are installed beside kvrelay.
"""

from __future__ import annotations

import bz2
import gzip
import html
import re
import shutil
import sys
import sysconfig
import zlib
from pathlib import Path
from random import Random

_LIBRARIES = (
    "aiohttp",
    "attr",
    "click",
    "fastapi",
    "httpx",
    "jinja2",
    "networkx",
    "numpy/lib",
    "numpy/ma",
    "packaging",
    "pygments",
    "requests",
    "rich",
    "safetensors",
    "starlette",
    "sympy",
    "tokenizers",
    "torch/utils",
    "yaml",
)
_MODULES = 400
_PAGES = (
    # Name, which pages, how many.
    ("essay", "**/anarchism/html/*.html", 40),
    ("help", "**/help/C/**/*.page", 400),
    ("history", "**/debian-history/**/*.en.html", 20),
    ("db", "**/postgresql-doc-15/**/*.html", 150),
)
_LONGEST_PAGE = 20000
_PHRASES, _COMPUTING = 6000, 1500
_EMPTY = re.compile(r"\n\s*\n")
_TAGS = re.compile("<[^>]+>")
_BREAKS = re.compile(r"(?i)</?(p|div|li|h\d|br|blockquote|para|section|title|item|note)[^>]*>")
_APART = re.compile(r"(?is)<(script|style|pre|table|nav|head).*?</\1>")


class _Folder:
    """Where texts are written, one a file."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path

    def write(self, name: str, number: int, paragraphs: list[str]) -> None:
        (self.path / f"{name}-{number:03d}.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")


def collect(packages: Path, out: Path) -> None:
    """Makes texts, topics and functions of unpacked packages.

    Args:
        packages: where they were unpacked.
        out: of the texts; made where it is not there.

    Raises:
        OSError: files that cannot be read or written.
        StopIteration: a package is missing.
    """
    folder = _Folder(out)
    linked = _encyclopaedia(next(packages.rglob("enwiki-latest*shortened.bz2")), folder)
    news = next(packages.rglob("lee_background.cor")).read_text(encoding="utf-8")
    for number, line in enumerate(news.splitlines()):
        folder.write("news", number, [line.strip()])
    for name, pattern, most in _PAGES:
        _pages(packages, name, pattern, most, folder)
    _novels(next(packages.rglob("janeaustenr/data/Rdata.rdb")), folder)
    terms = _computing(next(packages.rglob("foldoc.dict.dz")), folder)
    nouns, phrases = _nouns(next(packages.rglob("index.noun")))
    rng = Random(2)
    rng.shuffle(phrases)
    topics = nouns + phrases[:_PHRASES] + rng.sample(terms, min(_COMPUTING, len(terms))) + linked
    lines = "\n".join(dict.fromkeys(topics))
    (out / "all.topics").write_text(f"{lines}\n", encoding="utf-8")
    _functions(Path(sysconfig.get_paths()["purelib"]), out / "code")


def _encyclopaedia(dump: Path, folder: _Folder) -> list[str]:
    """Articles of a wiki's dump; returns what they link to."""
    linked: list[str] = []
    number = 0
    with bz2.open(dump, "rt", encoding="utf-8") as file:
        pages = re.findall("<page>(.*?)</page>", file.read(), re.DOTALL)
    for page in pages:
        body = re.search("<text[^>]*>(.*?)</text>", page, re.DOTALL)
        if body is None or "REDIRECT" in body[1][:200].upper():
            continue
        text = re.sub(r"(?s)<!--.*?-->", "", html.unescape(body[1]))
        # Templates stand within templates.
        for _ in range(6):
            text = re.sub(r"\{\{[^{}]*\}\}", "", text)
        text = re.sub(r"(?s)\{\|.*?\|\}", "", text)
        text = re.sub(r"(?s)<ref.*?</ref>", "", re.sub(r"<ref[^>]*/>", "", text))
        linked += re.findall(r"\[\[([A-Za-z][A-Za-z \-]{3,30})[\]|]", text)
        text = re.sub(r"\[\[(?:File|Image|Category)[^\[\]]*(?:\[\[[^\]]*\]\][^\[\]]*)*\]\]", "", text)
        text = re.sub(r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]", r"\1", text)
        text = re.sub(r"\[http\S* ?([^\]]*)\]", r"\1", text)
        text = _TAGS.sub("", re.sub(r"'{2,}", "", text))
        lines = [line.strip() for line in text.split("\n")]
        paragraphs = [line for line in lines if len(line) > 150 and line[0] not in "*#|!:;={}"]
        if len(paragraphs) > 1:
            folder.write("wiki", number, paragraphs)
            number += 1
    return sorted(set(linked))


def _pages(packages: Path, name: str, pattern: str, most: int, folder: _Folder) -> None:
    """Prose of pages in HTML or Mallard."""
    paths = sorted(packages.glob(pattern))
    Random(1).shuffle(paths)
    number = 0
    for path in paths:
        text = _BREAKS.sub("\n\n", _APART.sub("", path.read_text(encoding="utf-8", errors="replace")))
        parts = (" ".join(part.split()) for part in _EMPTY.split(html.unescape(_TAGS.sub("", text))))
        paragraphs = "\n\n".join(part for part in parts if len(part) > 150)[:_LONGEST_PAGE]
        if len(paragraphs) > 300 and number < most:
            folder.write(name, number, paragraphs.split("\n\n"))
            number += 1


def _novels(data: Path, folder: _Folder) -> None:
    """Novels of an R package, whose objects are compressed one behind the other."""
    packed, place, text = data.read_bytes(), 0, b""
    # Four bytes of length go before each object.
    while place < len(packed):
        reader = zlib.decompressobj()
        text += reader.decompress(packed[place + 4 :])
        place = len(packed) - len(reader.unused_data)
    string = rb"\x00\x04\x00\x09\x00\x00..(.{0,100}?)(?=\x00\x04\x00\x09)"
    lines = [line.decode() for line in re.findall(string, text, re.DOTALL) if _is_plain(line)]
    parts = _EMPTY.split("\n".join(lines))
    paragraphs = [part for part in parts if len(part) > 200][:4000]
    for start in range(0, len(paragraphs), 100):
        folder.write("novel", start // 100, paragraphs[start : start + 100])


def _is_plain(line: bytes) -> bool:
    return all(31 < byte < 127 for byte in line)


def _computing(dictionary: Path, folder: _Folder) -> list[str]:
    """Longer entries of FOLDOC; returns its headwords of plain letters."""
    entries = re.split(r"\n(?=\S)", gzip.decompress(dictionary.read_bytes()).decode(errors="replace"))
    texts, terms = [], []
    for entry in entries:
        head, _, body = entry.partition("\n")
        head, body = head.strip(), re.sub(r"[{}]", "", re.sub(r"<[^>]*>", "", body)).strip()
        if len(body) > 350:
            texts.append(f"{head}: {' '.join(body.split())}")
        if body and re.fullmatch(r"[A-Za-z][A-Za-z \-]{3,28}", head):
            terms.append(head)
    for start in range(0, len(texts), 50):
        folder.write("computing", start // 50, texts[start : start + 50])
    return terms


def _nouns(index: Path) -> tuple[list[str], list[str]]:
    """WordNet's nouns that occur in its tagged texts, and its phrases that do not."""
    nouns, phrases = [], []
    for line in index.read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if line.startswith(" "):
            continue
        lemma = fields[0].replace("_", " ")
        tagged = int(fields[5 + int(fields[3])])
        if len(lemma) > 3 and re.fullmatch(r"[a-z][a-z \-]+", lemma):
            if tagged:
                nouns.append(lemma)
            elif " " in lemma:
                phrases.append(lemma)
    return nouns, phrases


def _functions(installed: Path, out: Path) -> None:
    """Modules of libraries, tests left out."""
    out.mkdir(exist_ok=True)
    for library in _LIBRARIES:
        modules = (path for path in sorted((installed / library).rglob("*.py")) if "test" not in str(path))
        for _, path in zip(range(_MODULES), modules, strict=False):
            shutil.copyfile(path, out / ".".join(path.relative_to(installed).parts))


if __name__ == "__main__":
    collect(Path(sys.argv[1]), Path(sys.argv[2]))
