/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The alphabet of byte-level vocabularies (GPT-2, 2019): each byte is written as one printable character. Bytes 0x21-0x7e, 0xa1-0xac and
 * 0xae-0xff are the code point of the same number; the other 68, in ascending order, are U+0100, U+0101, and so on.
 */
#ifndef HEADRACE_TEXT_BYTE_ALPHABET_H
#define HEADRACE_TEXT_BYTE_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** The code point that writes a byte. */
uint32_t byte_alphabet_char(uint8_t byte);
/** The byte that a code point writes, or -1. */
int byte_alphabet_byte(uint32_t cp);

/**
 * Spelled text back to bytes: out has room for n bytes. False (out undefined) when a character is not of the alphabet or s is not UTF-8.
 */
bool byte_alphabet_to_bytes(const char *s, size_t n, char *out, size_t *n_out);
/** Bytes to spelled text: out has room for 2 * n. Returns the length. */
size_t byte_alphabet_spell(const char *bytes, size_t n, char *out);

/** The byte that a token written <0xNN> stands for, as other vocabularies name bytes; -1 when it is not written so. */
int byte_token_value(const char *s, size_t n);

#endif
