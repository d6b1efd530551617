/* SPDX-License-Identifier: BSD-3-Clause */
/* Joins identical lines of several ranks:
 *
 *   [0-1023] loading the data
 *   [517] warning: no such file
 *
 * A line waits COLLAPSE_MS for the same line of other ranks, unless all ranks have written it. The
 * lines of one rank stay in order. */
#ifndef BERTH_REPORT_COLLAPSE_H
#define BERTH_REPORT_COLLAPSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define COLLAPSE_MS 900
#define COLLAPSE_BYTES (4u << 20) /* what waits at most; then the oldest lines are printed */

struct collapse; /* opaque */

/* Print a line, or a piece of one if newline is false. ranks: "0-3,7", shortened if long; rank: the
 * first of them. */
typedef void collapse_fn(void *context, const char *ranks, int rank, bool is_err, const char *text,
			 size_t size, bool newline);

/* For ranks 0 to world_size - 1. */
int collapse_new(int world_size, collapse_fn *print, void *context, struct collapse **out,
		 struct error *err);
/* Add a line, or a piece, which does not wait; text is copied. If memory is out, the line does not
 * wait, either. */
void collapse_line(struct collapse *collapse, int rank, bool is_err, const char *text, size_t size,
		   bool newline, int64_t now_ms);
/* Print the lines that have waited long enough (now_ms INT64_MAX: all). Return when the next ones
 * are due; 0: none wait. */
int64_t collapse_tick(struct collapse *collapse, int64_t now_ms);
/* NULL is allowed. Lines that wait are lost: call collapse_tick before. */
void collapse_free(struct collapse *collapse);

#endif
