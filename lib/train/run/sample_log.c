/* SPDX-License-Identifier: BSD-3-Clause */
/* --log-order: which samples each rank took, in the order in which it took them. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "train/run/loop_internal.h"

int train_sample_log_open(struct train *train, struct error *err)
{
	const char *directory = train->options->log_order;
	char *path = NULL;
	int rc;

	if (!directory)
		return 0;
	rc = file_make_dirs(directory, err);
	if (!rc && asprintf(&path, "%s/rank-%05d.txt", directory, train->comm->rank) < 0)
		return error_memory(err, "a file's name");
	if (!rc)
		train->sample_log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (!rc && train->sample_log_fd < 0)
		rc = error_set(err, ERR_OUTPUT, "--log-order: %s cannot be written: %s", path,
			       strerror(errno));
	free(path);
	return rc;
}

int train_sample_log_write(struct train *train, int64_t position, int64_t count, struct error *err)
{
	const struct sampler *sampler = &train->sampler;
	int64_t global, world = train->comm->size;
	int own, rc = 0;
	char *text = NULL;
	size_t size = 0;
	uint32_t *indices;
	FILE *stream;

	if (train->sample_log_fd < 0)
		return 0;
	indices = calloc((size_t)(count / world + 1), sizeof *indices);
	stream = open_memstream(&text, &size);
	if (!indices || !stream) {
		free(indices);
		if (stream)
			fclose(stream);
		free(text);
		return error_memory(err, "the order's log");
	}
	own = sampler_batch(sampler, position, train->comm->rank, (int)world, count, indices,
			    &global);
	for (int i = 0; i < own; i++)
		fprintf(stream, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRIu32 "\n",
			train->state.epoch, train->state.step + 1,
			position + train->comm->rank + i * world, indices[i]);
	if (fclose(stream) || file_write_all(train->sample_log_fd, text, size))
		rc = error_set(err, ERR_IO, "--log-order: it cannot be written: %s",
			       strerror(errno));
	free(text);
	free(indices);
	return rc;
}
