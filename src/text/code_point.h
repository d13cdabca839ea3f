/* SPDX-License-Identifier: Apache-2.0 */
/** Questions about single code points, as Unicode defines the answers, and white space at the edges of a text. */
#ifndef HEADRACE_TEXT_CODE_POINT_H
#define HEADRACE_TEXT_CODE_POINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool code_point_is_space(uint32_t cp);  /* White_Space */
bool code_point_is_mark(uint32_t cp); /* general category M, by Unicode 9 */
/** Assigned after Unicode 9, and newer normal forms do something with it: to the published normal forms it is a stranger. */
bool code_point_is_stranger(uint32_t cp);
bool code_point_is_word(uint32_t cp);   /* \w of UTS 18: alphabetic, marks, decimal digits, connectors, joiners */
uint32_t code_point_lower(uint32_t cp); /* simple mapping */

/** The code point that ends at `at` (> 0) in valid UTF-8; *start is where it begins. */
uint32_t code_point_before(const char *text, size_t at, size_t *start);
/** Where white space from `at` on ends; where white space before `end` begins, at least `from`. */
size_t code_point_skip_space(const char *text, size_t n, size_t at);
size_t code_point_strip_space(const char *text, size_t from, size_t end);

#endif
