"""Compare the tokenizer with HuggingFace's.

    python scripts/golden/tokenizer_compare.py make
        writes tests/data/tokenizer/*/ (small tokenizers of all kinds, with goldens) and
        examples/tokenizer (tokens are bytes), and checks that transformers loads the latter.
    python scripts/golden/tokenizer_compare.py ids DIR --program build/…/data_test_tokenizer_golden
            [--count 20000] [--seed 1] [--text FILE …]
        makes random strings (and lines of the files), asks HuggingFace for the ids of DIR's
        tokenizer, and lets the test program check them.
    python scripts/golden/tokenizer_compare.py words --program build/…/data_test_tokenizer_words
            [--count 300] [--seed 1]
        the same for the words that a list of Split patterns cuts random strings into.

Needs tokenizers (0.22.2) and transformers, as requirements.txt has them.
"""

import argparse
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Regex, Tokenizer  # noqa: E402
from tokenizers.pre_tokenizers import Split  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]

# ---- HuggingFace's answers


def goldens(folder, texts, out):
    """One line a text: what HuggingFace makes of it."""
    spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    full = Tokenizer.from_str(json.dumps(spec))
    plain = Tokenizer.from_str(json.dumps({**spec, "added_tokens": [], "post_processor": None}))
    with open(out, "w", encoding="utf-8") as file:
        for text in texts:
            ids = full.encode(text, add_special_tokens=False).ids
            template = full.encode(text, add_special_tokens=True).ids
            line = {"text": text, "ids": ids, "plain": plain.encode(text).ids}
            if template != ids:
                line["template"] = template
            line["decoded"] = full.decode(template, skip_special_tokens=False)
            line["decoded_skip"] = full.decode(template, skip_special_tokens=True)
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


# ---- texts

FIXED = [
    "",
    " ",
    "a",
    "Hello, world!",
    "I'm we'll they've DON'T it'S I'ſ don’t",
    "tabs\tand\r\nnew\n\n\n  lines \r\n\r trailing   ",
    "    \t  \r\n x   ",
    "1234567890 3.14159 1,000 ٣٤٥ Ⅷ² ½",
    "你好，世界！日本語のテスト 한국어 ไทย हिन्दी العربية",
    "e\u0301 é \u0344 a\u0323\u0302 a\u0302\u0323 \u1100\u1161\u11a8 각 ﬁ Å Ω ｱ",
    "🙂👩‍👩‍👧‍👦🇩🇪 \u180e \u0085 \u00a0\u2003\u3000x\u200b\ufeff",
    "\U00031350\U0002ebf0 \U0001e4d0 \u0897 \u1c89\ua7cb \U00016d70 \U0001fae9",
    "\u0000\u0001\u007f\u00ad\u0378",
    "x" * 200 + " " * 50 + "ab" * 60,
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * c[i]; }",
]

INTERESTING = (
    "\t\n\r\x0b\x0c\x1c\x1f \x85\xa0\xad\u1680\u180e\u2000\u200a\u200b\u200c\u200d\u2028\u2029"
    "\u202f\u205f\u2060\u3000\ufeff\ufffd'’ſKß.,;:!?-_/\\()[]{}<>|#@&*+=~^%$€£"
    "0123456789٣௪½²Ⅷ①\u0300\u0301\u0323\u0345\u0334\u05b0\u064b\u093c\u3099\u309a\u20dd\ufe0f"
    "\u1100\u1161\u11a8가각éåÅΩﬁǅaAbBsStTmMdDlLvVeErRzZ你好世界のアｱไทहिন\u0930\u094d"
    "🙂👩🇩🇪🏽\u0897\ua7cb\u1c8a\u0378\ue000"
)
PLANES = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x8FF), (0x900, 0xDFF),
    (0xE00, 0x109F), (0x10A0, 0x11FF), (0x1200, 0x1CFF), (0x1D00, 0x20FF), (0x2100, 0x2BFF),
    (0x2C00, 0x31FF), (0x3200, 0x33FF), (0x3400, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF),
    (0xE000, 0xFFFF), (0x10000, 0x107FF), (0x10800, 0x10FFF), (0x11000, 0x11FFF),
    (0x12000, 0x1AFFF), (0x1B000, 0x1D7FF), (0x1E000, 0x1FBFF), (0x20000, 0x323AF),
    (0x323B0, 0x10FFFF),
]  # fmt: skip


def random_text(rng, words, specials):
    def piece():
        kind = rng.randrange(12)
        if kind < 3:
            return rng.choice(words)
        if kind < 5:
            return "".join(rng.choice(INTERESTING) for _ in range(rng.randint(1, 6)))
        if kind < 7:
            low, high = rng.choice(PLANES)
            return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 5)))
        if kind == 7:
            return rng.choice(" \n\t\r") * rng.choice([1, 1, 2, 3, 5, 17, 40])
        if kind == 8:
            return str(rng.randrange(10 ** rng.randint(1, 12)))
        if kind == 9 and specials:
            token = rng.choice(specials)
            return token if rng.random() < 0.8 else token[: rng.randrange(len(token)) + 1]
        if kind == 10:
            low, high = rng.choice(PLANES)
            base = chr(rng.randint(low, high))
            return base + "".join(
                chr(rng.choice([0x300, 0x301, 0x323, 0x345, 0x5B0, 0x308, 0x3099, 0x1D165]))
                for _ in range(rng.randint(0, 4))
            )
        return rng.choice(["\r\n", "'s", "'RE", "'ll", " '", "  ", "…", "http://a.b/c?d=e", "αβγ"])

    text = "".join(
        piece() + rng.choice(["", "", " "]) for _ in range(rng.choice([1, 2, 3, 5, 8, 20]))
    )
    return "".join(c for c in text if not 0xD800 <= ord(c) <= 0xDFFF)


WORDS = (
    "the of and HELLO World don't Stage wright naïve café übergroß Привет мир γειά σου int main(void) "
    "return x**2; foo_bar camelCase HTTPServer 𝒳𝒴 résumé ΑΒΓ abc aabb bca cab"
).split(" ")


# ---- small tokenizers of our own


def letter_of():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable}
    table.update({b: chr(256 + i) for i, b in enumerate(others)})
    return table


LETTERS = letter_of()


def as_letters(text):
    return "".join(LETTERS[b] for b in text.encode())


def byte_vocab():
    return {LETTERS[b]: b for b in range(256)}


CHAINS = [  # every prefix of two or more letters is a merge, in this order
    " th", " the", "in", "ing", " a", "an", "and", "er", "re", " w", " wo", "ll", "lo", "he", "hel",
    "hell", "hello", "  ", "    ", "\n\n", "ab", "aa", "bb", "abab", "xx", "xxxx", "é", " é", "你", "好",
    "is", "'s", "12", "123", "00", " 1", "st", " st", "tt",
]  # fmt: skip


def with_merges(vocab, pairs_as_lists):
    merges = []

    def add(left, right):
        if left + right not in vocab:
            vocab[left + right] = len(vocab)
        if (left, right) not in merges:
            merges.append((left, right))

    for chain in CHAINS:
        chain = as_letters(chain)
        half = chain[: len(chain) // 2]
        if len(chain) % 2 == 0 and half * 2 == chain and half in vocab:
            add(half, half)
        for n in range(1, len(chain)):
            if chain[:n] in vocab:
                add(chain[:n], chain[n]) if chain[: n + 1] not in vocab else None
    return [list(m) for m in merges] if pairs_as_lists else [" ".join(m) for m in merges]


def bpe(vocab, merges, **more):
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
        **more,
    }


def added(first, tokens):
    keys = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return [
        {"id": first + i, "content": content, **{k: k in flags for k in keys}}
        for i, (content, *flags) in enumerate(tokens)
    ]


def byte_level(**more):
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
        **more,
    }


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": [*parts, byte_level()]}


def template(before, after):
    def piece(token):
        return {"SpecialToken": {"id": token, "type_id": 0}}

    text = {"Sequence": {"id": "A", "type_id": 0}}
    return lambda ids: {
        "type": "TemplateProcessing",
        "single": [*map(piece, before), text, *map(piece, after)],
        "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            t: {"id": t, "ids": [ids[t]], "tokens": [t]} for t in {*before, *after}
        },
    }


def tokenizer(model, tokens=(), normalizer=None, pre=None, post=None):
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre,
        "post_processor": post,
        "decoder": byte_level(),
        "model": model,
    }


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)
ZOO = [
    r"\b\w+\b|\W", r"(?<=a)b|(?<!\s)\d{2}", r"[^\S\r\n]+", r"a{2}+b|(?:ab){,2}c", r"x{2,3}?|\h+", r"(?>a+)b|\R",
    r"^.|.$", r"\A.|.\z", r"[\w\-]+|\p{^Han}", r"\P{L}+|[\P{N}a-c]{3}", r"(?:a|ab)(?:c|bcd)*+", r"\p{Han}+|[一-龥ァ-ヶ]+",
    r"(?i)[a-f]+|'S", r"a?|b*?", r"x*|(?=e)", r"[\u3040-\u30ff\x{1F300}-\x{1FAFF}\t\x20]+", r"\s?\p{Lu}\p{Ll}+|\D",
    r"(?i:k|[s-t])+(?-i:S)?|\N{3}", r"\p{Letter}+|\p{Decimal_Number}|\p{P}|\p{So}", r"e{0,2}[^a\d\s]\B",
]  # fmt: skip


def small_tokenizers():
    """name -> (tokenizer.json, more texts)"""
    vocab = byte_vocab()
    merges = with_merges(vocab, pairs_as_lists=False)
    pair_merges = with_merges(byte_vocab(), pairs_as_lists=True)
    n = len(vocab)
    ends = added(n, [("<s>", "special"), ("</s>", "special"), ("<pad>", "special", "normalized")])
    ids = {t["content"]: t["id"] for t in ends}
    yield "gpt2", tokenizer(
        bpe(vocab, merges), ends, None, byte_level(add_prefix_space=True, use_regex=True),
        template(["<s>"], ["</s>", "</s>"])(ids),
    ), ["<s>a</s> <pad>b", "x<s> <s>"]  # fmt: skip

    names = ["single_word", "lstrip", "rstrip", "normalized", "special"]
    flags = [
        (f"w{i:02}", *itertools.compress(names, map(int, f"{i:05b}"))) for i in range(32)
    ]
    more = [
        ("<a", "special"), ("<a>", "special"), ("<a>b", "rstrip"), ("e\u0301t", "normalized"),
        ("o\u0308", "special"), (" x", "lstrip"), ("  ", "rstrip", "single_word"), ("ä é", "normalized"),
    ]  # fmt: skip
    texts = []
    for (a, *_), sep in itertools.product(flags, ["{}", "a{}b", " {}  ", "\n{}\u3000x", "é{}\u0301", "-{}-", "{0}{0} {0}"]):
        texts.append(sep.format(a))
    texts += ["<a>b<a>c<a b", "w08  x  x   y", "ét e\u0301t ö o\u0308", "ä é a\u0308 é", "w09    x", "\u200dw16\u0301w16"]
    yield "flags", tokenizer(
        bpe(vocab, pair_merges), added(n, flags + more), {"type": "NFC"}, sequence(split(LLAMA3)),
        byte_level(),
    ), texts  # fmt: skip

    known = {
        "id": vocab["hello"], "content": "hello", "single_word": False, "lstrip": True,
        "rstrip": False, "normalized": True, "special": False,
    }  # fmt: skip
    words = dict(vocab)
    for word in (" world", "worlds", "hello hello", "日本", "w"):
        words.setdefault(as_letters(word), len(words))
    tokens = [known, *added(len(words), [("<s>", "special"), ("<|日本|>", "special"), ("zq",)])]
    ids = {t["content"]: t["id"] for t in tokens}
    yield "ignore_merges", tokenizer(
        bpe(words, merges, ignore_merges=True), tokens, None, sequence(split(CL100K)),
        {"type": "Sequence", "processors": [byte_level(), template(["<s>"], [])(ids)]},
    ), ["hello worlds world", "the  hello hello", "日本 <|日本|>日本<s>", "zq azq"]  # fmt: skip

    yield "deepseek", tokenizer(
        bpe(vocab, merges), ends, {"type": "Sequence", "normalizers": []},
        sequence(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK)),
    ), ["a你b好.c#d 12345x", ".a -b  ~c"]  # fmt: skip

    yield "nfkd", tokenizer(
        bpe(vocab, merges), ends,
        {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "NFKD"}]},
        sequence({"type": "Digits", "individual_digits": True}),
    ), ["①②③ ㋿ ﷺ ｶﾞ 10٣"]  # fmt: skip

    some = {c: i for i, c in enumerate("abcdé")}
    some.update({as_letters(c): i + len(some) for i, c in enumerate(("[unk]", " ", "ab", "é", "bc"))})
    for name, fuse in (("unk", False), ("unk_fused", True)):
        yield name, tokenizer(
            bpe(some, [["a", "b"]], unk_token="[unk]", fuse_unk=fuse), (), {"type": "NFD"},
            byte_level(use_regex=True),
        ), ["ab xyz zab", "zzz", "é"]  # fmt: skip
    twice = [["b", "c"], ["a", "b"], ["b", "c"]]  # the last of equal merges counts
    yield "missing_bytes", tokenizer(bpe(some, twice), (), None, byte_level(use_regex=True)), [
        "ab xyz zab", "zaxb", "\u00e9", "abc bc"]  # fmt: skip

    yield "digits", tokenizer(
        bpe(vocab, merges), (), {"type": "NFKC"},
        {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": False}, byte_level(add_prefix_space=True)]},
    ), ["a1b22 333"]  # fmt: skip


def splits():
    """Split pre-tokenizers of all kinds, each with texts of its own."""
    cuts = ["a--b-c", "--", "-a-", "a - b", "ab--cc..-1--", ".-", "a.b.c", "abc", " - - "]
    behaviors = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
    for behavior, invert, (kind, pattern) in itertools.product(
        behaviors, (False, True), (("String", "-"), ("Regex", "[-.]|a?"), ("Regex", "[ab]|c*"))
    ):
        yield split(pattern, behavior, invert, kind), cuts
    for literal in (".", "a-b", "\u00e9", "[x]*"):
        yield split(literal, "MergedWithNext", kind="String"), ["a.b a-b \u00e9 [x]* x", "..", "xx"]
    for pattern in ZOO:
        yield split(pattern), []
    for pattern in (LLAMA3, CL100K, DEEPSEEK):
        yield split(pattern, "Removed", invert=True), []


def words_of(spec, texts, file):
    """One line a text: the words HuggingFace cuts it into."""
    if "Regex" in spec["pattern"]:
        pattern = Regex(spec["pattern"]["Regex"])
    else:
        pattern = spec["pattern"]["String"]
    behavior = re.sub(r"(?<!^)([A-Z])", r"_\1", spec["behavior"]).lower()
    cutter = Split(pattern, behavior, invert=spec["invert"])
    for i, text in enumerate(texts):
        line = {} if i else {"split": spec}  # it holds for the lines after, too
        line.update(text=text, words=[w for w, _ in cutter.pre_tokenize_str(text)])
        file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


BYTE_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def make_example():
    folder = ROOT / "examples" / "tokenizer"
    special = added(256, [(t, "special") for t in BYTE_TOKENS])
    write_json(
        folder / "tokenizer.json",
        tokenizer(bpe(byte_vocab(), []), special, None, byte_level(), byte_level()),
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1048576,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")

    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    for loaded in (
        AutoTokenizer.from_pretrained(folder),
        PreTrainedTokenizerFast.from_pretrained(folder),
    ):
        text = "<|im_start|>user\nhé 你<|im_end|>"
        ids = [257, *"user\nhé 你".encode(), 258]
        assert loaded(text)["input_ids"] == ids, loaded(text)
        assert loaded.decode(ids) == text
        assert (loaded.eos_token_id, loaded.pad_token_id, len(loaded)) == (258, 256, 259)
    return folder


def make():
    out = ROOT / "tests" / "data" / "tokenizer"
    rng = random.Random(7)
    for name, spec, texts in small_tokenizers():
        folder = out / name
        write_json(folder / "tokenizer.json", spec)
        tokens = [t["content"] for t in spec["added_tokens"]]
        texts = FIXED + texts + [random_text(rng, WORDS, tokens) for _ in range(12)]
        goldens(folder, texts, folder / "golden-ids.jsonl")
    with open(out / "words.jsonl", "w", encoding="utf-8") as file:
        for spec, texts in splits():
            more = FIXED + [random_text(rng, WORDS, []) for _ in range(4)]
            words_of(spec, texts or more, file)
    make_example()


def run(program, **env):
    return subprocess.run([program], env={**os.environ, **env}, check=False).returncode


def compare_ids(args):
    rng = random.Random(args.seed)
    spec = json.loads((args.dir / "tokenizer.json").read_text(encoding="utf-8"))
    specials = [t["content"] for t in spec["added_tokens"]]
    texts = FIXED + [random_text(rng, WORDS, specials) for _ in range(args.count)]
    for path in args.text:
        texts += path.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        (work / "tokenizer.json").symlink_to((args.dir / "tokenizer.json").resolve())
        goldens(args.dir, texts, work / "golden-ids.jsonl")
        return run(args.program, SW_TOKENIZER_GOLDEN=str(work))


def compare_words(args):
    rng = random.Random(args.seed)
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        for spec, texts in splits():
            alphabet = sorted(set("".join(texts))) or list("abcdekstxS1 2-'.é好一カ\t\n\r")
            some = [random_text(rng, WORDS, []) for _ in range(args.count)]
            some += ["".join(rng.choices(alphabet, k=rng.randint(1, 9))) for _ in some]
            words_of(spec, some, file)
        file.flush()
        return run(args.program, SW_TOKENIZER_WORDS=file.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make")
    ids = commands.add_parser("ids")
    ids.add_argument("dir", type=pathlib.Path)
    ids.add_argument("--text", action="append", default=[], type=pathlib.Path)
    for sub, count in ((ids, 20000), (commands.add_parser("words"), 300)):
        sub.add_argument("--program", required=True)
        sub.add_argument("--count", type=int, default=count)
        sub.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.command == "make":
        make()
        return 0
    return compare_ids(args) if args.command == "ids" else compare_words(args)


if __name__ == "__main__":
    raise SystemExit(main())
