/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The names that GGUF files give to pre-tokenizers (`tokenizer.ggml.pre`), and the patterns they stand for: those of the tokenizer.json
 * files that the names were made for, in their own dialect. Several names stand for one list. A name that is not here is refused.
 */
#include <string.h>

#include "text/pre_tokenizer.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define RESPELL "" /* from here on the text is spelled in the byte alphabet */
#define WORDS "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define MARKS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+"
#define WIDE "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define LATIN                                                                                                                              \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-\\x{293}\\x{295}-\\x{2af}"                       \
    "\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}"                         \
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}"                           \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}"                   \
    "\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}"                    \
    "\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}"                    \
    "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"                    \
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}"                     \
    "\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"                     \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"                    \
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}"                   \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"                            \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

static const char *const gpt2[] = {GPT2, NULL};
static const char *const digits_gpt2[] = {"\\p{N}", GPT2, NULL};
static const char *const unnamed[] = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]", NULL};
static const char *const falcon[] = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, RESPELL, "\\p{N}+", "[0-9][0-9][0-9]", NULL};
static const char *const llama3[] = {CONTRACTIONS "|" WORDS "|\\p{N}{1,3}|" MARKS "|" SPACES, NULL};
/* Behind a blank there is no line end left to find in a run of white space that an earlier piece began; to look for one anew at each piece
   would take the square of its length. */
static const char *const jais2[] = {CONTRACTIONS
                                    "|" WORDS "|\\p{N}{1,3}|" MARKS
                                    "|(?<![^\\S\\r\\n])\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)"
                                    "|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}",
                                    NULL};
static const char *const qwen2[] = {CONTRACTIONS "|" WORDS "|\\p{N}|" MARKS "|" SPACES, NULL};
static const char *const qwen35[] = {
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES, NULL};
static const char *const bailing[] = {
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+", NULL};
static const char *const seed_coder[] = {CONTRACTIONS "|" WORDS "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES, NULL};
static const char *const exaone_moe[] = {
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?"
                 "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
    NULL};
static const char *const tekken[] = {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
                                     "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
                                     NULL};
static const char *const gpt4o[] = {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
                                    "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
                                    NULL};
#define NO_HAN(set) "(?:(?!\\p{Han})" set ")"
static const char *const kimi_k2[] = {
    "\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?" NO_HAN(UPPER) "*" NO_HAN(LOWER) "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" NO_HAN(UPPER) "+" NO_HAN(
        LOWER) "*" CONTRACTIONS "?|\\p{N}{1,3}|" MARKS "|" SPACES,
    NULL};
static const char *const deepseek_llm[] = {"[\\r\\n]",
                                           "\\s?[" LATIN "]+",
                                           "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
                                           "\\s+$",
                                           WIDE,
                                           "\\p{N}+",
                                           NULL};
static const char *const deepseek_coder[] = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", WIDE, "\\p{N}", NULL};
static const char *const deepseek_v3[] = {
    "\\p{N}{1,3}", CJK,
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES,
    NULL};
static const char *const bloom[] = {" ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+", NULL};
static const char *const viking[] = {" ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+", "\\p{N}", NULL};

/* name, patterns, nfc, ignore_merges, adds_bos */
static const pre_named names[] = {
    {"default", unnamed, false, false, false},
    {"gpt-2", gpt2, false, false, false},
    {"phi-2", gpt2, false, false, false},
    {"mpt", gpt2, true, false, false},
    {"olmo", gpt2, true, false, false},
    {"jais", gpt2, false, false, false},
    {"trillion", gpt2, false, false, false},
    {"granite-docling", gpt2, false, false, false},
    {"exaone4", gpt2, false, false, false},
    {"a.x-4.0", gpt2, false, false, false},
    {"gigachat", gpt2, false, false, false},
    {"mellum", gpt2, false, false, false},
    {"smollm", digits_gpt2, false, false, false},
    {"starcoder", digits_gpt2, false, false, false},
    {"refact", digits_gpt2, false, false, false},
    {"command-r", digits_gpt2, true, false, false},
    {"codeshell", digits_gpt2, false, false, false},
    {"exaone", digits_gpt2, false, false, false},
    {"minerva-7b", digits_gpt2, false, false, false},
    {"mellum2", digits_gpt2, false, false, false},
    {"falcon", falcon, false, false, false},
    {"llama3", llama3, false, true, true},
    {"llama-v3", llama3, false, true, true},
    {"llama-bpe", llama3, false, true, true},
    {"falcon3", llama3, false, true, true},
    {"falcon-h1", llama3, false, true, true},
    {"pixtral", llama3, false, true, true},
    {"midm-2.0", llama3, false, true, true},
    {"lfm2", llama3, false, true, true},
    {"dbrx", llama3, false, false, false},
    {"smaug-bpe", llama3, false, false, false},
    {"chatglm-bpe", llama3, false, false, false},
    {"glm4", llama3, false, true, false},
    {"glm5", llama3, false, true, false},
    {"jais-2", jais2, false, false, false},
    {"qwen2", qwen2, true, false, false},
    {"deepseek-r1-qwen", qwen2, true, false, false},
    {"stablelm2", qwen2, false, false, false},
    {"hunyuan", qwen2, false, false, false},
    {"solar-open", qwen2, false, false, false},
    {"megrez", qwen2, true, false, false},
    {"grok-2", qwen2, false, false, false},
    {"qwen35", qwen35, true, false, false},
    {"bailingmoe", bailing, false, false, false},
    {"bailingmoe2", bailing, false, false, false},
    {"llada-moe", bailing, false, false, false},
    {"seed-coder", seed_coder, false, false, false},
    {"exaone-moe", exaone_moe, false, false, false},
    {"tekken", tekken, false, true, true},
    {"gpt-4o", gpt4o, false, false, false},
    {"llama4", gpt4o, false, false, false},
    {"kanana2", gpt4o, false, false, false},
    {"minimax-m2", gpt4o, false, false, false},
    {"kimi-k2", kimi_k2, false, false, false},
    {"deepseek-llm", deepseek_llm, false, false, false},
    {"deepseek-coder", deepseek_coder, false, false, false},
    {"deepseek-v3", deepseek_v3, false, false, false},
    {"hunyuan-dense", deepseek_v3, false, false, false},
    {"joyai-llm", deepseek_v3, false, false, false},
    {"bloom", bloom, false, false, false},
    {"poro-chat", bloom, false, false, false},
    {"gpt3-finnish", bloom, false, false, false},
    {"viking", viking, false, false, false},
};

const pre_named *pre_named_find(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i].name) == n && memcmp(names[i].name, name, n) == 0) return &names[i];
    return NULL;
}

const char *pre_named_at(size_t i) { return i < sizeof names / sizeof names[0] ? names[i].name : NULL; }

status pre_named_add(const pre_named *named, pre_tokenizer *p, error *err) {
    bool spelled = false;
    for (const char *const *source = named->patterns; *source; source++) {
        if (**source == '\0') {
            TRY(pre_tokenizer_add(p, PRE_SPELL, NULL, err));
            spelled = true;
        } else {
            TRY(pre_tokenizer_add_split(p, *source, strlen(*source), false, PRE_ISOLATED, false, err));
        }
    }
    return spelled ? pre_tokenizer_add(p, PRE_UNSPELL, NULL, err) : STATUS_OK;
}
