/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/data/sample_log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"

struct sample_log {
	int rank, world, fd;
};

int sample_log_open(const char *directory, int rank, int world, struct sample_log **out,
		    struct error *err)
{
	struct sample_log *log = calloc(1, sizeof *log);
	char *path = NULL;
	int rc = log ? file_make_dirs(directory, err) : error_memory(err, "the sample log");

	if (!rc && !(path = text_format("%s/rank-%05d.txt", directory, rank)))
		rc = error_memory(err, "a file's name");
	if (!rc) {
		*log = (struct sample_log){rank, world, file_open_append(path, err)};
		if (log->fd < 0)
			rc = error_prefix(err, "--log-order");
	}
	free(path);
	if (rc)
		free(log);
	else
		*out = log;
	return rc;
}

int sample_log_write(struct sample_log *log, int64_t epoch, int64_t step, int64_t position,
		     const uint32_t *indices, int count, struct error *err)
{
	int rc = 0;
	char *text = NULL;
	size_t size = 0;
	FILE *stream;

	if (!log)
		return 0;
	stream = open_memstream(&text, &size);
	if (!stream)
		return error_memory(err, "the sample log");
	for (int i = 0; i < count; i++)
		fprintf(stream, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRIu32 "\n", epoch, step,
			position + log->rank + (int64_t)i * log->world, indices[i]);
	if (fclose(stream) || file_write_all(log->fd, text, size))
		rc = error_set(err, ERR_IO, "--log-order: cannot write the sample log: %s",
			       strerror(errno));
	free(text);
	return rc;
}

void sample_log_close(struct sample_log *log)
{
	if (!log)
		return;
	close(log->fd);
	free(log);
}
