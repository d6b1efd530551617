/* SPDX-License-Identifier: BSD-3-Clause */
/* Dropping bytes only moves data. The room in front is used again once the buffer is empty or must
 * grow, so a queue is not copied for each message that leaves it. */
#include "base/bytes.h"

#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bytes_free(struct bytes *bytes)
{
	free(bytes->block);
	memset(bytes, 0, sizeof *bytes);
}

int bytes_reserve(struct bytes *bytes, size_t size)
{
	size_t front = bytes->block ? (size_t)(bytes->data - bytes->block) : 0;

	if (bytes->block && bytes->room - front >= size)
		return 0;
	/* Copy to the front only if more was dropped than is copied: the cost then stays in
	 * proportion. */
	if (bytes->block && bytes->room >= size && front >= bytes->size) {
		memcpy(bytes->block, bytes->data, bytes->size);
		bytes->data = bytes->block;
		return 0;
	}
	size_t room = bytes->room ? bytes->room : 512;

	while (room < size) {
		if (room > SIZE_MAX / 2)
			return -1;
		room *= 2;
	}
	/* Not realloc, which would copy the dropped bytes, too. */
	unsigned char *block = malloc(room);

	if (!block)
		return -1;
	if (bytes->size)
		memcpy(block, bytes->data, bytes->size);
	free(bytes->block);
	bytes->block = bytes->data = block;
	bytes->room = room;
	return 0;
}

unsigned char *bytes_extend(struct bytes *bytes, size_t size)
{
	if (size > SIZE_MAX - bytes->size || bytes_reserve(bytes, bytes->size + size))
		return NULL;
	bytes->size += size;
	return bytes->data + bytes->size - size;
}

int bytes_add(struct bytes *bytes, const void *data, size_t size)
{
	unsigned char *at = bytes_extend(bytes, size);

	if (!at)
		return -1;
	if (size)
		memcpy(at, data, size);
	return 0;
}

void bytes_drop(struct bytes *bytes, size_t size)
{
	bytes->data += size;
	bytes->size -= size;
	if (bytes->size)
		return;
	/* Free the large block that a large message left: an idle connection must not keep it. */
	if (bytes->room > (1u << 16))
		bytes_free(bytes);
	else
		bytes->data = bytes->block;
}

/* Resize an array. Its pointer is copied, because void * may not alias a pointer of another type.
 */
static char *resize(void *array, size_t count, size_t entry_size)
{
	char *entries;

	memcpy(&entries, array, sizeof entries);
	entries = reallocarray(entries, count, entry_size);
	if (entries)
		memcpy(array, &entries, sizeof entries);
	return entries;
}

bool array_reserve(void *array, size_t count, size_t *room, size_t entry_size)
{
	size_t more = *room ? *room * 2 : 16;

	if (count < *room)
		return true;
	if (!resize(array, more, entry_size))
		return false;
	*room = more;
	return true;
}

void *array_add(void *array, size_t *count, size_t entry_size)
{
	char *entries = resize(array, *count + 1, entry_size);

	return entries ? memset(entries + entry_size * (*count)++, 0, entry_size) : NULL;
}

char *text_format(const char *format, ...)
{
	char *text;
	va_list ap;

	va_start(ap, format);
	if (vasprintf(&text, format, ap) < 0)
		text = NULL;
	va_end(ap);
	return text;
}

void text_append(char *text, size_t size, const char *format, ...)
{
	size_t used = strlen(text);
	va_list ap;

	va_start(ap, format);
	vsnprintf(text + used, size - used, format, ap);
	va_end(ap);
}

size_t text_utf8_length(const char *text)
{
	const unsigned char *p = (const unsigned char *)text;

	if (p[0] < 0x80)
		return 1;
	size_t length = p[0] >= 0xc2 && p[0] <= 0xdf   ? 2
			: (p[0] & 0xf0) == 0xe0	       ? 3
			: p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
						       : 0;

	for (size_t i = 1; i < length; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
	    (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
		return 0;
	return length;
}

/* Of ISO 6429's C0 and C1 (as one byte outside UTF-8, too), and of Unicode's marks that reorder
 * what is displayed around them (UAX #9). */
size_t text_control_length(const char *text)
{
	/* Each that opens is closed again, for compilers that warn about such strings. */
	static const char marks[] = u8"\u061c\u200e\u200f\u202a\u202c\u202b\u202c\u202d\u202c"
				    u8"\u202e\u202c\u2066\u2069\u2067\u2069\u2068\u2069";
	const unsigned char *p = (const unsigned char *)text;
	size_t length = text_utf8_length(text);

	if (length < 2)
		return *p < ' ' || *p == 0x7f || (*p >= 0x80 && *p < 0xa0);
	return (p[0] == 0xc2 && p[1] < 0xa0) || memmem(marks, sizeof marks - 1, p, length) ? length
											   : 0;
}

void text_replace_controls(char *text, char by, const char *keep)
{
	for (size_t length; *text; text += length) {
		size_t control = strchr(keep, *text) ? 0 : text_control_length(text);

		length = control ? control : text_utf8_length(text);
		length += !length;
		memset(text, control ? by : *text, control);
	}
}

void *bytes_copy(const void *data, size_t size)
{
	char *copy = size < SIZE_MAX ? malloc(size + 1) : NULL;

	if (copy && size)
		memcpy(copy, data, size);
	if (copy)
		copy[size] = '\0';
	return copy;
}

void words_add(struct words *words, const char *format, ...)
{
	va_list ap;
	char *text;

	va_start(ap, format);
	if (vasprintf(&text, format, ap) < 0)
		text = NULL;
	va_end(ap);
	words->failed |= !text || bytes_add(&words->text, text, strlen(text) + 1);
	words->count++;
	free(text);
}

void words_add_list(struct words *words, const char *const *list)
{
	for (; list && *list; list++)
		words_add(words, "%s", *list);
}

char **words_end(struct words *words)
{
	size_t head = (words->count + 1) * sizeof(char *);
	char **out = words->failed ? NULL : calloc(1, head + words->text.size), *at;

	if (out) {
		at = (char *)out + head;
		if (words->count)
			memcpy(at, words->text.data, words->text.size);
		for (size_t i = 0; i < words->count; i++, at += strlen(at) + 1)
			out[i] = at;
	}
	bytes_free(&words->text);
	*words = (struct words){0};
	return out;
}

char *words_join(struct words *words, char between)
{
	char *out = words->failed ? NULL : bytes_copy(words->text.data, words->text.size),
	     *at = out;

	for (size_t i = 1; out && i < words->count; i++) {
		at += strlen(at);
		*at++ = between;
	}
	bytes_free(&words->text);
	*words = (struct words){0};
	return out;
}

void bytes_put_u16(unsigned char *out, uint16_t value)
{
	value = htole16(value);
	memcpy(out, &value, sizeof value);
}

void bytes_put_u32(unsigned char *out, uint32_t value)
{
	value = htole32(value);
	memcpy(out, &value, sizeof value);
}

void bytes_put_u64(unsigned char *out, uint64_t value)
{
	value = htole64(value);
	memcpy(out, &value, sizeof value);
}

uint16_t bytes_get_u16(const unsigned char *in)
{
	uint16_t value;

	memcpy(&value, in, sizeof value);
	return le16toh(value);
}

uint32_t bytes_get_u32(const unsigned char *in)
{
	uint32_t value;

	memcpy(&value, in, sizeof value);
	return le32toh(value);
}

uint64_t bytes_get_u64(const unsigned char *in)
{
	uint64_t value;

	memcpy(&value, in, sizeof value);
	return le64toh(value);
}

int bytes_add_strings(struct bytes *bytes, const char *const *strings, size_t count)
{
	unsigned char *at = bytes_extend(bytes, 4);

	if (!at || count > UINT32_MAX)
		return -1;
	bytes_put_u32(at, (uint32_t)count);
	for (size_t i = 0; i < count; i++)
		if (bytes_add(bytes, strings[i], strlen(strings[i]) + 1))
			return -1;
	return 0;
}

int bytes_next_strings(const unsigned char **at, size_t *left, const char ***out, size_t *count,
		       struct error *err)
{
	const unsigned char *p = *at, *end = p + *left;
	const char **list;
	uint32_t n;

	if (*left < 4)
		return error_set(err, ERR_DATA, "a list of strings is truncated");
	n = bytes_get_u32(p);
	p += 4;
	if (n > *left - 4) /* each string has at least one byte */
		return error_set(err, ERR_DATA, "a list claims %u strings in %zu bytes", n, *left);
	list = calloc((size_t)n + 1, sizeof *list);
	if (!list)
		return error_memory(err, "a list of strings");
	for (uint32_t i = 0; i < n; i++) {
		const unsigned char *nul = memchr(p, 0, (size_t)(end - p));

		if (!nul) {
			free(list);
			return error_set(err, ERR_DATA, "a list of strings is truncated");
		}
		list[i] = (const char *)p;
		p = nul + 1;
	}
	*left = (size_t)(end - p);
	*at = p;
	*out = list;
	*count = n;
	return 0;
}
