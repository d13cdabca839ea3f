/* SPDX-License-Identifier: Apache-2.0 */
/* The shared library is made of the layers; CMake wants one source of its own. */
typedef int headrace_empty_translation_unit;
