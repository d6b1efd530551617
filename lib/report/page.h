/* SPDX-License-Identifier: BSD-3-Clause */
/* An HTML page that grows from top to bottom. */
#ifndef BERTH_REPORT_PAGE_H
#define BERTH_REPORT_PAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/error.h"

struct page {
	struct bytes *out;
	bool failed; /* memory is out */
};

void page_add(struct page *page, const char *html);
/* For numbers and fixed words, at most 255 bytes. */
void page_format(struct page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Append UTF-8 text with the characters of HTML and XML escaped; control characters become U+FFFD.
 */
void page_text(struct page *page, const char *text);

/* Append the curves of text, the size bytes of a metrics.jsonl called name. -ERR_DATA, or
 * -ERR_UNAVAILABLE if memory is out. */
int page_add_curves(struct page *page, const char *name, const char *text, size_t size,
		    struct error *err);

#endif
