/* SPDX-License-Identifier: BSD-3-Clause */
/* A growing buffer of bytes with a consumed front, and little-endian numbers. */
#ifndef BERTH_BASE_BYTES_H
#define BERTH_BASE_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* data: the first byte that was not dropped. All zeros is an empty buffer. */
struct bytes {
	unsigned char *data;
	size_t size;
	unsigned char *block; /* what was malloced; data lies within */
	size_t room;	      /* of block */
};

void bytes_free(struct bytes *bytes); /* frees what it holds and clears it */
/* Room for size bytes at data, contents kept. 0, or -1: memory out, nothing changed. */
int bytes_reserve(struct bytes *bytes, size_t size);
/* Append; 0 or -1. */
int bytes_add(struct bytes *bytes, const void *data, size_t size);
/* Append size bytes to be filled by the caller; NULL: memory out. */
unsigned char *bytes_extend(struct bytes *bytes, size_t size);
/* Forget the first size bytes (size <= bytes->size). */
void bytes_drop(struct bytes *bytes, size_t size);

void bytes_put_u16(unsigned char *out, uint16_t value);
void bytes_put_u32(unsigned char *out, uint32_t value);
void bytes_put_u64(unsigned char *out, uint64_t value);
uint16_t bytes_get_u16(const unsigned char *in);
uint32_t bytes_get_u32(const unsigned char *in);
uint64_t bytes_get_u64(const unsigned char *in);

/* Lists of byte strings (program arguments and environments need not be UTF-8): a count (4 bytes)
 * and the strings, each ended by a NUL. */
int bytes_add_strings(struct bytes *bytes, const char *const *strings, size_t count);
/* Take one list off the front of *at (size *left): *out malloced, NULL-terminated, its strings
 * borrowed from the buffer. -ERR_DATA: it is cut short. */
int bytes_next_strings(const unsigned char **at, size_t *left, const char ***out, size_t *count,
		       struct error *err);

#endif
