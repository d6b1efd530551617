/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/metrics/tensorboard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/file.h"

#define PREFIX "events.out.tfevents."
#define RECORD_HEAD 12 /* length (8) and its checksum (4) */

struct tensorboard {
	int fd;
	char *path;
};

/* ---- protocol buffers: Event, Summary, SessionLog (tensorflow/core/util/event.proto) ---- */

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum event_field {
	EVENT_WALL_TIME = 1,
	EVENT_STEP,
	EVENT_FILE_VERSION,
	EVENT_SUMMARY = 5,
	EVENT_SESSION_LOG = 7
};
enum value_field { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };
enum session_field { SESSION_STATUS = 1, SESSION_START = 1 };

static unsigned char *put_varint(unsigned char *to, uint64_t value)
{
	for (; value >= 0x80; value >>= 7)
		*to++ = (unsigned char)(value | 0x80);
	*to++ = (unsigned char)value;
	return to;
}

static unsigned char *put_key(unsigned char *to, int field, enum wire wire)
{
	return put_varint(to, (uint64_t)field << 3 | wire);
}

static unsigned char *put_bytes(unsigned char *to, int field, const void *bytes, size_t size)
{
	to = put_varint(put_key(to, field, WIRE_BYTES), size);
	memcpy(to, bytes, size);
	return to + size;
}

static unsigned char *put_double(unsigned char *to, int field, double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof bits);
	to = put_key(to, field, WIRE_64);
	bytes_put_u64(to, bits);
	return to + sizeof bits;
}

static unsigned char *put_float(unsigned char *to, int field, float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof bits);
	to = put_key(to, field, WIRE_32);
	bytes_put_u32(to, bits);
	return to + sizeof bits;
}

/* ---- records ---- */

static uint32_t masked(const void *data, size_t size)
{
	uint32_t crc = crc32c(0, data, size);

	return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Put header and footer around the event, which begins after the header's space and ends at end. */
static size_t seal(unsigned char *record, unsigned char *end)
{
	size_t size = (size_t)(end - record) - RECORD_HEAD;

	bytes_put_u64(record, size);
	bytes_put_u32(record + 8, masked(record, 8));
	bytes_put_u32(end, masked(record + RECORD_HEAD, size));
	return RECORD_HEAD + size + 4;
}

size_t tensorboard_version_record(double wall_time, unsigned char *to)
{
	static const char version[] = "brain.Event:2";
	unsigned char *at = put_double(to + RECORD_HEAD, EVENT_WALL_TIME, wall_time);

	return seal(to, put_bytes(at, EVENT_FILE_VERSION, version, sizeof version - 1));
}

/* A varint in two's complement; zero fields are omitted, as in proto3. */
static unsigned char *put_step(unsigned char *to, int64_t step)
{
	return step ? put_varint(put_key(to, EVENT_STEP, WIRE_VARINT), (uint64_t)step) : to;
}

size_t tensorboard_start_record(double wall_time, int64_t step, unsigned char *to)
{
	unsigned char *at = put_double(to + RECORD_HEAD, EVENT_WALL_TIME, wall_time), session[4];
	unsigned char *end =
		put_varint(put_key(session, SESSION_STATUS, WIRE_VARINT), SESSION_START);

	at = put_step(at, step);
	return seal(to, put_bytes(at, EVENT_SESSION_LOG, session, (size_t)(end - session)));
}

size_t tensorboard_scalars_record(double wall_time, int64_t step,
				  const struct tensorboard_scalar *scalars, size_t count,
				  unsigned char *to)
{
	unsigned char *at = put_double(to + RECORD_HEAD, EVENT_WALL_TIME, wall_time);
	unsigned char summary[TENSORBOARD_SCALARS_MAX * 80], *end = summary;

	for (size_t i = 0; i < count && i < TENSORBOARD_SCALARS_MAX; i++) {
		unsigned char value[80], *last;

		last = put_bytes(value, VALUE_TAG, scalars[i].tag, strnlen(scalars[i].tag, 64));
		last = put_float(last, VALUE_SIMPLE, (float)scalars[i].value);
		end = put_bytes(end, SUMMARY_VALUE, value, (size_t)(last - value));
	}
	at = put_step(at, step);
	return seal(to, put_bytes(at, EVENT_SUMMARY, summary, (size_t)(end - summary)));
}

/* ---- files ---- */

/* TensorBoard reads a directory's files in order of name: return seconds that sort after all
 * existing files. */
static int64_t next_seconds(const char *directory)
{
	int64_t seconds = clock_wall_us() / 1000000;
	DIR *dir = opendir(directory);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		const char *digits = entry->d_name + sizeof PREFIX - 1;

		if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) ||
		    strspn(digits, "0123456789") > 12)
			continue;
		int64_t taken_seconds = strtoll(digits, NULL, 10);

		if (taken_seconds >= seconds)
			seconds = taken_seconds + 1;
	}
	if (dir)
		closedir(dir);
	return seconds;
}

static int write_record(struct tensorboard *tensorboard, const unsigned char *record, size_t size,
			struct error *err)
{
	if (file_write_all(tensorboard->fd, record, size))
		return error_set(err, ERR_IO, "cannot write %s: %s", tensorboard->path,
				 strerror(errno));
	return 0;
}

static int create(struct tensorboard *tensorboard, const char *directory, struct error *err)
{
	char host[256] = "";
	int flags = O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC;

	gethostname(host, sizeof host - 1);
	if (!(tensorboard->path = text_format("%s/" PREFIX "%010" PRId64 ".%s.%ld", directory,
					      next_seconds(directory), host[0] ? host : "localhost",
					      (long)getpid())))
		return error_memory(err, "the events");
	tensorboard->fd = open(tensorboard->path, flags, 0666);
	return tensorboard->fd < 0 ? error_set(err, ERR_OUTPUT, "cannot write %s: %s",
					       tensorboard->path, strerror(errno))
				   : 0;
}

int tensorboard_open(const char *directory, int64_t first_step, struct tensorboard **out,
		     struct error *err)
{
	struct tensorboard *tensorboard = calloc(1, sizeof *tensorboard);
	unsigned char record[TENSORBOARD_RECORD_MAX];
	int rc = tensorboard ? 0 : error_memory(err, "the events");

	if (rc)
		return rc;
	tensorboard->fd = -1;
	rc = file_make_dirs(directory, err);
	if (!rc)
		rc = create(tensorboard, directory, err);
	if (!rc)
		rc = write_record(tensorboard, record,
				  tensorboard_version_record(clock_wall_s(), record), err);
	if (!rc)
		rc = write_record(tensorboard, record,
				  tensorboard_start_record(clock_wall_s(), first_step, record),
				  err);
	if (rc)
		tensorboard_close(tensorboard);
	else
		*out = tensorboard;
	return rc;
}

int tensorboard_write(struct tensorboard *tensorboard, int64_t step,
		      const struct tensorboard_scalar *scalars, size_t count, struct error *err)
{
	unsigned char record[TENSORBOARD_RECORD_MAX];

	if (!tensorboard)
		return 0;
	return write_record(
		tensorboard, record,
		tensorboard_scalars_record(clock_wall_s(), step, scalars, count, record), err);
}

void tensorboard_close(struct tensorboard *tensorboard)
{
	if (!tensorboard)
		return;
	if (tensorboard->fd >= 0)
		close(tensorboard->fd);
	free(tensorboard->path);
	free(tensorboard);
}
