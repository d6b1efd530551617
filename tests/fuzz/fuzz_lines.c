/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank's output, split into lines: no byte is lost, whatever the pieces. */
#include "fuzz.h"

#include "process/logs.h"

struct seen {
	unsigned char *text;
	size_t size;
};

static void on_line(void *context, const char *text, size_t size, bool newline)
{
	struct seen *seen = context;

	CHECK(size <= LOGS_LINE_MAX && !memchr(text, '\n', size));
	memcpy(seen->text + seen->size, text, size);
	seen->size += size;
	if (newline)
		seen->text[seen->size++] = '\n';
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen seen = {.text = malloc(size + 1)};
	struct bytes pending = {0};
	size_t piece = size ? data[0] % 71 + 1 : 1;

	CHECK(seen.text);
	for (size_t at = 0; at < size; at += piece) {
		logs_split(&pending, (const char *)data + at, size - at < piece ? size - at : piece,
			   on_line, &seen);
		CHECK(pending.size <= LOGS_LINE_MAX);
	}
	logs_split_end(&pending, on_line, &seen);
	CHECK(seen.size == size && !memcmp(seen.text, data, size));
	free(seen.text);
	return 0;
}
