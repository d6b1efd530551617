/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

#define FILE_MAX ((size_t)1 << 30)

struct metrics {
	int fd;
	char *path;
};

/* The rows of text[0..given] up to step, one after another. malloced. A file system that was cut off
 * may leave NULs in the middle: those are no rows, and what follows is still read. */
static char *rows_until(const char *text, size_t given, int64_t step, size_t *size)
{
	char *kept = malloc(given + 1);

	*size = 0;
	for (const char *line = text, *end = text + given; kept && line < end;) {
		const char *newline = memchr(line, '\n', (size_t)(end - line));
		size_t length = (size_t)((newline ? newline : end) - line);
		JSON_AUTO row = json_loadb(line, length, 0, NULL);
		json_t *at = json_object_get(row, "step");

		/* A last line cut off by a kill is no row. */
		if (json_is_integer(at) && json_integer_value(at) <= step && newline) {
			memcpy(kept + *size, line, length + 1);
			*size += length + 1;
		}
		line += length + 1;
	}
	return kept;
}

static int keep_rows(const char *path, int64_t step, struct error *err)
{
	char *text, *kept;
	size_t size;
	int rc = file_read(path, FILE_MAX, &text, &size, err);

	if (rc)
		return rc;
	kept = rows_until(text, size, step, &size);
	rc = kept ? file_write_atomic(path, kept, size, 0644, err) : error_memory(err, path);
	free(kept);
	free(text);
	return rc;
}

static int put_aside(const char *path, struct error *err)
{
	char *aside;

	for (int i = 1; i < 100000; i++) {
		if (asprintf(&aside, "%s.%d", path, i) < 0)
			return error_memory(err, path);
		int rc = access(aside, F_OK) ? rename(path, aside) : 1;

		free(aside);
		if (rc <= 0)
			return rc ? error_set(err, ERR_OUTPUT, "%s cannot be put aside: %s", path,
					      strerror(errno))
				  : 0;
	}
	return error_set(err, ERR_OUTPUT, "%s.1 to .99999 are all taken", path);
}

int metrics_open(const char *folder, int64_t resumed_step, struct metrics **out, struct error *err)
{
	struct metrics *metrics = calloc(1, sizeof *metrics);
	int rc;

	if (!metrics || asprintf(&metrics->path, "%s/metrics.jsonl", folder) < 0) {
		free(metrics);
		return error_memory(err, "the metrics");
	}
	metrics->fd = -1;
	rc = file_make_dirs(folder, err);
	if (!rc && !access(metrics->path, F_OK))
		rc = resumed_step >= 0 ? keep_rows(metrics->path, resumed_step, err)
				       : put_aside(metrics->path, err);
	if (!rc) {
		metrics->fd = open(metrics->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
		if (metrics->fd < 0)
			rc = error_set(err, ERR_OUTPUT, "%s cannot be written: %s", metrics->path,
				       strerror(errno));
	}
	if (rc)
		metrics_close(metrics);
	else
		*out = metrics;
	return rc;
}

/* json_real(NaN) is NULL: a diverged loss is null on purpose. */
static json_t *number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

int metrics_write(struct metrics *metrics, const struct metrics_row *row, struct error *err)
{
	char *text = NULL, *line = NULL;
	int rc = 0;

	if (!metrics)
		return 0;
	JSON_AUTO json =
		json_pack("{s:s, s:I, s:I, s:o, s:o}", "split", split_name(row->split), "step",
			  (json_int_t)row->step, "epoch", (json_int_t)row->epoch, "loss",
			  number(row->loss), "images_per_s", number(row->images_per_s));

	if (json && row->split == SPLIT_TRAIN) {
		json_object_set_new(json, "lr", number(row->lr));
		json_object_set_new(json, "data_wait_ms", number(row->data_wait_ms));
	} else if (json && row->acc1 >= 0) {
		json_object_set_new(json, "acc1", number(row->acc1));
		json_object_set_new(json, "acc5", number(row->acc5));
	}
	text = json ? json_dumps(json, 0) : NULL;
	if (!text || asprintf(&line, "%s\n", text) < 0)
		rc = error_memory(err, "the metrics");
	else if (file_write_all(metrics->fd, line, strlen(line)))
		rc = error_set(err, ERR_IO, "%s cannot be written: %s", metrics->path,
			       strerror(errno));
	free(line);
	free(text);
	return rc;
}

const char *metrics_path(const struct metrics *metrics)
{
	return metrics ? metrics->path : "";
}

void metrics_close(struct metrics *metrics)
{
	if (!metrics)
		return;
	if (metrics->fd >= 0)
		close(metrics->fd);
	free(metrics->path);
	free(metrics);
}
