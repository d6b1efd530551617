/* SPDX-License-Identifier: BSD-3-Clause */
/* What all files of this stage use: working memory, and lists of warnings. */
#include "plan/plan_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"

/* ---- working memory ---- */

struct scratch_block {
	struct scratch_block *next;
	max_align_t array[];
};

void *scratch_array(struct scratch *scratch, size_t count, size_t size)
{
	struct scratch_block *block = NULL;
	size_t bytes;

	if (!__builtin_mul_overflow(count, size, &bytes) &&
	    !__builtin_add_overflow(bytes, sizeof *block, &bytes))
		block = calloc(1, bytes);
	if (!block) {
		scratch->failed = true;
		return NULL;
	}
	block->next = scratch->blocks;
	scratch->blocks = block;
	return block->array;
}

void scratch_free(struct scratch *scratch)
{
	for (struct scratch_block *block = scratch->blocks, *next; block; block = next) {
		next = block->next;
		free(block);
	}
}

/* ---- lists of sentences ---- */

void warn(struct warnings *out, const char *format, ...)
{
	char **added, *text;
	va_list ap;

	if (out->rc)
		return;
	va_start(ap, format);
	int n = vasprintf(&text, format, ap);
	va_end(ap);
	added = n < 0 ? NULL : array_add(out->list, out->count, sizeof *added);
	if (added) {
		*added = text;
		return;
	}
	if (n >= 0)
		free(text);
	out->rc = error_memory(out->err, "a warning");
}

void text_list_free(char **list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		free(list[i]);
	free(list);
}
