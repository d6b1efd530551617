/* SPDX-License-Identifier: BSD-3-Clause */
/* The run report: a berth.run/1 document as one HTML page, which loads nothing. */
#ifndef BERTH_REPORT_REPORT_H
#define BERTH_REPORT_REPORT_H

#include <jansson.h>

#include "base/bytes.h"
#include "base/error.h"

/* The content of a metrics.jsonl of berth train; borrowed. name is what err calls it. */
struct report_metrics {
	const char *name, *text;
	size_t size;
};

/* Is the document, which err calls name, a berth.run/1? Return 0 or -ERR_DATA. */
int report_check(const char *name, const json_t *document, struct error *err);

/* Append the page to *out. metrics may be NULL. name is what err calls the document.
 * The page holds the whole document; its script shows strings as text only, and leaves out members
 * that is missing or has an unexpected type. Return 0, -ERR_DATA if the document is not berth.run/1
 * or metrics are not as expected, or -ERR_UNAVAILABLE if memory is out. */
int report_html(const char *name, const json_t *document, const struct report_metrics *metrics,
		struct bytes *out, struct error *err);

#endif
