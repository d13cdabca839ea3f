#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write text cases with the ids that two independent tokenizers agree on.

The texts come from a seeded generator. Each is tokenized by the Python package
`tokenizers`, set up with the vocabulary and merges that the GGUF file holds and
the pre-tokenizer that SmolLM2 is published with, and by llama-server of a given
llama.cpp build. A case on which the two differ is left out of the file and
counted in the report. The texts hang on the Unicode version of Python's own
tables; the committed file was made with 14.0, that of Python 3.11.

  make_token_cases.py --bin DIR --model FILE --out tests/data/smollm2_tokens.json

Needs the Python packages `tokenizers` and `gguf`.
"""

import argparse
import datetime
import json
import os
import random
import sys
import unicodedata

import record_llamacpp as llamacpp

SEED = 20250207
TARGET_BYTES = 115_000

WORDS = (
    "the of and to in a is that for it was on are as with his they at be this from have or by one "
    "had not but what all were when we there can an your which their said if do will each about "
    "water wheel channel gate river stone quickly unbelievable antidisestablishmentarianism "
    "internationalisation photosynthesis Xylophone ZIGZAG iPhone McDonald O'Brien naïve façade "
    "co-operate e-mail state-of-the-art U.S.A. e.g. i.e. Mr. Dr. etc. vs. 1st 2nd 3rd"
).split()
CONTRACTIONS = ["it's", "IT'S", "don't", "we're", "We'RE", "I've", "I'm", "you'll", "he'd", "'tis",
                "'s", "'t", "' s", "rock'n'roll", "l'été", "it’s", "y'all'd've", "'''", "'re're",
                "dogs'", "'m", "'ll", "'S", "'LL", "a 's b"]
CODE = [
    "for (int i = 0; i < n; i++) {\n\tsum += a[i] * b[i];\n}\n",
    "def f(x: int = 10, *args, **kw) -> None:\n    return {k: v for k, v in kw.items()}  # ok\n",
    "SELECT name, COUNT(*) FROM users WHERE age >= 18 AND city <> 'Paris' GROUP BY 1;\n",
    "fn main() -> Result<(), Box<dyn Error>> {\n    println!(\"{:?}\", vec![1u8; 16]);\n    Ok(())\n}\n",
    "<div class=\"row\" id='x1'><a href=\"/a/b?c=d&e=%20f\">Link&nbsp;&lt;1&gt;</a></div>\n",
    "{\"key\": [1, 2.50, -3e-10, null, true], \"s\": \"a\\n\\t\\u00e9\\\\\"}\n",
    "#!/bin/sh\nset -eu\nfor f in *.c; do printf '%s\\n' \"${f%.c}\" | sed 's/[^a-z]/_/g'; done\n",
    "#define MAX(a, b) ((a) > (b) ? (a) : (b))\n#ifdef __AVX512F__\n#endif\n",
    "\\begin{equation}\n  \\int_0^\\infty e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2}\n\\end{equation}\n",
    "x = y ? z : w; /* comment */ // another\n\n\n\nif(!p||*p==0)goto fail;\n",
    "    mov     rax, QWORD PTR [rdi+0x18]\n    vfmadd231ps zmm0, zmm1, zmm2\n",
    "diff --git a/x b/x\n@@ -1,4 +1,5 @@\n-old line\n+new line\n context\n",
    "https://example.org:8080/~user/index.html?q=a+b&lang=en#top mailto:me@example.org\n",
    "class Été<T extends Comparable<? super T>> { private final Map<String, List<T>> m = null; }\n",
    "| a | b |\n|---|:-:|\n| `x` | **y** |\n\n- [ ] todo\n- [x] done\n\n> quote\n\n```c\nint z;\n```\n",
    "0xDEADBEEF 0b1010 0o755 1_000_000 3.14159 6.022e23 1e-9 .5 5. 0x1.8p3 192.168.0.1 12:34:56\n",
]
SCRIPTS = [
    "Où est le garçon ? Il a mangé un gâteau à la crème, cœur naïf. « Déjà ! »",
    "Größe, Straße, Übermut, Ärger, Öl; ẞ ß ſ; Żółć gęślą jaźń; Příliš žluťoučký kůň",
    "El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia. ¿Dónde está? ¡Aquí!",
    "Γαζέες καὶ μυρτιὲς δὲν θὰ βρῶ πιὰ στὸ χρυσαφὶ ξέφωτο. Σίσυφος ΣΊΣΥΦΟΣ",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак, ґанок, ў, ђ, Ѣ",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر. السَّلَامُ عَلَيْكُمْ ٢٠٢٥",
    "דג סקרן שט בים מאוכזב ולפתע מצא לו חברה. שָׁלוֹם עֲלֵיכֶם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण। १२३४ क्ष त्र ज्ञ",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน ๑๒๓",
    "我能吞下玻璃而不伤身体。天地玄黃,宇宙洪荒。〇一二三,「引號」、《書名》。",
    "いろはにほへと ちりぬるを。カタカナ、ひらがな、漢字、ﾊﾝｶｸ、ー々〆ヶ。",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. ㄱㄴㄷ 가각",
    "მიყვარხარ შენ. Ես կարող եմ ապակի ուտել։ ሰማይ አይታረስ ንጉሥ አይከሰስ።",
    "ཤེལ་སྒོ་ཟ་ནས། မြန်မာဘာသာ ខ្ញុំអាចញុំកញ្ចក់ ຂອ້ຍກິນແກ້ວໄດ້ ᠮᠣᠩᠭᠣᠯ",
    "நான் கண்ணாடி சாப்பிடுவேன். నేను గాజు తినగలను. ನಾನು ಗಾಜನ್ನು. আমি কাচ। ਪੰਜਾਬੀ ગુજરાતી සිංහල",
    "Tôi có thể ăn thủy tinh mà không hại gì. Ọ̀rọ̀ Yorùbá. ʻŌlelo Hawaiʻi. Türkçe İıŞşĞğ",
    "ᚠᛇᚻ᛫ᛒᛦᚦ 𐌲𐌻𐌴𐍃 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝕞𝕒𝕥𝕙 𝟘𝟙𝟚 𓀀𓂀 𒀀𒁀 𐎀𐎁 ꙮ ﷽ ﬁﬂ Ǆǅǆ",
]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🇫🇷🇯🇵", "❤️", "❤", "☺︎", "1️⃣", "#️⃣", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🧑🏿‍🚀", "🫠", "🪿",
         "™", "©", "♻️", "→", "⇒", "∀x∈ℝ", "½", "‰", "€£¥₿", "…", "—", "–", "•", "█▓▒░", "╔═╗", "☃"]
COMBINING = ["e\u0301", "n\u0303o", "a\u0308\u0304", "Z\u0351\u036b\u0343\u032a\u0302\u035aalgo",
             "\u0301", " \u0301", "\u0301abc", "x\u20d7", "1\u0303", "1\u20e3", "\u0e01\u0e49",
             "\u1100\u1161\u11a8", "\u05d0\u05b7", "\u0915\u093f", "a\u200d\u0301b", "\u0345\u0399",
             "\ufe0f", "\U000e0100", "A\u030a\u00c5\u212b", "\u0323\u0307q\u0307\u0323"]
SPACES = [" ", "  ", "   ", "       ", "\t", "\t\t", " \t ", "\n", "\n\n", "\r\n", "\r", "\n \n", " \n",
          "\n  ", "\v", "\f", "\u0085", "\u00a0", "\u00a0\u00a0", " \u00a0", "\u1680", "\u2000",
          "\u2003", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u200b",
          "\u2060", "\ufeff", "\u180e", "\x1c", "\x1f", " " * 33, "\n" * 9, "\t" * 17,
          "\n" + " " * 40]
DIGITS = ["0", "7", "12", "123", "2025", "1,234,567.89", "3.14", "007", "1e10", "٣٤٥", "१२३", "１２３", "²³",
          "x²", "Ⅷ", "ⅳ", "①②", "¼ cup", "½", "〇", "𝟙𝟚", "໑", "0.1+0.2=0.30000000000000004",
          "+1 (555) 010-9999", "A4", "4K", "B2B", "n1", "1n", " 1", "  1", "1 ", "1  2", "12 34",
          "-5", "10%", "$9.99", "v1.2.3-rc4", "5'11\"", "₁₂", "៣", "꧑", "𐒡"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>",
            "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>", "<issue_closed>",
            "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>",
            "<jupyter_script>", "<empty_output>"]
ALMOST = ["<|im_start|", "<|im_start", "|im_start|>", "<im_start>", "<|IM_START|>", "< |im_end|>",
          "<|im_<|im_end|>start|>", "<<|im_end|>>", "<|im_end|><|im_end|>", "<|im_end|>\n", "<|eot|>",
          "</s>", "<s>", "<bos>", "<eos>", "<|endoftext|", "<|endoftext|>|>", "<|endof<|endoftext|>text|>",
          "[INST]", "<repo_name", "<repo_name>>", "<filename>.c", "<file_sep><file_sep>", "<unk>",
          "<0x0A>", "Ġ", "Ċ", "ĠĠthe", "âĢĻ"]
PUNCTUATION = ["!", "!!!", "?!", "...", "....", "--", "---", "----------------", "==", "=>", "->", "::",
               "&&", "||", "<<=", "();", "({[", "]})", "\"\"\"", "``", "''", "@@", "##", "####", "$$",
               "%%", "^", "~~", "*", "**", "_", "__", "___init___", "\\", "\\\\", "/", "//", "/*", "*/",
               "“q”", "„q“", "‚q‘", "«q»", "¿", "¡", "·", "、", "。", "！", "（）", "~/.cfg", "a_b", "_x", "x_"]
# Ranges that the random code points are drawn from, in equal shares.
RANGES = [(0x00, 0x1f), (0x20, 0x7e), (0x7f, 0xff), (0x100, 0x24f), (0x250, 0x36f), (0x370, 0x52f),
          (0x530, 0x6ff), (0x700, 0x10ff), (0x1100, 0x1fff), (0x2000, 0x2bff), (0x2c00, 0x2fff),
          (0x3000, 0x4dff), (0x4e00, 0x9fff), (0xa000, 0xd7ff), (0xe000, 0xf8ff), (0xf900, 0xffff),
          (0x10000, 0x11fff), (0x12000, 0x1cfff), (0x1d000, 0x1f9ff), (0x1fa00, 0x3ffff),
          (0x40000, 0xdffff), (0xe0000, 0x10ffff)]


def prose(rng):
    out = []
    for _ in range(rng.randrange(3, 60)):
        word = rng.choice(WORDS)
        if rng.random() < 0.15:
            word = rng.choice([word.capitalize(), word.upper(), rng.choice(CONTRACTIONS)])
        out.append(word + rng.choice(["", "", "", "", "", ",", ".", ";", ":", "?", "!", ")"]))
    return " ".join(out)


def code(rng):
    lines = "".join(rng.choice(CODE) for _ in range(rng.randrange(1, 4))).split("\n")
    indent = rng.choice(["", "", "  ", "    ", "\t", "\t\t", " " * 12])
    return "\n".join(indent + line for line in lines)


def pieces(rng, pool, most, glue=("", " ", " ", "\n", ", ")):
    return rng.choice(glue).join(rng.choice(pool) for _ in range(rng.randrange(1, most)))


def random_points(rng):
    """Code points whose class no later Unicode version than 14.0 decides: not those unassigned
    there, except in the planes that are all unassigned or private."""
    out = []
    for _ in range(rng.randrange(1, 24)):
        low, high = rng.choice(RANGES)
        point = rng.randint(low, high)
        if point >= 0x40000 or unicodedata.category(chr(point)) != "Cn":
            out.append(chr(point))
        if rng.random() < 0.2:
            out.append(rng.choice([" ", "a", "1", "'s", "\n"]))
    return "".join(out)


def repeated(rng):
    unit = rng.choice(["a", "ab", "ha", " ", "\n", "=", "the ", "0", "é", "😀", "aaaaab", "\u0301", "字",
                       " \n", "x ", "AbC", "'s", "<|im_end|>", "\x00", "-"])
    return unit * rng.choice([2, 3, 5, 8, 17, 64, 127, 256])


def script_slice(rng):
    text = rng.choice(SCRIPTS)
    start = rng.randrange(len(text))
    return text[start:start + rng.randrange(1, 80)]


def mixture(rng):
    makers = [lambda r: r.choice(WORDS), lambda r: r.choice(CONTRACTIONS), script_slice,
              lambda r: r.choice(EMOJI), lambda r: r.choice(COMBINING), lambda r: r.choice(SPACES),
              lambda r: r.choice(SPACES), lambda r: r.choice(DIGITS), lambda r: r.choice(PUNCTUATION),
              lambda r: r.choice(SPECIALS), lambda r: r.choice(ALMOST), random_points]
    return "".join(rng.choice(makers)(rng) for _ in range(rng.randrange(2, 20)))


KINDS = [
    ("prose", prose), ("code", code), ("mixture", mixture), ("mixture", mixture),
    ("scripts", lambda r: pieces(r, SCRIPTS, 3)), ("scripts", script_slice),
    ("emoji", lambda r: pieces(r, EMOJI, 12)), ("combining", lambda r: pieces(r, COMBINING, 10)),
    ("spaces", lambda r: "".join(r.choice(SPACES) + r.choice(["", "", "a", "Ab", "1", ".", "é"])
                                 for _ in range(r.randrange(1, 10)))),
    ("digits", lambda r: pieces(r, DIGITS, 12)),
    ("special", lambda r: pieces(r, SPECIALS + ALMOST + WORDS[:20], 10)),
    ("punctuation", lambda r: pieces(r, PUNCTUATION, 14)),
    ("contractions", lambda r: pieces(r, CONTRACTIONS, 8)),
    ("points", random_points), ("repeated", repeated),
]


def make_texts():
    """(kind, text, special) in a fixed order; special says whether special tokens are parsed."""
    rng = random.Random(SEED)
    seen, out, size = set(), [], 0

    def add(kind, text, special=True):
        nonlocal size
        if (text, special) not in seen:
            seen.add((text, special))
            out.append((kind, text, special))
            size += len(text.encode())

    add("empty", "")
    for pool, kind in ((SPECIALS, "special"), (ALMOST, "special"), (SPACES, "spaces"),
                       (DIGITS, "digits"), (CONTRACTIONS, "contractions"), (EMOJI, "emoji"),
                       (COMBINING, "combining"), (PUNCTUATION, "punctuation"), (SCRIPTS, "scripts"),
                       (CODE, "code")):
        for text in pool:
            add(kind, text)
    for text in SPECIALS + ALMOST:
        add("special", "a " + text + " b", False)
    for number in range(256):
        if number < 0x21 or 0x7f <= number:
            add("points", "a" + chr(number) + "b")
    while size < TARGET_BYTES:
        kind, maker = rng.choice(KINDS)
        text = maker(rng)
        if len(text.encode()) <= 1500:
            add(kind, text, not ("<" in text and rng.random() < 0.25))
    return out


def hugging_face(model):
    """SmolLM2's published tokenizer, rebuilt from the GGUF file's vocabulary and merges."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    fields = GGUFReader(model).fields
    tokens, types, merges = (fields["tokenizer.ggml." + key].contents()
                             for key in ("tokens", "token_type", "merges"))
    out = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)},
                               [tuple(merge.split(" ")) for merge in merges]))
    out.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    out.decoder = decoders.ByteLevel()
    out.add_special_tokens([AddedToken(token, special=True, normalized=False)
                            for token, kind in zip(tokens, types) if kind == 3])
    return out


def quoted(text):
    """A JSON string in UTF-8, with what an editor would not show plainly as an escape."""
    out = []
    for c in text:
        plain = c == " " or (c.isprintable() and unicodedata.combining(c) == 0 and
                             unicodedata.bidirectional(c) not in ("R", "AL", "AN"))
        out.append(json.dumps(c, ensure_ascii=not plain)[1:-1])
    return '"' + "".join(out) + '"'


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--bin", required=True, help="folder of the llama.cpp binaries")
    parser.add_argument("--model", required=True, help="GGUF file")
    parser.add_argument("--date", help="date to record in place of today's")
    parser.add_argument("--out", required=True, help="file to write")
    args = parser.parse_args()
    import tokenizers
    reference = hugging_face(args.model)
    rows, differing, lossy = [], [], 0
    counts = {}
    with llamacpp.Server(args.bin, args.model) as server:
        for kind, text, special in make_texts():
            reference.encode_special_tokens = not special
            ids = reference.encode(text, add_special_tokens=False).ids
            other = server.tokenize(text, parse_special=special, add_special=True)
            if ids != other:
                differing.append((kind, text, special, ids, other))
                continue
            decoded = reference.decode(ids, skip_special_tokens=False) == text
            lossy += not decoded
            counts[kind] = counts.get(kind, 0) + 1
            rows.append('{"kind":%s,%s%s"text":%s,"ids":%s}' % (
                json.dumps(kind), "" if special else '"special":false,',
                "" if decoded else '"lossy":true,', quoted(text),
                json.dumps(ids, separators=(",", ":"))))
    source = {
        "recorded_by": "tools/make_token_cases.py", "seed": SEED,
        "implementations": ["tokenizers " + tokenizers.__version__ + " (Python package), "
                            "Sequence[Digits(individual_digits), ByteLevel(no prefix space, regex)]",
                            "llama.cpp llama-server /tokenize, " +
                            llamacpp.version_of(llamacpp.binary(args.bin, "llama-server"))],
        "model_file": os.path.basename(args.model),
        "model_sha256": llamacpp.sha256_of(args.model),
        "unicode": "texts made with Unicode " + unicodedata.unidata_version,
        "date": args.date or datetime.date.today().isoformat(),
        "cases": len(rows), "left_out_because_the_two_differ": len(differing),
    }
    meaning = {
        "special": "false where special tokens in the text are to be read as text; true elsewhere",
        "lossy": "true where decoding the ids does not give the text back: the vocabulary lacks the "
                 "tokens of some bytes, and both implementations drop those",
    }
    with open(args.out, "w", encoding="utf-8") as f:
        f.write('{\n"provenance": %s,\n"meaning": %s,\n"cases": [\n%s\n]\n}\n' % (
            json.dumps(source, indent=1), json.dumps(meaning, indent=1), ",\n".join(rows)))
    print(f"wrote {args.out}: {len(rows)} cases {counts}, {lossy} of them lossy")
    print(f"{len(differing)} left out because the two differ")
    for kind, text, special, ids, other in differing:
        at = next((i for i, (a, b) in enumerate(zip(ids, other)) if a != b), min(len(ids), len(other)))
        print(f"  {kind} special={special} {text!r}\n    first at {at}: tokenizers "
              f"{ids[at:at + 8]} llama.cpp {other[at:at + 8]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
