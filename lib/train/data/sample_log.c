/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/sample_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

struct sample_log {
	const struct sampler *sampler;
	int rank, world, fd;
};

int sample_log_open(const char *directory, const struct sampler *sampler, int rank, int world,
		    struct sample_log **out, struct error *err)
{
	struct sample_log *log = calloc(1, sizeof *log);
	char *path = NULL;
	int rc = log ? file_make_dirs(directory, err) : error_memory(err, "the order's log");

	if (!rc && asprintf(&path, "%s/rank-%05d.txt", directory, rank) < 0) {
		path = NULL;
		rc = error_memory(err, "a file's name");
	}
	if (!rc) {
		*log = (struct sample_log){
			sampler, rank, world,
			open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)};
		if (log->fd < 0)
			rc = error_set(err, ERR_OUTPUT, "--log-order: %s cannot be written: %s",
				       path, strerror(errno));
	}
	free(path);
	if (rc)
		free(log);
	else
		*out = log;
	return rc;
}

int sample_log_write(struct sample_log *log, int64_t epoch, int64_t step, int64_t position,
		     int64_t count, struct error *err)
{
	int64_t global;
	int own, rc = 0;
	char *text = NULL;
	size_t size = 0;
	uint32_t *indices;
	FILE *stream;

	if (!log)
		return 0;
	indices = calloc((size_t)(count / log->world + 1), sizeof *indices);
	stream = open_memstream(&text, &size);
	if (!indices || !stream) {
		free(indices);
		if (stream)
			fclose(stream);
		free(text);
		return error_memory(err, "the order's log");
	}
	own = sampler_batch(log->sampler, position, log->rank, log->world, count, indices, &global);
	for (int i = 0; i < own; i++)
		fprintf(stream, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRIu32 "\n", epoch, step,
			position + log->rank + (int64_t)i * log->world, indices[i]);
	if (fclose(stream) || file_write_all(log->fd, text, size))
		rc = error_set(err, ERR_IO, "--log-order: it cannot be written: %s",
			       strerror(errno));
	free(text);
	free(indices);
	return rc;
}

void sample_log_close(struct sample_log *log)
{
	if (!log)
		return;
	close(log->fd);
	free(log);
}
