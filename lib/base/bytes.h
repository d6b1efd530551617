/* SPDX-License-Identifier: BSD-3-Clause */
/* A growing byte buffer that drops bytes from its front, little-endian numbers, and text. */
#ifndef BERTH_BASE_BYTES_H
#define BERTH_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* data is the first byte that was not dropped. A buffer of all zeros is empty. */
struct bytes {
	unsigned char *data;
	size_t size;
	unsigned char *block; /* the malloced block; data points into it */
	size_t room;	      /* bytes in block */
};

void bytes_free(struct bytes *bytes); /* frees what it holds and clears it */
/* Make room for size bytes at data, keeping the contents. Return 0, or -1 if memory is out (nothing
 * has changed then). */
int bytes_reserve(struct bytes *bytes, size_t size);
/* Append size bytes. Return 0, or -1 if memory is out. */
int bytes_add(struct bytes *bytes, const void *data, size_t size);
/* Append size bytes for the caller to fill in. Return NULL if memory is out. */
unsigned char *bytes_extend(struct bytes *bytes, size_t size);
/* Drop the first size bytes (size <= bytes->size). */
void bytes_drop(struct bytes *bytes, size_t size);

/* Make room for one more entry of entry_size bytes behind the count entries of an array. array is
 * the address of its pointer, and *room the number of entries that fit. Return false if memory is
 * out (nothing has changed then). */
bool array_reserve(void *array, size_t count, size_t *room, size_t entry_size);

/* Add a zeroed entry behind an array that is *count entries long; it grows by this one. Return the
 * entry, or NULL if memory is out (nothing has changed then). */
void *array_add(void *array, size_t *count, size_t entry_size);

/* Format a malloced text; NULL if memory is out. */
char *text_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Append formatted text to a text in an array of size bytes, cut at its end. */
void text_append(char *text, size_t size, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* The length of the UTF-8 character at text (a NUL ends the text), or 0 if it is invalid. Overlong
 * forms, surrogates and values above U+10FFFF are refused (RFC 3629, section 4). */
size_t text_utf8_length(const char *text);

/* The length of the control character or bidirectional mark at text, or 0 if there is none. A
 * terminal obeys the former, and the latter change the order in which text appears. */
size_t text_control_length(const char *text);

/* Replace each byte of these, except for the characters in keep, in text from others that berth
 * quotes. */
void text_replace_controls(char *text, char by, const char *keep);

/* Return a malloced copy of size bytes with a NUL after them, or NULL if memory is out. */
void *bytes_copy(const void *data, size_t size);

/* A list of texts that grows, such as a command line; zeroed: empty. Whether memory was out shows
 * at the end. */
struct words {
	struct bytes text; /* each with its NUL */
	size_t count;
	bool failed;
};
void words_add(struct words *words, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* list ends with NULL; NULL: empty. */
void words_add_list(struct words *words, const char *const *list);
/* As execve takes them, in one malloced block; NULL if memory was out. words is empty again. */
char **words_end(struct words *words);
/* The same as one text, with this character between the words. */
char *words_join(struct words *words, char between);

void bytes_put_u16(unsigned char *out, uint16_t value);
void bytes_put_u32(unsigned char *out, uint32_t value);
void bytes_put_u64(unsigned char *out, uint64_t value);
uint16_t bytes_get_u16(const unsigned char *in);
uint32_t bytes_get_u32(const unsigned char *in);
uint64_t bytes_get_u64(const unsigned char *in);

/* Append a list of byte strings: a 4-byte count, then each string with its NUL. Program arguments
 * and environments need not be UTF-8. */
int bytes_add_strings(struct bytes *bytes, const char *const *strings, size_t count);
/* Take one list off the front of *at, which has *left bytes. *out is a malloced, NULL-terminated
 * array; its strings point into the buffer. Return 0, or -ERR_DATA if the list is cut short. */
int bytes_next_strings(const unsigned char **at, size_t *left, const char ***out, size_t *count,
		       struct error *err);

#endif
