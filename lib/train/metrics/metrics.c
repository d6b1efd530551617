/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/metrics/metrics.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "train/device/cuda/gpu_meter.h"
#include "train/metrics/tensorboard.h"

#define FILE_MAX ((size_t)1 << 30)

struct metrics {
	int fd;
	char *path;
	int64_t last_val; /* the step of the last val row that a resumed run found; -1: none */
	struct tensorboard *events[2]; /* by split */
};

/* Copy the rows of text[0..given] up to step; malloced. *last_val: the last step of val. A file
 * system that lost its connection may leave NULs in the middle: they are skipped, and later rows
 * are still read. */
static char *rows_until(const char *text, size_t given, int64_t step, size_t *size,
			int64_t *last_val)
{
	char *kept = malloc(given + 1);

	*size = 0;
	for (const char *line = text, *end = text + given; kept && line < end;) {
		const char *newline = memchr(line, '\n', (size_t)(end - line));
		size_t length = (size_t)((newline ? newline : end) - line);
		JSON_AUTO row = json_loadb(line, length, 0, NULL);
		json_t *at = json_object_get(row, "step");

		/* A last line cut off by a kill is not a row. */
		if (json_is_integer(at) && json_integer_value(at) <= step && newline) {
			const char *split = json_string_value(json_object_get(row, "split"));

			memcpy(kept + *size, line, length + 1);
			*size += length + 1;
			if (split && !strcmp(split, split_name(SPLIT_VAL)))
				*last_val = json_integer_value(at);
		}
		line += length + 1;
	}
	return kept;
}

static int keep_rows(const char *path, int64_t step, int64_t *last_val, struct error *err)
{
	char *text, *kept;
	size_t size;
	int rc = file_read(path, FILE_MAX, &text, &size, err);

	if (rc)
		return rc;
	kept = rows_until(text, size, step, &size, last_val);
	rc = kept ? file_write_atomic(path, kept, size, 0666, err) : error_memory(err, path);
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
			return rc ? error_set(err, ERR_OUTPUT, "cannot rename %s: %s", path,
					      strerror(errno))
				  : 0;
	}
	return error_set(err, ERR_OUTPUT, "%s.1 to .99999 all exist; remove some of them", path);
}

static int open_rows(struct metrics *metrics, int64_t resumed_step, struct error *err)
{
	int rc = 0;

	if (!access(metrics->path, F_OK))
		rc = resumed_step >= 0
			     ? keep_rows(metrics->path, resumed_step, &metrics->last_val, err)
			     : put_aside(metrics->path, err);
	if (rc)
		return rc;
	metrics->fd = file_open_append(metrics->path, err);
	return metrics->fd < 0 ? -ERR_OUTPUT : 0;
}

static int open_events(struct metrics *metrics, const char *directory, int64_t resumed_step,
		       enum split split, struct error *err)
{
	char *path;
	int rc;

	if (asprintf(&path, "%s/%s", directory, split_name(split)) < 0)
		return error_memory(err, "the metrics");
	/* An evaluation at the checkpoint's step stays, as its row does. */
	rc = tensorboard_open(path, resumed_step < 0 ? 0 : resumed_step + 1,
			      &metrics->events[split], err);
	free(path);
	return rc;
}

int metrics_open(const char *directory, int64_t resumed_step, bool validates, struct metrics **out,
		 struct error *err)
{
	struct metrics *metrics = calloc(1, sizeof *metrics);
	int rc;

	if (!metrics || asprintf(&metrics->path, "%s/metrics.jsonl", directory) < 0) {
		free(metrics);
		return error_memory(err, "the metrics");
	}
	metrics->fd = -1;
	metrics->last_val = -1;
	rc = file_make_dirs(directory, err);
	if (!rc)
		rc = open_rows(metrics, resumed_step, err);
	if (!rc)
		rc = open_events(metrics, directory, resumed_step, SPLIT_TRAIN, err);
	if (!rc && validates)
		rc = open_events(metrics, directory, resumed_step, SPLIT_VAL, err);
	if (rc)
		metrics_close(metrics);
	else
		*out = metrics;
	return rc;
}

/* json_real(NaN) returns NULL: a diverged loss becomes null on purpose. */
static json_t *number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

/* The fraction of the reductions that no one waited for, 0 to 1. */
static double hidden_fraction(const struct metrics_row *row)
{
	return row->comm_busy_ms > 0 ? 1 - row->comm_exposed_ms / row->comm_busy_ms : 1;
}

static int write_json(struct metrics *metrics, const json_t *json, struct error *err)
{
	char *text = json ? json_dumps(json, 0) : NULL, *line = NULL;
	int rc = 0;

	if (!text || !(line = text_format("%s\n", text))) {
		rc = error_memory(err, "the metrics");
	} else if (file_write_all(metrics->fd, line, strlen(line))) {
		rc = error_set(err, ERR_IO, "cannot write %s: %s", metrics->path, strerror(errno));
	}
	free(line);
	free(text);
	return rc;
}

int metrics_write_checkpoint(struct metrics *metrics, const struct metrics_checkpoint *row,
			     struct error *err)
{
	if (!metrics)
		return 0;
	JSON_AUTO json = json_pack("{s:s, s:f, s:I, s:I, s:f, s:f, s:I}", "split", "checkpoint",
				   "time", clock_wall_s(), "step", (json_int_t)row->step, "epoch",
				   (json_int_t)row->epoch, "stall_ms", row->stall_ms, "write_ms",
				   row->write_ms, "size_bytes", (json_int_t)row->size_bytes);

	return write_json(metrics, json, err);
}

/* A row's values, in the order of metrics.jsonl; returns how many they are. */
static size_t row_scalars(const struct metrics_row *row,
			  struct tensorboard_scalar out[TENSORBOARD_SCALARS_MAX])
{
	size_t count = 0;

	out[count++] = (struct tensorboard_scalar){"loss", row->loss};
	out[count++] = (struct tensorboard_scalar){"lr", row->lr};
	out[count++] = (struct tensorboard_scalar){"images_per_s", row->images_per_s};
	out[count++] = (struct tensorboard_scalar){"data_wait_ms", row->data_wait_ms};
	if (row->split == SPLIT_VAL && row->acc1 >= 0) {
		out[count++] = (struct tensorboard_scalar){"acc1", row->acc1};
		out[count++] = (struct tensorboard_scalar){"acc5", row->acc5};
	}
	if (row->gpu) {
		int throttled = 0;

		for (int why = 0; why < GPU_THROTTLE_COUNT; why++)
			throttled += row->gpu->throttled[why];
		out[count++] = (struct tensorboard_scalar){"gpu_use", row->gpu->utilization};
		out[count++] =
			(struct tensorboard_scalar){"gpu_memory_bytes", row->gpu->memory_bytes};
		out[count++] = (struct tensorboard_scalar){"gpu_power_w", row->gpu->power_w};
		out[count++] = (struct tensorboard_scalar){"gpu_slow", throttled};
		out[count++] = (struct tensorboard_scalar){"host_ms", row->host_ms};
	}
	if (row->overlap) {
		out[count++] = (struct tensorboard_scalar){"comm_ms", row->comm_busy_ms};
		out[count++] = (struct tensorboard_scalar){"comm_hidden", hidden_fraction(row)};
	}
	return count;
}

/* The names of the causes; TensorBoard has only their number. */
static json_t *throttle_names(const struct gpu_reading *gpu)
{
	json_t *names = json_array();

	for (int why = 0; why < GPU_THROTTLE_COUNT; why++)
		if (gpu->throttled[why])
			json_array_append_new(names, json_string(gpu_throttle_name(why)));
	return names;
}

int metrics_write(struct metrics *metrics, const struct metrics_row *row, struct error *err)
{
	if (!metrics || (row->split == SPLIT_VAL && row->step <= metrics->last_val))
		return 0;
	struct tensorboard_scalar scalars[TENSORBOARD_SCALARS_MAX];
	size_t count = row_scalars(row, scalars);
	JSON_AUTO json = json_pack("{s:s, s:f, s:I, s:I}", "split", split_name(row->split), "time",
				   clock_wall_s(), "step", (json_int_t)row->step, "epoch",
				   (json_int_t)row->epoch);
	int rc = json ? 0 : -1;

	for (size_t i = 0; !rc && i < count; i++)
		rc = json_object_set_new(json, scalars[i].tag,
					 strcmp(scalars[i].tag, "gpu_slow")
						 ? number(scalars[i].value)
						 : throttle_names(row->gpu));
	rc = write_json(metrics, rc ? NULL : json, err);
	return rc ? rc
		  : tensorboard_write(metrics->events[row->split], row->step, scalars, count, err);
}

const char *metrics_path(const struct metrics *metrics)
{
	return metrics->path;
}

void metrics_close(struct metrics *metrics)
{
	if (!metrics)
		return;
	if (metrics->fd >= 0)
		close(metrics->fd);
	tensorboard_close(metrics->events[SPLIT_TRAIN]);
	tensorboard_close(metrics->events[SPLIT_VAL]);
	free(metrics->path);
	free(metrics);
}
