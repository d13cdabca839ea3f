/* SPDX-License-Identifier: Apache-2.0 */
/** Between the public header and the layers below: codes and texts are the same, so conversion is a copy. */
#ifndef HEADRACE_ENGINE_API_IMPL_H
#define HEADRACE_ENGINE_API_IMPL_H

#include "base/textbuf.h"
#include "headrace/headrace.h"

_Static_assert((int)STATUS_BUG == (int)HEADRACE_BUG && (int)STATUS_NOT_NOW == (int)HEADRACE_NOT_NOW && (int)STATUS_OK == (int)HEADRACE_OK, "public and internal codes agree");
_Static_assert((int)HEADRACE_ERROR_TEXT_BYTES == (int)ERROR_TEXT_BYTES, "public and internal error texts have one size");

/** Copy the detail out; returns the code for the caller to return. */
headrace_status api_error(headrace_error *out, status code, const error *err);

/** A heap text for the caller (freed by headrace_text_free), from a buffer. */
headrace_status api_text(const textbuf *b, char **text, headrace_error *out);

#endif
