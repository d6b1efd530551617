/* SPDX-License-Identifier: BSD-3-Clause */
/* A fuzz target: one file fuzz_NAME.c that defines this function and a row in meson.build. It must
 * accept any bytes, leave nothing behind (memory, files, processes) and abort (CHECK) if the tested
 * code breaks its contract. */
#ifndef BERTH_FUZZ_H
#define BERTH_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* data: size bytes, borrowed. Always 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* assert that NDEBUG does not silence. */
#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #what);       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* The input as a string: a malloced copy up to its first NUL, of exactly that size, so that a
 * sanitizer detects a read past it. */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
	char *text = strndup(size ? (const char *)data : "", size);

	CHECK(text);
	return text;
}

#endif
